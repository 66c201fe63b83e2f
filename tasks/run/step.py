"""Steps of a run: in a flow run Prefect tasks, never cached by Prefect and retried on infrastructure errors alone.

Elsewhere a step is a plain function, and Prefect need not be installed.

While a server does not answer, a step retries for as long as a restart may take. Other infrastructure errors (a process
that died, a busy device) are retried twice. A full disk, bad input and a refusal are not retried.

Prefect's cache keys cover the task's source but not the functions that it calls, so a change in those would return an old
result. The store keeps finished work instead, under the digest of all its inputs.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tasks.run.context import log
from tasks.run.log_redaction import shielded
from tasks.run.progress_events import stage
from tasks.run.settings import patience_seconds, written_folders
from tasks.storage.files import room_in
from validators.errors import ChampionMoved, InfrastructureError, ServiceDown, StorageFull

if TYPE_CHECKING:
    from prefect import Task

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")

RETRIES = 2
# The delay doubles up to the last value, which then repeats.
DELAYS_SECONDS = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
# Never reached: `QUANTGATE_PATIENCE_SECONDS` ends the retries earlier.
MOST_RETRIES = 1000
# Spreads the requests of many waiting runs once a server is back.
JITTER = 0.3


@dataclass(frozen=True)
class RunStep(Generic[Arguments, Outcome]):
    """A function that is called as a Prefect task in a flow run, and as it is elsewhere."""

    fn: Callable[Arguments, Outcome]
    name: str
    run_name: str | None
    retried: bool

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        """Run the step; return its result, or raise its error."""
        return self._task(*args, **kwargs) if _is_in_flow_run() else self.fn(*args, **kwargs)

    def outcome(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome | BaseException:
        """Run the step; return its result, or the error with which it failed after its retries."""
        if _is_in_flow_run():
            return self._task(*args, **kwargs, return_state=True).result(raise_on_failure=False)
        try:
            return self.fn(*args, **kwargs)
        except Exception as error:
            return error

    def submit(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Callable[[], Outcome | BaseException]:
        """Start the step in a thread of the flow run, or run it; return a function that waits for its `outcome`."""
        if _is_in_flow_run():
            return functools.partial(self._task.submit(*args, **kwargs).result, raise_on_failure=False)
        outcome = self.outcome(*args, **kwargs)
        return lambda: outcome

    @functools.cached_property
    def _task(self) -> Task[Arguments, Outcome]:
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        return task(
            name=self.name,
            task_run_name=self.run_name,
            cache_policy=NO_CACHE,
            retries=MOST_RETRIES if self.retried else 0,
            retry_delay_seconds=DELAYS_SECONDS,
            retry_jitter_factor=JITTER,
            retry_condition_fn=_is_worth_another_try,
        )(self.fn)


def step(
    name: str, *, run_name: str | None = None, retried: bool = True
) -> Callable[[Callable[Arguments, Outcome]], RunStep[Arguments, Outcome]]:
    """Return a decorator that makes a function a step. `run_name` is a template over its arguments: `make {name}`."""
    return lambda function: RunStep(shielded(_staged(function, name, run_name)), name, run_name, retried)


def _is_in_flow_run() -> bool:
    """Return True in a flow run and in its task runs; in a process that never imported Prefect there are none."""
    context = sys.modules.get("prefect.context")
    return context is not None and context.FlowRunContext.get() is not None


def _staged(function: Callable[Arguments, Outcome], name: str, run_name: str | None) -> Callable[Arguments, Outcome]:
    """Return the function with its begin and end reported to the run's watchers."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        def called() -> str:
            return run_name.format(**signature.bind(*args, **kwargs).arguments) if run_name else name

        with stage(name, called), room_in(*written_folders()):
            return function(*args, **kwargs)

    return call


def _is_worth_another_try(_task: Any, task_run: Any, state: Any) -> bool:
    import httpx  # Prefect's client raises its errors when the server does not answer

    try:
        state.result()
    except (ChampionMoved, StorageFull):
        return False
    except ServiceDown as error:
        is_worth, found = _is_patient(task_run), error.found
    except httpx.TransportError as error:
        is_worth, found = _is_patient(task_run), f"the Prefect server does not answer: {error}"
    except InfrastructureError as error:
        is_worth, found = task_run.run_count <= RETRIES, error.found
    except BaseException:
        return False
    else:
        return False
    if is_worth:
        log.warning("%s; retrying", found)
    return is_worth


def _is_patient(task_run: Any) -> bool:
    return waited_seconds(task_run.run_count) < patience_seconds()


def waited_seconds(attempts: int) -> float:
    """Return the seconds that a step has waited between so many attempts, without jitter.

    >>> [waited_seconds(attempts) for attempts in (1, 2, 3, 7, 8)]
    [0.0, 1.0, 3.0, 61.0, 91.0]
    """
    waits = attempts - 1
    return sum(DELAYS_SECONDS[:waits]) + DELAYS_SECONDS[-1] * max(0, waits - len(DELAYS_SECONDS))

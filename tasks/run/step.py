"""Steps of a run as Prefect tasks: never cached by Prefect, retried on infrastructure errors alone.

While a server does not answer, a step retries for as long as a restart may take. Other infrastructure errors (a process
that died, a busy device) are retried twice. A full disk, bad input and a refusal are not retried.

Prefect's cache keys cover the task's source but not the functions that it calls, so a change in those would return an old
result. The store keeps finished work instead, under the digest of all its inputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from tasks.run.context import log
from tasks.run.log_redaction import shielded
from tasks.run.progress_events import stage
from tasks.run.settings import patience_seconds, written_folders
from tasks.storage.files import room_in
from validators.errors import ChampionMoved, InfrastructureError, ServiceDown, StorageFull

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")

RETRIES = 2
# The delay doubles up to the last value, which then repeats.
DELAYS_SECONDS = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
# Never reached: `QUANTGATE_PATIENCE_SECONDS` ends the retries earlier.
MOST_RETRIES = 1000
# Spreads the requests of many waiting runs once a server is back.
JITTER = 0.3


def step(
    name: str, *, run_name: str | None = None, retried: bool = True
) -> Callable[[Callable[Arguments, Outcome]], Task[Arguments, Outcome]]:
    """Return a decorator that makes a function a Prefect task. `run_name` is a template over its arguments: `make {name}`."""
    made = task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        retries=MOST_RETRIES if retried else 0,
        retry_delay_seconds=DELAYS_SECONDS,
        retry_jitter_factor=JITTER,
        retry_condition_fn=_is_worth_another_try,
    )
    return lambda function: made(shielded(_staged(function, name, run_name)))


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
    try:
        state.result()
    except (ChampionMoved, StorageFull):
        return False
    except (ServiceDown, httpx.TransportError) as error:
        is_worth, found = waited_seconds(task_run.run_count) < patience_seconds(), _found(error)
    except InfrastructureError as error:
        is_worth, found = task_run.run_count <= RETRIES, error.found
    except BaseException:
        return False
    else:
        return False
    if is_worth:
        log.warning("%s; retrying", found)
    return is_worth


def _found(error: ServiceDown | httpx.TransportError) -> str:
    """Return what was found; Prefect's client raises httpx errors when its server does not answer."""
    return error.found if isinstance(error, ServiceDown) else f"the Prefect server does not answer: {error}"


def waited_seconds(attempts: int) -> float:
    """Return the seconds that a step has waited between so many attempts, without jitter.

    >>> [waited_seconds(attempts) for attempts in (1, 2, 3, 7, 8)]
    [0.0, 1.0, 3.0, 61.0, 91.0]
    """
    waits = attempts - 1
    return sum(DELAYS_SECONDS[:waits]) + DELAYS_SECONDS[-1] * max(0, waits - len(DELAYS_SECONDS))

"""A step of the story as a Prefect task: never cached by Prefect, retried on infrastructure errors alone.

Prefect's own cache keys know the task's source but not what it calls, so that a change deeper down would give back an old
result. Finished work is kept by the store, under the digest of all that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from tasks.context import log
from validators.errors import InfrastructureError

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")

RETRIES = 2
RETRY_DELAYS_SECONDS = [1.0, 4.0]


def step(
    name: str, *, run_name: str | None = None, retried: bool = True
) -> Callable[[Callable[Arguments, Outcome]], Task[Arguments, Outcome]]:
    """Make a Prefect task of a function. `run_name` is a template over its arguments, such as `make {name}`."""
    return task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        retries=RETRIES if retried else 0,
        retry_delay_seconds=RETRY_DELAYS_SECONDS,
        retry_condition_fn=_is_infrastructure,
    )


def _is_infrastructure(_task: Any, _task_run: Any, state: Any) -> bool:
    try:
        state.result()
    except InfrastructureError as error:
        log.warning("%s; trying again", error.found)
        return True
    except BaseException:
        return False
    return False

"""Steps: tasks of Prefect in a flow run, plain functions elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from tasks.run.step import DELAYS_SECONDS, step
from validators.errors import ServiceDown


@step("halve", run_name="halve {number}")
def halve(number: int) -> int:
    """Half an even number."""
    if number % 2:
        raise ServiceDown(found=f"{number}", expected="an even number", fix="double it")
    return number // 2


def test_step_is_a_plain_function_outside_of_a_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an error that Prefect would retry reaches it."""
    monkeypatch.delattr(Task, "__call__")
    monkeypatch.delattr(Task, "submit")
    assert (halve(4), halve.outcome(number=6), halve.submit(8)()) == (2, 3, 4)
    with pytest.raises(ServiceDown):
        halve(3)
    for error in (halve.outcome(3), halve.submit(3)()):
        assert isinstance(error, ServiceDown) and error.found == "3"


def test_step_is_a_task_in_a_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name, never cached, and retried."""
    called: list[Task[Any, Any]] = []

    class Answer:
        def result(self, *, raise_on_failure: bool) -> str:
            assert not raise_on_failure
            return "of the task"

    def call(self: Task[Any, Any], number: int, *, return_state: bool = False) -> Any:
        called.append(self)
        return Answer() if return_state else number

    monkeypatch.setattr(Task, "__call__", call)
    monkeypatch.setattr(Task, "submit", lambda self, number: call(self, number, return_state=True))
    with FlowRunContext.model_construct():
        assert (halve(3), halve.outcome(3), halve.submit(3)()) == (3, "of the task", "of the task")
    task, *others = called
    assert [*others] == [task, task]
    assert (task.name, task.task_run_name, task.cache_policy) == ("halve", "halve {number}", NO_CACHE)
    assert task.retries > 0 and task.retry_delay_seconds == DELAYS_SECONDS and task.retry_condition_fn is not None

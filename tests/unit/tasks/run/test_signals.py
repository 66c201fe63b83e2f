"""A signal that arrives inside a library ends the work as a signal, whatever the library makes of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from pydantic_core import SchemaError, SchemaValidator, core_schema

from flows.cli.console import command
from tasks.run.log_redaction import shielded
from tasks.run.signals import signals_kept
from validators.errors import EXIT_INTERRUPTED

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Ended(BaseException):
    """What another handler raises, as Prefect's does."""


def end(_number: int, _frame: Any) -> None:
    raise Ended


@pytest.fixture(params=NUMBERS)
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    former = {one: signal.signal(one, signal.default_int_handler) for one in NUMBERS}
    yield request.param
    for one, handler in former.items():
        signal.signal(one, handler)


def build_a_validator(number: int) -> None:
    """Let the signal arrive while pydantic builds a validator: pydantic then reads the name of the class."""

    class Named(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]  # a string when read, as in `type`
            signal.raise_signal(number)
            return "Built"

    class Built(metaclass=Named):
        pass

    SchemaValidator(core_schema.dataclass_schema(Built, core_schema.dataclass_args_schema("Built", []), []))


def swallow(number: int) -> None:
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def test_pydantic_makes_an_error_of_its_own(number: int) -> None:
    """Why this is needed; if it fails, pydantic has changed."""
    with pytest.raises(SchemaError, match="KeyboardInterrupt"):
        build_a_validator(number)


@pytest.mark.parametrize("work", [build_a_validator, swallow])
def test_a_step_ends_with_what_the_handler_raised(number: int, work: Callable[[int], None]) -> None:
    with pytest.raises(KeyboardInterrupt):
        shielded(work)(number)
    signal.signal(number, end)
    with pytest.raises(Ended):
        shielded(work)(number)
    assert signal.getsignal(number) is end


def test_the_next_step_does_not_begin(number: int) -> None:
    """Swallowed between two steps of a flow: neither that step nor the rest is done."""
    done: list[str] = []

    @shielded
    def flow() -> None:
        swallow(number)
        done.append("rest of the body")
        shielded(done.append)("step")

    with pytest.raises(KeyboardInterrupt):
        flow()
    assert done == ["rest of the body"]
    shielded(done.append)("the next run")
    assert done[-1] == "the next run", "a signal ends one run"


def test_errors_without_a_signal_pass(number: int) -> None:
    with pytest.raises(ValueError, match="another"), signals_kept() as raised:
        raise ValueError("another")
    assert not raised and signal.getsignal(number) is signal.default_int_handler
    signal.signal(number, signal.SIG_IGN)
    with signals_kept():
        assert signal.getsignal(number) is signal.SIG_IGN


def test_a_command_that_was_interrupted_says_so(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        build_a_validator(number)

    with pytest.raises(typer.Exit) as caught:
        command(interrupted)()
    assert (
        caught.value.exit_code == EXIT_INTERRUPTED and "SIGTERM before the command finished" in capsys.readouterr().err
    )


def test_other_threads_leave_the_handlers_alone() -> None:
    seen: list[Any] = []

    def look() -> None:
        with signals_kept():
            seen.extend(map(signal.getsignal, NUMBERS))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [*map(signal.getsignal, NUMBERS)]

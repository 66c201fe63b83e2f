"""A process for each figure, since a process that used a GPU holds on to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from validators.errors import InfrastructureError

Result = TypeVar("Result")


def apart(function: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
    """What `function` returns or raises, called in a process of its own that ends with it.

    Raises:
        InfrastructureError: the process died, or said nothing for so long.
    """
    context = multiprocessing.get_context("spawn")  # a forked process inherits a CUDA context that it cannot use
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise InfrastructureError(
                found=f"no answer of {function.__name__} in {seconds:.0f} s",
                expected="an answer within its time",
                fix="give the part more seconds, or take fewer models",
            )
        failed, answer = ours.recv()
    except EOFError:
        process.join()
        raise InfrastructureError(
            found=f"the process of {function.__name__} ended with exit code {process.exitcode}",
            expected="an answer",
            fix="run the same candidate alone and look at what is written on standard error",
        ) from None
    finally:
        process.kill()
        process.join()
    if failed:
        raise answer
    result: Result = answer
    return result


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (False, function(*arguments))
    except Exception as error:  # whatever it is, it belongs to who asked
        answer = (True, error)
    pipe.send(answer)

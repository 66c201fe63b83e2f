"""A process for each figure, since a process that used a GPU holds on to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from validators.errors import InfrastructureError

Result = TypeVar("Result")
_ENDED = "ended"


def apart(function: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
    """Return what `function` returns, or raise what it raises, called in a process of its own that ends with it.

    Raises:
        InfrastructureError: the process died, or did not answer within the time.
    """
    result: Result
    (result,) = each_apart(_once, function, arguments, seconds=seconds)
    return result


def each_apart(function: Callable[..., Iterator[Result]], *arguments: Any, seconds: float) -> Iterator[Result]:
    """Yield what the generator `function` yields in a process of its own, each as soon as it is there.

    Raises:
        InfrastructureError: the process died, or did not answer within the time, which counts anew for each.
    """
    context = multiprocessing.get_context("spawn")  # a forked process inherits a CUDA context that it cannot use
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    named = getattr(arguments[0], "__name__", "") if function is _once else function.__name__
    try:
        while True:
            if not ours.poll(seconds):
                raise InfrastructureError(
                    found=f"no answer of {named} in {seconds:.0f} s",
                    expected="an answer within its time",
                    fix="give the part more seconds, or take fewer models",
                )
            kind, answer = ours.recv()
            if kind == _ENDED:
                break
            yield answer
    except EOFError:
        process.join()
        raise InfrastructureError(
            found=f"the process of {named} ended with exit code {process.exitcode}",
            expected="an answer",
            fix="run the same candidate alone and look at what is written on standard error",
        ) from None
    finally:
        process.kill()
        process.join()
    if answer is not None:
        raise answer


def _once(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Iterator[Result]:
    yield function(*arguments)


def _answer(pipe: Connection, function: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> None:
    try:
        for answer in function(*arguments):
            pipe.send(("one", answer))
    except Exception as error:  # whatever it is, it belongs to who asked
        pipe.send((_ENDED, error))
    else:
        pipe.send((_ENDED, None))

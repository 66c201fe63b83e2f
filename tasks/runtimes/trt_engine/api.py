"""The module that speaks to TensorRT, of two: `tensorrt` (11) and `tensorrt_rtx`, whose names are the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

Runtime = Literal["tensorrt", "tensorrt_rtx"]
RUNTIMES: tuple[Runtime, ...] = ("tensorrt", "tensorrt_rtx")
# Networks of 10 have weak types by default; ONNX Runtime's provider brings that version along.
OLDEST = {"tensorrt": 11, "tensorrt_rtx": 1}


def load_api(runtime: Runtime | None = None) -> ModuleType:
    """The named module or, without a name, `tensorrt` if there is one and else `tensorrt_rtx`.

    Raises:
        ImportError: none can be imported; the message says why not, of each.
    """
    why = []
    for name in (runtime,) if runtime else RUNTIMES:
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError where the bindings are there and the libraries are not
            why.append(f"{name}: {error}")
            continue
        if int(module.__version__.partition(".")[0]) >= OLDEST[name]:
            return module
        why.append(f"{name}: version {module.__version__}, expected {OLDEST[name]} or later")
    raise ImportError("no TensorRT: " + "; ".join(why))


def runtime_of(api: ModuleType) -> Runtime:
    """Which of the two a module is.

    >>> runtime_of(ModuleType("tensorrt_rtx"))
    'tensorrt_rtx'
    """
    return next(name for name in RUNTIMES if name == api.__name__)


def make_logger(api: ModuleType, on_message: Callable[[str, str], None]) -> Any:
    """A logger that hands on severity ("VERBOSE", "INFO", "WARNING", "ERROR", "INTERNAL_ERROR") and text of each message.

    A process has one: while a builder or a runtime lives, those of later ones are ignored.
    """

    class Logger(api.ILogger):  # type: ignore[name-defined, misc]  # a class of a module known at run time
        def __init__(self) -> None:
            api.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            on_message(severity.name, msg)

    return Logger()

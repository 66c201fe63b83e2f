"""Access to one of TensorRT's two modules, `tensorrt` (11) and `tensorrt_rtx`, which have the same interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

Runtime = Literal["tensorrt", "tensorrt_rtx"]
RUNTIMES: tuple[Runtime, ...] = ("tensorrt", "tensorrt_rtx")
# Oldest supported major versions. TensorRT 10 is weakly typed by default.
OLDEST = {"tensorrt": 11, "tensorrt_rtx": 1}


def load_api(runtime: Runtime | None = None) -> ModuleType:
    """Return the named module or, without a name, `tensorrt` if it is installed, else `tensorrt_rtx`.

    Raises:
        ImportError: none can be imported; the message gives the reason for each.
    """
    why = []
    for name in (runtime,) if runtime else RUNTIMES:
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: the bindings are installed, the libraries are not
            why.append(f"{name}: {error}")
            continue
        if int(module.__version__.partition(".")[0]) >= OLDEST[name]:
            return module
        why.append(f"{name}: version {module.__version__}, expected {OLDEST[name]} or later")
    raise ImportError("no TensorRT: " + "; ".join(why))


def runtime_of(api: ModuleType) -> Runtime:
    """Return the name of the runtime that a module belongs to.

    >>> runtime_of(ModuleType("tensorrt_rtx"))
    'tensorrt_rtx'
    """
    return next(name for name in RUNTIMES if name == api.__name__)


def make_logger(api: ModuleType, on_message: Callable[[str, str], None]) -> Any:
    """Return a logger that calls `on_message(severity, text)`.

    Severities are "VERBOSE", "INFO", "WARNING", "ERROR" and "INTERNAL_ERROR". TensorRT uses one logger per process: while a
    builder or a runtime lives, it ignores the loggers of later ones.
    """

    class Logger(api.ILogger):  # type: ignore[name-defined, misc]  # a class of a module known at run time
        def __init__(self) -> None:
            api.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            on_message(severity.name, msg)

    return Logger()

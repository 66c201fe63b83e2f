"""A session of ONNX Runtime with exactly the requested settings.

The measuring process imports this file too, so it imports only numpy and the runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort


class SessionModel:
    """A session on the processor, where no arrays are copied."""

    most_bound = sys.maxsize

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.providers: Sequence[str] = session.get_providers()

    def run(self, batch: Mapping[str, Any]) -> list[Any]:
        """Run one request on arrays by input name, and return all outputs."""
        return list(self._session.run(None, batch))

    def bound(self, batch: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a request on the memory of these arrays; each call blocks until it is done. Threads may call it at once."""
        return lambda: self._session.run(None, batch)


def options_of(session: Mapping[str, Any]) -> ort.SessionOptions:
    """Return the options of a session on the processor, without libraries of operators."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = session["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = f"ORT_ENABLE_{session['optimization'].upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in session["entries"].items():
        options.add_session_config_entry(key, value)
    return options


def load(model: Path, session: Mapping[str, Any]) -> SessionModel:
    """Open a file; `session` has the fields of `validators.records.run.SessionSettings`, libraries as paths."""
    options = options_of(session)
    for library in session["libraries"]:
        options.register_custom_ops_library(library)
    return SessionModel(ort.InferenceSession(model, options, providers=[session["provider"]]))

"""ONNX Runtime's CUDA provider: its requirements, and the device of a session."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from validators.errors import CandidateRefused, Missing
from validators.records.run import SessionSettings
from validators.target_facts import CUDA_PROVIDER


def why_missing(available: Collection[str]) -> Missing | None:
    """Return why the CUDA provider is not available here; None if it is.

    >>> why_missing(["CPUExecutionProvider"]).found
    'no CUDAExecutionProvider here'
    >>> why_missing(["CUDAExecutionProvider", "CPUExecutionProvider"])
    """
    if CUDA_PROVIDER in available:
        return None
    return Missing(
        f"no {CUDA_PROVIDER} here",
        f"ONNX Runtime with {CUDA_PROVIDER}, and a GPU",
        "install the extra `gpu` in place of `cpu`, on a machine with an NVIDIA GPU",
    )


def device_of(settings: SessionSettings) -> int:
    """Return the index of the GPU among those visible to the process."""
    return int(settings.provider_options.get("device_id", "0"))


@cache
def load_libraries() -> str:
    """Load the libraries of CUDA and cuDNN from Python packages, which are on no library search path.

    They are loaded once per process. Return the runtime's messages about missing libraries on one line; the runtime prints
    them and does not raise.
    """
    ort: Any = importlib.import_module("onnxruntime")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        ort.preload_dlls()
    return "; ".join(line for line in said.getvalue().splitlines() if line.startswith("Failed to load"))


def probe(provider: str) -> Missing | None:
    """Return why no session can be opened with a provider here, by opening one with a single Relu; None if one can.

    Raises:
        InfrastructureError: no ONNX Runtime is installed.
    """
    from onnx import TensorProto, helper, save

    from tasks.runtimes.ort import open_session

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "probe", ends[:1], ends[1:])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.onnx")
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
        try:
            with open_session(path, SessionSettings(provider, 1)):
                return None
        except CandidateRefused as error:
            return Missing(error.found, error.expected, error.fix)

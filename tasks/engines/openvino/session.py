"""OpenVINO: whether it is installed, and models opened with exactly the requested settings or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tasks.runtimes.ort import failures_refused
from tasks.runtimes.runner import ModelRunner
from validators.errors import CandidateRefused, Missing
from validators.records.run import SessionSettings
from validators.samples.datasets import TensorSpec

if TYPE_CHECKING:
    from tasks.engines.openvino.shipped.model import OpenVinoModel

DISTRIBUTION = "openvino"
NOT_INSTALLED = Missing(
    f"{DISTRIBUTION} is not installed",
    "the OpenVINO runtime",
    "install the extra `openvino`, or use candidates for ort-cpu",
)


def installed_version() -> str | None:
    """Return the version of the installed package, or None."""
    if util.find_spec(DISTRIBUTION) is None:
        return None
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def why_missing() -> Missing | None:
    """Return why no model can be opened here; None if one can."""
    if installed_version() is None:
        return NOT_INSTALLED
    try:
        from tasks.engines.openvino.shipped.model import core
    except (ImportError, OSError) as error:
        return Missing(f"{DISTRIBUTION} does not load: {error}", "a complete installation", "install it again")
    if "CPU" not in core().available_devices:
        return Missing(
            f"{DISTRIBUTION} {installed_version()} has no device for this processor",
            "a processor that it supports: x86-64 or ARM",
            "use candidates for ort-cpu",
        )
    return None


@contextmanager
def open_model(model: Path, settings: SessionSettings) -> Iterator[ModelRunner]:
    """Compile an ONNX file, or OpenVINO's own `.xml`, with these settings, and release it at the end of the block.

    Raises:
        CandidateRefused: OpenVINO is missing, or the model has custom operators (`unsupported`); or it does not load the file
            (`invalid`).
    """
    if missing := why_missing():
        raise missing.refused()
    if settings.libraries:
        raise CandidateRefused(
            kind="unsupported",
            found=f"custom operators of {settings.libraries[0].path.name} for OpenVINO",
            expected="a model without operators of ONNX Runtime libraries",
            fix="use candidates for ort-cpu",
        )
    from tasks.engines.openvino.shipped.model import OpenVinoModel, message_of

    try:
        compiled = OpenVinoModel(model, settings.threads, settings.provider_options)
    except Exception as error:  # the bindings raise RuntimeError, TypeError and ValueError alike
        raise CandidateRefused(
            kind="invalid",
            found=f"OpenVINO {installed_version()} does not load {model.name}: {message_of(error)}",
            expected="a model that OpenVINO compiles",
            fix="use candidates for ort-cpu, or a newer OpenVINO",
        ) from error
    yield ModelRunner(
        compiled,
        (_spec(port, port.any_name) for port in compiled.inputs),
        # A port has the names of all tensors that are equal to it; the file says which of them is the output.
        (_spec(port, name) for port, name in zip(compiled.outputs, _output_names(model, compiled), strict=True)),
        failures_refused_here,
    )


def _output_names(model: Path, compiled: OpenVinoModel) -> list[str]:
    if model.suffix != ".onnx":
        return [port.any_name for port in compiled.outputs]
    return [value.name for value in onnx.load(model, load_external_data=False).graph.output]


def failures_refused_here() -> AbstractContextManager[None]:
    """Return a block in which failures of OpenVINO are raised as CandidateRefused."""
    from tasks.engines.openvino.shipped.model import message_of

    return failures_refused("OpenVINO", message_of)


def _spec(port: Any, name: str) -> TensorSpec:
    dims = tuple(axis.get_length() if axis.is_static else None for axis in port.partial_shape)
    kind = port.element_type
    return TensorSpec(name, "str" if kind.to_string() == "string" else str(kind.to_dtype()), dims)

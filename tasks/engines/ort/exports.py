"""Export of versions that ONNX Runtime runs, for Triton's backend `onnxruntime`.

| approved setting | in `config.pbtxt` |
|---|---|
| threads inside an operator | parameter `intra_op_thread_count`; sequential execution is `execution_mode` 0 |
| optimization of the graph | `optimization.graph.level`: 0 for all, -1 for basic |
| session entries | only `session.use_device_allocator_for_initializers`: the backend passes on no other |
| options of the CUDA provider | `gpu_execution_accelerator`; the device number is that of the instance |
| a library of custom operators | `model_operations.op_library_filename` |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.serving.exporter import Exporter
from tasks.serving.prototext import Fields
from tasks.serving.triton import TritonBackend, batch_of, parameters_of
from validators.errors import JobError
from validators.target_facts import CUDA_PROVIDER

# Session entries that the ONNX Runtime backend reads.
ENTRIES = frozenset({"session.use_device_allocator_for_initializers"})


def _session(manifest: Mapping[str, Any], place: Path) -> tuple[Fields, tuple[str, ...]]:
    """Return the approved session settings as fields of the ONNX Runtime backend, and notes on those it does not support."""
    settings = manifest["session"]
    notes = [
        f"the entry {key}={value} of the session: the backend hands none such on"
        for key, value in settings["entries"].items()
        if key not in ENTRIES
    ]
    level = {"all": 0, "basic": -1}[settings["optimization"]]
    parameters = {"intra_op_thread_count": str(settings["threads"]), "execution_mode": "0"}
    parameters |= {key: value for key, value in settings["entries"].items() if key in ENTRIES}
    fields: Fields = (
        ("optimization", (("graph", (("level", level),)), *_accelerators(settings))),
        *parameters_of(parameters),
    )
    libraries = [_library(library, place) for library in manifest["libraries"]]
    if libraries:
        fields += (("model_operations", tuple(("op_library_filename", path) for path in libraries)),)
        notes.append(f"where the server finds {', '.join(libraries)}: the path is that of the machine which wrote this")
    return fields, tuple(notes)


def _library(library: Mapping[str, str], place: Path) -> str:
    if "file" not in library:
        raise JobError(
            found=f"custom operators of the Python package {library['package']}",
            expected="operators of a shared library file, which is exported with the model",
            fix="name the library's file in `operator_libraries` of the job, and promote a variant again",
        )
    return str(PurePosixPath(place.absolute()) / "1" / library["file"])


def _accelerators(settings: Mapping[str, Any]) -> Fields:
    """Return the field with the options of the CUDA provider, if there are any."""
    options = {key: value for key, value in settings.get("provider_options", {}).items() if key != "device_id"}
    if settings["provider"] != CUDA_PROVIDER or not options:
        return ()
    parameters: Fields = tuple(("parameters", (("key", key), ("value", value))) for key, value in options.items())
    return (("execution_accelerators", (("gpu_execution_accelerator", (("name", "cuda"), *parameters)),)),)


BACKEND = TritonBackend(name="onnxruntime", platform="onnxruntime_onnx", settings=_session, batch=batch_of)
EXPORTS = {"--triton": Exporter(BACKEND.write, in_repository=True)}

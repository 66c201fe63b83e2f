"""Export of a version for Triton Inference Server: `config.pbtxt`, and the files of the folder `1` beside it.

Fields are those of `model_config.proto` (github.com/triton-inference-server/common). The README and source of
`onnxruntime_backend` and `tensorrt_backend`, as of July 2026, define which fields each backend reads (`openvino.py` for
`openvino_backend`):

| approved setting | in `config.pbtxt` |
|---|---|
| threads inside an operator | parameter `intra_op_thread_count`; sequential execution is `execution_mode` 0 |
| optimization of the graph | `optimization.graph.level`: 0 for all, -1 for basic |
| session entries | only `session.use_device_allocator_for_initializers`: the backend passes on no other |
| options of the CUDA provider | `gpu_execution_accelerator`; the device number is that of the instance |
| OpenVINO | the backend `openvino`, with `parameters` |
| a library of custom operators | `model_operations.op_library_filename` |

If inputs and outputs are given, neither backend auto-completes them, and ONNX Runtime's adds no dynamic batching either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from tasks.serving.openvino import check_for_triton, triton_parameters
from tasks.serving.prototext import Fields, Word, prototext
from tasks.serving.sections import unchecked_device
from validators.errors import JobError
from validators.graph.source_form import declared_shape
from validators.plain_text import plain
from validators.samples.datasets import TensorSpec
from validators.target_facts import CUDA_PROVIDER, OPENVINO
from validators.targets import facts_of_provider

ONNX, ENGINE = "model.onnx", "engine.plan"
# numpy dtype name to `DataType` of model_config.proto.
TYPES = {
    "bool": "TYPE_BOOL",
    **{f"uint{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "TYPE_BF16",
    "object": "TYPE_STRING",
}
# Defaults for keys that manifests of older releases lack.
ABSENT: dict[str, Any] = {
    "engine": None,
    "libraries": [],
    "batch_sizes": [],
    "runtime": "onnxruntime",
    "device": "one that is not told",
}
# Session entries that the ONNX Runtime backend reads.
ENTRIES = frozenset({"session.use_device_allocator_for_initializers"})


@dataclass(frozen=True)
class TritonModel:
    """A model of a repository: the text of `config.pbtxt`, and the files of the folder `1`.

    `files` maps each name there to a file of the variant. `notes` lists the parts of the approval that the configuration cannot
    express.
    """

    config: str
    files: Mapping[str, str]
    notes: tuple[str, ...]


def triton_model(
    name: str,
    manifest: Mapping[str, Any],
    tensors: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    place: Path,
    *,
    about: str = "",
    max_batch: int | None = None,
) -> TritonModel:
    """Return the Triton model `name` of a manifest, for the folder `place` in a repository.

    `tensors` are the inputs and outputs of its file. `max_batch` overrides the largest measured batch size. `about` is a line
    for the top of the file.

    Raises:
        JobError: Triton does not support a tensor's type, custom operators come from a Python package, or `max_batch` is given
            although axis 0 is not the sample axis of all tensors.
    """
    manifest = ABSENT | dict(manifest)
    engine = manifest["engine"]
    session = manifest["session"]
    backend = "tensorrt" if engine else "openvino" if session["provider"] == OPENVINO else "onnxruntime"
    batch, notes = _batch(manifest, tensors, max_batch)
    on_gpu = facts_of_provider(session["provider"]).on_gpu
    device = session.get("provider_options", {}).get("device_id", "0")
    kind: Fields = (("count", 1), ("kind", Word("KIND_GPU" if on_gpu else "KIND_CPU")))
    group = (*kind, ("gpus", [int(device)])) if on_gpu else kind
    sides = zip(("input", "output"), tensors, strict=True)
    fields: Fields = (
        ("name", name),
        *((("platform", "tensorrt_plan" if engine else "onnxruntime_onnx"),) if backend != "openvino" else ()),
        ("backend", backend),
        ("default_model_filename", "model.plan" if engine else ONNX),
        ("max_batch_size", batch),
        *((side, _tensor(spec, batch)) for side, specs in sides for spec in specs),
        ("version_policy", (("latest", (("num_versions", 1),)),)),
        ("instance_group", group),
    )
    runtime = f"{manifest['runtime']} {manifest['runtime_version']}"
    notes += (f"the runtime is Triton's own; the variant was approved with {runtime}",)
    notes += unchecked_device(manifest)
    if engine:
        files = {"model.plan": ENGINE}
        notes += ("an engine runs on the TensorRT, the GPU and the driver that it was built with, and nowhere else",)
        if batch > 1:
            notes += (
                "Triton adds dynamic batching to an engine unless it is started with --disable-auto-complete-config",
            )
    else:
        files = {file: file for file in manifest["files"]}
        if backend == "openvino":
            parameters, unsaid = triton_parameters(session)
            settings = _parameters(parameters)
        else:
            settings, unsaid = _session(manifest, place)
        fields, notes = fields + settings, unsaid + notes
    top = [line for line in (about, *(f"Not carried over: {note}." for note in notes)) if line]
    comments = "".join(f"# {' '.join(plain(line).split())}\n" for line in top)
    return TritonModel(comments + prototext(fields), files, notes)


def check_served(manifest: Mapping[str, Any]) -> None:
    """Check that Triton has a backend for a version.

    Raises:
        JobError: it has none.
    """
    if unserved := facts_of_provider(manifest["session"]["provider"]).unserved:
        raise JobError(
            found=unserved,
            expected="a model that a backend of Triton reads: ONNX, or an engine",
            fix="serve the version with MLflow, or promote one for another target",
        )


def tensors_of(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs of an ONNX file.

    Raises:
        JobError: a tensor has no shape; Triton requires its number of axes.
    """
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    return tuple(map(_spec, inputs)), tuple(map(_spec, graph.output))


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        raise JobError(
            found=f"the tensor {value.name!r} has no shape",
            expected="a known number of axes",
            fix="export the model with shapes, and quantize it again",
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return TensorSpec(value.name, dtype, declared_shape(kind.shape))


def _batch(
    manifest: Mapping[str, Any], tensors: tuple[Sequence[TensorSpec], Sequence[TensorSpec]], asked: int | None
) -> tuple[int, tuple[str, ...]]:
    """Return `max_batch_size` with notes; 0 unless every tensor has the same named dynamic axis, the sample axis, as axis 0."""
    if manifest["session"]["provider"] == OPENVINO:
        check_for_triton(tensors[0], asked)
        return 0, ()
    firsts = {spec.shape[0] if spec.shape else None for side in tensors for spec in side}
    shared = len(firsts) == 1 and isinstance(next(iter(firsts)), str)
    profile = manifest["engine"]["build"]["profile"].values() if manifest["engine"] else ()
    # Triton sends batches of any size from 1 to the largest.
    shared = shared and all(shapes["minimum"][0] <= 1 for shapes in profile)
    if not shared:
        if asked is not None:
            raise JobError(
                found=f"--max-batch {asked}, but axis 0 is not dynamic and common to all inputs and outputs",
                expected="a model that accepts batches of any size",
                fix="remove --max-batch; requests then have the shapes of the model",
            )
        return 0, ()
    most = min((shapes["maximum"][0] for shapes in profile), default=None)
    measured = max(manifest["batch_sizes"] or (0,))
    size = asked or measured or (most or 0)
    if most is not None and size > most:
        return most, (f"batches of up to {most} samples are taken, not {size}: the engine was built for no more",)
    if size == 0:
        return 0, ("which batch sizes were measured is not told; --max-batch sets one",)
    if size > measured:
        told = f"up to {measured} were measured" if measured else "none is told to have been measured"
        return size, (f"batches of up to {size} samples are taken; {told}",)
    return size, ()


def _tensor(spec: TensorSpec, batch: int) -> Fields:
    if spec.dtype not in TYPES:
        raise JobError(
            found=f"{spec}",
            expected=f"one of the types {', '.join(TYPES)}",
            fix="do not serve this model with Triton, which has no other types",
        )
    axes = spec.shape[1:] if batch else spec.shape
    dims = [axis if isinstance(axis, int) else -1 for axis in axes]
    fields: Fields = (("name", spec.name), ("data_type", Word(TYPES[spec.dtype])), ("dims", dims or [1]))
    # Triton does not support scalars.
    return fields if dims or not batch else (*fields, ("reshape", (("shape", []),)))


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
        *_parameters(parameters),
    )
    libraries = [_library(library, place) for library in manifest["libraries"]]
    if libraries:
        fields += (("model_operations", tuple(("op_library_filename", path) for path in libraries)),)
        notes.append(f"where the server finds {', '.join(libraries)}: the path is that of the machine which wrote this")
    return fields, tuple(notes)


def _parameters(values: Mapping[str, str]) -> Fields:
    return tuple(("parameters", (("key", key), ("value", (("string_value", value),)))) for key, value in values.items())


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

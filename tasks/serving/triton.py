"""Export of a version for Triton Inference Server: `config.pbtxt`, and the files of the folder `1` beside it.

Fields are those of `model_config.proto` (github.com/triton-inference-server/common). The README and source of
`onnxruntime_backend` and `tensorrt_backend`, as of July 2026, define which fields each backend reads; `exports.py` in the room
of an engine has its backend.

If inputs and outputs are given, neither backend auto-completes them, and ONNX Runtime's adds no dynamic batching either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tasks.serving.exporter import RegisteredVersion, Written
from tasks.serving.prototext import Fields, Word, prototext
from tasks.serving.sections import unchecked_device
from validators.errors import JobError
from validators.graph.source_form import declared_shape
from validators.plain_text import plain
from validators.samples.datasets import TensorSpec
from validators.targets import facts_of_provider

ONNX = "model.onnx"
# The inputs and the outputs of a model.
Sides = tuple[Sequence[TensorSpec], Sequence[TensorSpec]]
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


@dataclass(frozen=True, kw_only=True)
class TritonBackend:
    """A backend of Triton for an engine's versions: its name, the platform if it has one, and the file of the model.

    `files` maps names in the folder `1` to the variant's; by default all have their own names. `settings` returns the approved
    settings of a manifest as fields, for that folder of the repository, and notes on those that the backend does not read.
    `batch` returns `max_batch_size` with notes, given the manifest, the inputs and outputs, and what was asked for.
    """

    name: str
    platform: str = ""
    model_file: str = ONNX
    files: Mapping[str, str] | None = None
    settings: Callable[[Mapping[str, Any], Path], tuple[Fields, tuple[str, ...]]] = lambda *_: ((), ())
    batch: Callable[[Mapping[str, Any], Sides, int | None], tuple[int, tuple[str, ...]]]

    def write(self, version: RegisteredVersion, folder: Path, max_batch: int | None) -> Written:
        """Return the content of the model's folder in a repository; see `Exporter`.

        Raises:
            JobError: the version is no ONNX file.
        """
        if not (version.variant / ONNX).exists():
            raise JobError(
                found=f"{version.uri}, whose file is not {ONNX}",
                expected="a version with an ONNX file: its tensors are read from it",
                fix="export it with --out, or with --ovms where OpenVINO runs it",
            )
        tensors = tensors_of(version.variant / ONNX)
        about = f"Written by quantgate: {version.candidate}, {version.uri}, sha256 {version.digest}"
        variant, told = version.variant, version.manifest
        return triton_model(version.name, variant, told, tensors, folder, self, about=about, max_batch=max_batch)


def triton_model(
    name: str,
    variant: Path,
    manifest: Mapping[str, Any],
    tensors: Sides,
    place: Path,
    backend: TritonBackend,
    *,
    about: str = "",
    max_batch: int | None = None,
) -> Written:
    """Return the Triton model `name` of the folder `variant` and its manifest, for the folder `place` in a repository.

    `tensors` are the inputs and outputs of its file. `max_batch` overrides the largest measured batch size. `about` is a line
    for the top of the file.

    Raises:
        JobError: Triton does not support a tensor's type, custom operators come from a Python package, or `max_batch` is given
            although axis 0 is not the sample axis of all tensors.
    """
    manifest = ABSENT | dict(manifest)
    session = manifest["session"]
    batch, notes = backend.batch(manifest, tensors, max_batch)
    settings, unsaid = backend.settings(manifest, place)
    on_gpu = facts_of_provider(session["provider"]).on_gpu
    device = session.get("provider_options", {}).get("device_id", "0")
    kind: Fields = (("count", 1), ("kind", Word("KIND_GPU" if on_gpu else "KIND_CPU")))
    group = (*kind, ("gpus", [int(device)])) if on_gpu else kind
    sides = zip(("input", "output"), tensors, strict=True)
    fields: Fields = (
        ("name", name),
        *((("platform", backend.platform),) if backend.platform else ()),
        ("backend", backend.name),
        ("default_model_filename", backend.model_file),
        ("max_batch_size", batch),
        *((side, _tensor(spec, batch)) for side, specs in sides for spec in specs),
        ("version_policy", (("latest", (("num_versions", 1),)),)),
        ("instance_group", group),
        *settings,
    )
    runtime = f"{manifest['runtime']} {manifest['runtime_version']}"
    told = f"the runtime is Triton's own; the variant was approved with {runtime}"
    notes = (*unsaid, *notes, told, *unchecked_device(manifest))
    files = {file: file for file in manifest["files"]} if backend.files is None else backend.files
    top = [line for line in (about, *(f"Not carried over: {note}." for note in notes)) if line]
    comments = "".join(f"# {' '.join(plain(line).split())}\n" for line in top)
    contents = {f"1/{new}": variant / old for new, old in files.items()}
    return Written({**contents, "config.pbtxt": comments + prototext(fields)}, notes)


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


def batch_of(manifest: Mapping[str, Any], tensors: Sides, asked: int | None) -> tuple[int, tuple[str, ...]]:
    """Return `max_batch_size` with notes; 0 unless every tensor has the same named dynamic axis, the sample axis, as axis 0."""
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


def parameters_of(values: Mapping[str, str]) -> Fields:
    """Return the parameters of a backend as fields."""
    return tuple(("parameters", (("key", key), ("value", (("string_value", value),)))) for key, value in values.items())

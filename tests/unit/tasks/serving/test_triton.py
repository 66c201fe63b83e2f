"""What Triton would read of an exported version: by its own `model_config.proto`, and by the rules of its backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from google.protobuf import text_format
from onnx import TensorProto, helper
from triton_proto import model_config, read_config

from tasks.engines.ort import exports as ort
from tasks.engines.tensorrt import exports as tensorrt
from tasks.serving.exporter import Written
from tasks.serving.triton import TYPES, tensors_of, triton_model
from validators.errors import JobError
from validators.samples.datasets import TensorSpec

PLACE, VARIANT = Path("/models/m"), Path("/variant")
X, Y = TensorSpec("x", "float32", ("batch", 64)), TensorSpec("logits", "float32", ("batch", 4))
ENGINE = {"build": {"profile": {"x": {"minimum": [1, 64], "optimum": [4, 64], "maximum": [16, 64]}}}}


def manifest(provider: str = "CPUExecutionProvider", **changes: Any) -> dict[str, Any]:
    """As a promotion writes it, as far as it is read here."""
    session = {"provider": provider, "threads": 3, "optimization": "all", "entries": {}, "provider_options": {}}
    session |= changes.pop("session", {})
    return {
        "files": {"model.onnx": "0", "model.onnx.data": "1"},
        "session": session,
        "libraries": [],
        "plugin": None,
        "runtime": "onnxruntime",
        "runtime_version": "1.31.1",
        "device": "a processor",
        "engine": None,
        "batch_sizes": [1, 8],
    } | changes


def text_of(model: Written) -> str:
    return str(model.contents["config.pbtxt"])


def files_of(model: Written) -> dict[str, Path | str]:
    return {name: content for name, content in model.contents.items() if name != "config.pbtxt"}


def made(
    told: dict[str, Any], inputs: tuple[TensorSpec, ...] = (X,), outputs: tuple[TensorSpec, ...] = (Y,), **more: Any
) -> tuple[Any, Written]:
    """The configuration as Triton's own class reads it, and the model."""
    backend = tensorrt.BACKEND if told.get("engine") else ort.BACKEND
    model = triton_model("m", VARIANT, told, (inputs, outputs), PLACE, backend, **more)
    return read_config(text_of(model)), model


def test_the_reader_is_triton_s_own() -> None:
    """Fields that a later test would not miss are there, and what is not there is an error."""
    names = model_config().DESCRIPTOR.fields_by_name
    assert names["max_batch_size"].number == 4 and names["backend"].number == 17
    for wrong in ('nme: "m"', 'max_batch_size: "8"', "input { data_type: TYPE_FLOAT }"):
        with pytest.raises(text_format.ParseError):
            read_config(wrong)


def test_a_variant_for_the_processor() -> None:
    config, model = made(manifest())
    assert (config.name, config.backend, config.platform) == ("m", "onnxruntime", "onnxruntime_onnx")
    assert config.max_batch_size == 8, "the largest that was measured"
    assert [(one.name, one.data_type, list(one.dims)) for one in config.input] == [("x", 11, [64])]
    assert [(one.name, one.data_type, list(one.dims)) for one in config.output] == [("logits", 11, [4])]
    (group,) = config.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (group.KIND_CPU, 1, [])
    assert {key: one.string_value for key, one in config.parameters.items()} == {
        "intra_op_thread_count": "3",
        "execution_mode": "0",
    }
    assert config.optimization.graph.level == 0 and config.WhichOneof("scheduling_choice") is None
    assert config.version_policy.latest.num_versions == 1
    assert files_of(model) == {"1/model.onnx": VARIANT / "model.onnx", "1/model.onnx.data": VARIANT / "model.onnx.data"}


def test_what_the_backend_does_not_take_is_named() -> None:
    """In the notes and in the file; the one entry that it takes is there."""
    kept = "session.use_device_allocator_for_initializers"
    entries = {"optimization.disable_specified_optimizers": "SkipLayerNormFusion", kept: "1"}
    config, model = made(manifest(session={"entries": entries, "optimization": "basic"}))
    assert config.optimization.graph.level == -1 and config.parameters[kept].string_value == "1"
    assert model.notes[0].startswith("the entry optimization.disable_specified_optimizers=SkipLayerNormFusion")
    assert not any(kept in note for note in model.notes)
    comments = [line for line in text_of(model).splitlines() if line.startswith("# Not carried over: ")]
    assert comments == [f"# Not carried over: {note}." for note in model.notes]
    assert any("onnxruntime 1.31.1" in note for note in model.notes) and any(
        "a processor" in note for note in model.notes
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "dims"),
    [
        ((X,), (TensorSpec("y", "float32", ("rows", 4)),), ([-1, 64], [-1, 4])),
        ((X,), (TensorSpec("y", "float32", (None, 4)),), ([-1, 64], [-1, 4])),
        ((TensorSpec("x", "float32", (1, 64)),), (TensorSpec("y", "float32", (1, 4)),), ([1, 64], [1, 4])),
        ((X,), (TensorSpec("y", "float32", ()),), ([-1, 64], [1])),
    ],
    ids=["another axis", "an axis without a name", "fixed", "a scalar"],
)
def test_triton_makes_no_batches_without_a_shared_sample_axis(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], dims: tuple[list[int], list[int]]
) -> None:
    config, _ = made(manifest(), inputs, outputs)
    assert config.max_batch_size == 0 and (list(config.input[0].dims), list(config.output[0].dims)) == dims
    with pytest.raises(JobError, match="axis 0 is not dynamic"):
        triton_model("m", VARIANT, manifest(), (inputs, outputs), PLACE, ort.BACKEND, max_batch=4)


def test_other_dynamic_axes_and_tensors_of_samples_alone() -> None:
    """A tensor of one value a sample has no axes left, which Triton cannot say but by a reshape."""
    ids, length = TensorSpec("ids", "int64", ("batch", "length")), TensorSpec("n", "int32", ("batch",))
    config, _ = made(manifest(), (ids, length))
    assert [list(one.dims) for one in config.input] == [[-1], [1]]
    assert [one.HasField("reshape") for one in config.input] == [False, True]
    assert list(config.input[1].reshape.shape) == []


def test_a_batch_size_that_was_not_measured_is_said() -> None:
    config, model = made(manifest(), max_batch=32)
    assert config.max_batch_size == 32 and any("up to 8 were measured" in note for note in model.notes)
    config, model = made(manifest(batch_sizes=[]))
    assert config.max_batch_size == 0 and list(config.input[0].dims) == [-1, 64]
    assert any("--max-batch" in note for note in model.notes)


def test_a_manifest_of_the_first_format_is_read() -> None:
    """It lacks what later ones have."""
    told = {key: manifest()[key] for key in ("files", "runtime_version")}
    told["session"] = {"provider": "CPUExecutionProvider", "threads": 1, "optimization": "all", "entries": {}}
    config, _ = made(told, max_batch=2)
    assert config.max_batch_size == 2 and config.parameters["intra_op_thread_count"].string_value == "1"


def test_an_engine() -> None:
    """Of the batch sizes that it was built for, whatever was measured or asked; the device is the GPU."""
    told = manifest("TensorRT", engine=ENGINE, runtime="tensorrt", runtime_version="11.4", batch_sizes=[4])
    config, model = made(told, max_batch=64)
    assert (config.backend, config.platform, config.max_batch_size) == ("tensorrt", "tensorrt_plan", 16)
    assert any("up to 16 samples are taken, not 64" in note for note in model.notes)
    assert (
        files_of(model) == {"1/model.plan": VARIANT / "engine.plan"} and config.default_model_filename == "model.plan"
    )
    (group,) = config.instance_group
    assert (group.kind, list(group.gpus)) == (group.KIND_GPU, [0])
    assert not config.parameters and any("tensorrt 11.4" in note for note in model.notes)
    fixed = {"build": {"profile": {"x": {"minimum": [4, 64], "optimum": [4, 64], "maximum": [4, 64]}}}}
    assert made(manifest("TensorRT", engine=fixed))[0].max_batch_size == 0, "it takes no batch of 1"


def test_the_cuda_provider_with_its_options() -> None:
    options = {"device_id": "1", "cudnn_conv_use_max_workspace": "0"}
    config, _ = made(manifest("CUDAExecutionProvider", session={"provider_options": options}))
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"cudnn_conv_use_max_workspace": "0"})
    assert list(config.instance_group[0].gpus) == [1]


def test_custom_operators() -> None:
    config, model = made(manifest(libraries=[{"file": "ours.so", "sha256": "0"}]))
    assert list(config.model_operations.op_library_filename) == ["/models/m/1/ours.so"]
    assert any("/models/m/1/ours.so" in note for note in model.notes)
    with pytest.raises(JobError, match="custom operators of the Python package ours"):
        triton_model("m", VARIANT, manifest(libraries=[{"package": "ours"}]), ((X,), (Y,)), PLACE, ort.BACKEND)


@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_every_type_is_one_of_triton_s(dtype: str) -> None:
    config, _ = made(manifest(), (TensorSpec("x", dtype, ("batch", 2)),))
    assert config.input[0].data_type > 0


def test_a_type_that_triton_has_not_is_refused() -> None:
    with pytest.raises(JobError, match="float8_e4m3fn"):
        triton_model(
            "m", VARIANT, manifest(), ((TensorSpec("x", "float8_e4m3fn", ("batch", 2)),), (Y,)), PLACE, ort.BACKEND
        )


def test_names_of_others_stay_what_they_are() -> None:
    """As strings of the text format, and in comments on one line."""
    name = 'a"} max_batch_size: 99 {"\n\\\t\N{LATIN SMALL LETTER E WITH ACUTE}\N{SNOWMAN}'
    config, _ = made(manifest(), (TensorSpec(name, "float32", ("batch", 2)),), about=f"x\ny: {name}")
    assert config.input[0].name == name and config.max_batch_size == 8 and config.name == "m"


def test_the_tensors_of_a_file(tiny: Tiny, tmp_path: Path) -> None:
    """With the names of dynamic axes, types by numpy's name, and without weights that are listed as inputs."""
    inputs, outputs = tensors_of(tiny.model)
    assert (inputs, outputs) == ((X,), (Y,))
    model = onnx.load(tiny.model)
    weight = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims))
    model.graph.input.append(helper.make_tensor_value_info("text", TensorProto.STRING, [None, 3]))
    onnx.save(model, tmp_path / "m.onnx")
    assert tensors_of(tmp_path / "m.onnx")[0] == (X, TensorSpec("text", "object", (None, 3)))
    assert TYPES[np.dtype(object).name] == "TYPE_STRING"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(JobError, match="'logits' has no shape"):
        tensors_of(tmp_path / "m.onnx")

"""What servers of OpenVINO would read of an exported version: documented fields, and options that OpenVINO itself takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, tiny_samples
from jsonschema import Draft202012Validator
from triton_proto import read_config

from tasks.engines.openvino.exports import BACKEND, EXPORTS, model_server_config
from tasks.engines.variants import session_settings
from tasks.runtimes.runner import open_runner
from tasks.serving.exporter import exporter_of
from tasks.serving.triton import triton_model
from validators.errors import JobError
from validators.job.candidate_name import decode
from validators.samples.datasets import TensorSpec

X, Y = TensorSpec("x", "float32", ("batch", 64)), TensorSpec("logits", "float32", ("batch", 4))
# The keys of a model in `config.json` that quantgate writes, as the server's parameters document them; it refuses any other key
# than those that it knows.
MODEL = {
    "type": "object",
    "required": ["name", "base_path"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "base_path": {"type": "string"},
        "target_device": {"enum": ["CPU", "GPU", "NPU"]},
        "plugin_config": {"type": "object", "additionalProperties": {"type": ["string", "boolean", "number"]}},
    },
}
SCHEMA = {
    "type": "object",
    "required": ["model_config_list"],
    "additionalProperties": False,
    "properties": {
        "model_config_list": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["config"],
                "additionalProperties": False,
                "properties": {"config": MODEL},
            },
        }
    },
}


def manifest(candidate: str = "int8-static-mse-pc@openvino", **changes: Any) -> dict[str, Any]:
    """As a promotion writes it, as far as it is read here."""
    settings = session_settings(decode(candidate), 1)
    session = {"provider": settings.provider, "threads": 1, "provider_options": settings.provider_options}
    return {
        "files": {"model.onnx": "0"},
        "session": session,
        "runtime": "openvino",
        "runtime_version": "2026.4.1",
        "device": "a processor",
        "batch_sizes": [1, 8],
    } | changes


def test_model_server_config_loads_in_openvino(tiny: Tiny, tmp_path: Path) -> None:
    """The layout and options of `config.json`, followed as the server does, answer as the approved session."""
    import openvino as ov

    text, notes = model_server_config("tiny_model", manifest())
    document = json.loads(text)
    Draft202012Validator(SCHEMA).validate(document)
    assert any("openvino 2026.4.1" in note for note in notes) and any("a processor" in note for note in notes)
    (config,) = (one["config"] for one in document["model_config_list"])
    version = tmp_path / config["base_path"] / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(tiny.model.read_bytes())
    compiled = ov.Core().compile_model(version / "model.onnx", config["target_device"], config["plugin_config"])
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    x = tiny_samples(5, 3)["x"]
    with open_runner(tiny.model, session_settings(decode("int8-static-mse-pc@openvino"), 1)) as runner:
        np.testing.assert_array_equal(compiled({"x": x})["logits"], runner.run({"x": x}, ["logits"])[0])


def test_model_server_refuses_what_another_runtime_runs() -> None:
    told = manifest(session={"provider": "CPUExecutionProvider", "threads": 1}, runtime="onnxruntime")
    for changed in (told, manifest(session={"provider": "TensorRT"}, runtime="tensorrt")):
        with pytest.raises(JobError, match=f"approved with {changed['runtime']}") as caught:
            exporter_of("--ovms", changed)
        assert (
            "one of openvino for --ovms" in caught.value.expected
            and caught.value.fix == "export it with --triton or --out"
        )
    assert exporter_of("--ovms", manifest()) is EXPORTS["--ovms"]


def test_triton_takes_batches_of_any_size_and_bfloat16() -> None:
    """Its backend takes no batch below `max_batch_size`, and reads bfloat16 under another name."""
    for candidate, expected in (("bf16@openvino", "YES"), ("fp32-fused@openvino", None)):
        model = triton_model("m", Path("/variant"), manifest(candidate), ((X,), (Y,)), Path("/models/m"), BACKEND)
        config = read_config(str(model.contents["config.pbtxt"]))
        assert config.backend == "openvino" and config.default_model_filename == "model.onnx" and not config.platform
        assert config.max_batch_size == 0 and list(config.input[0].dims) == [-1, 64]
        told = {key: value.string_value for key, value in config.parameters.items()}
        assert told.pop("HINT_BF16", None) == expected
        assert told == {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
        assert any("computes in bfloat16" in note for note in model.notes) == (expected is None)


@pytest.mark.parametrize(
    ("inputs", "max_batch", "words"),
    [((X,), 4, "--max-batch 4 for OpenVINO"), ((X, TensorSpec("rate", "int64", ())), None, "'rate' is a scalar")],
)
def test_triton_refuses_what_its_openvino_does_not_serve(
    inputs: tuple[TensorSpec, ...], max_batch: int | None, words: str
) -> None:
    with pytest.raises(JobError, match=words):
        triton_model("m", Path("/variant"), manifest(), (inputs, (Y,)), Path("/models/m"), BACKEND, max_batch=max_batch)

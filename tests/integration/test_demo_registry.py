"""A demo is registered once, as its user would have registered it."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.demo.built import Demo
from tasks.demo.registry import register
from tasks.demo.splits import save_samples
from tasks.registry.mlflow_registry import connect


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No telemetry, and a working folder of its own, so that a stray file shows."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield
    assert list((tmp_path / "work").iterdir()) == []


def tiny_text(folder: Path) -> Demo:
    names = ["input_ids", "attention_mask"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("ReduceMean", ["embedded", "axis"], ["logits"], keepdims=0),
    ]
    initializers = [
        numpy_helper.from_array(np.ones((9, 2), np.float32), "table"),
        numpy_helper.from_array(np.array([1]), "axis"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    save_samples(folder / "samples.npz", {name: np.ones((4, 5), np.int64) for name in names})
    digest = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
    data = folder / "samples.npz"
    return Demo("tiny-text", folder / "model.onnx", data, data, digest, {"fp32_accuracy": 0.5})


def test_the_text_demo_is_registered_once(tmp_path: Path) -> None:
    from mlflow.artifacts import download_artifacts

    built, uri = tiny_text(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert register(built, uri, "text") == "models:/tiny-text/1"
    assert register(built, uri, "text") == "models:/tiny-text/1"
    other = replace(built, digest="0" * 64)
    assert register(other, uri, "text") == "models:/tiny-text/2"
    assert register(built, uri, "text") == "models:/tiny-text/1"
    with connect(uri) as client:
        assert {int(found.version) for found in client.search_model_versions("name = 'tiny-text'")} == {1, 2}
        folder = Path(download_artifacts("models:/tiny-text/1", dst_path=str(tmp_path / "down")))
    assert hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest() == built.digest
    assert str(client.get_experiment_by_name("quantgate demo").artifact_location) == (tmp_path / "mlartifacts").as_uri()


@pytest.mark.slow
def test_the_image_demo_is_a_program_with_a_dynamic_batch(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from tasks.demo.efficientnet import EfficientNetLite0

    torch.manual_seed(0)
    model = EfficientNetLite0(10).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    images = np.random.default_rng(0).normal(size=(4, 3, 96, 96)).astype(np.float32)
    save_samples(tmp_path / "samples.npz", {"image": images, "label": np.arange(4)})
    data = tmp_path / "samples.npz"
    built = Demo("tiny-image", tmp_path / "model.safetensors", data, data, "1" * 64, {})
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert register(built, uri, "image") == "models:/tiny-image/1"
    assert register(built, uri, "image") == "models:/tiny-image/1"

    (program,) = (tmp_path / "mlartifacts").rglob("*.pt2")
    with warnings.catch_warnings():
        # torch 2.13 copies its own tree specifications in a way that it has deprecated itself.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        converted = torch.onnx.export(torch.export.load(program), dynamo=True, opset_version=21, verbose=False)
    assert converted is not None
    (only,) = converted.model_proto.graph.input
    batch, *rest = only.type.tensor_type.shape.dim
    assert only.name == "image" and batch.dim_param and [axis.dim_value for axis in rest] == [3, 96, 96]

"""A small real model with real structure, and the data that it is right on: what most tests run on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.engines.ort.pairs import PAIRS
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from validators.samples.datasets import TensorSpec, load_samples

FEATURES, HIDDEN, CLASSES = 64, 128, 4
SYSTEM = Path(__file__).parent / "system"
# Files of several minutes, which run first: begun last, one of them would leave the other processes without work.
LONGEST = {
    "test_gpu_rehearsal",
    "test_handoff",
    "test_interface_runs",
    "test_oldest_versions",
    "test_pages",
    "test_torch_inductor",
    "test_workers",
}
# How long an example takes is a matter of what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a GPU are left out where there is none: the suite is complete without, and `-m gpu` alone says that none ran.

    The whole of the fault tests takes an hour: it is left out unless `-m` asks for it by name. System tests are slow.
    """
    for item in items:
        if SYSTEM in item.path.parents:
            item.add_marker("slow")
    left_out = [] if has_gpu() else ["gpu"]
    if "faults" not in config.getoption("markexpr"):
        left_out.append("faults")
    for marker in left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
        items[:] = [item for item in items if not item.get_closest_marker(marker)]
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the driver shows a GPU; its device files are there whatever is installed in Python."""
    return any(devices.glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class Tiny:
    """A classifier `x[batch, 64] -> logits[batch, 4]` on disk, with 128 calibration and 2,000 evaluation samples."""

    model: Path
    calibration: Path
    evaluation: Path
    weights: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]

    def job(self, **changes: object) -> dict[str, object]:
        """A job on this model, as its YAML would read."""
        job: dict[str, object] = {
            "source": str(self.model),
            "data": {"calibration": str(self.calibration), "evaluation": str(self.evaluation)},
            "candidates": ["int8-static-minmax-pc@ort-cpu"],
            "search": "all",
            "gates": {"min_speedup": None},
            "measurement": {
                "launches": 1,
                "blocks": 3,
                "block_seconds": 0.02,
                "warmup_seconds": 0.01,
                "max_other_load": None,
            },
        }
        return job | changes


def tiny_weights(seed: int = 3) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Weights that classify by the nearest of four random centres: right on most samples, unsure near the borders."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(FEATURES, HIDDEN)).astype(np.float32) / 8
    bias = rng.normal(size=HIDDEN).astype(np.float32) / 8
    hidden = np.maximum(centres(seed) @ first + bias, 0)
    second = (hidden - hidden.mean(axis=0)).T.astype(np.float32)
    return first, bias, second


def centres(seed: int = 3) -> NDArray[np.float32]:
    """The centre of each class, shape `(4, 64)`."""
    return np.random.default_rng(seed + 1).normal(size=(CLASSES, FEATURES)).astype(np.float32)


def tiny_samples(n: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Samples around the centres, and their classes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, n)
    return {"x": (centres()[label] + rng.normal(size=(n, FEATURES)) * 2).astype(np.float32), "label": label}


def tiny_model(first: NDArray[np.float32], bias: NDArray[np.float32], second: NDArray[np.float32]) -> onnx.ModelProto:
    """MatMul, Add, Relu, MatMul."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["product"], name="first_matmul"),
            helper.make_node("Add", ["product", "bias"], ["sum"], name="first_add"),
            helper.make_node("Relu", ["sum"], ["hidden"], name="relu"),
            helper.make_node("MatMul", ["hidden", "second"], ["logits"], name="second_matmul"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            numpy_helper.from_array(array, name)
            for name, array in (("first", first), ("bias", bias), ("second", second))
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The small model and its data."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def make_tiny(folder: Path) -> Tiny:
    """Write the small model and its data into a folder."""
    weights = tiny_weights()
    onnx.save(tiny_model(*weights), folder / "tiny.onnx")
    np.savez(folder / "calibration.npz", **tiny_samples(128, 11))
    np.savez(folder / "evaluation.npz", **tiny_samples(2000, 12))
    return Tiny(folder / "tiny.onnx", folder / "calibration.npz", folder / "evaluation.npz", weights)


@dataclass(frozen=True)
class Hard:
    """A classifier with outlier channels behind its first layer, and `easy`, the same function without them.

    Both are `x[batch, 64] -> logits[batch, 4]`, of MatMul, Add and Relu; the layers are called first, second, third and head.
    """

    model: Path
    easy: Path
    calibration: Path
    evaluation: Path

    def job(self, model: Path) -> dict[str, object]:
        """A job that promotes INT8 static if it loses no more than 1 %."""
        return {
            "source": str(model),
            "data": {"calibration": str(self.calibration), "evaluation": str(self.evaluation)},
            "candidates": ["int8-static-minmax-pc@ort-cpu"],
            "search": "all",
            "gates": {"min_speedup": None, "max_drop": 0.01},
            "measurement": {
                "launches": 1,
                "blocks": 3,
                "block_seconds": 0.02,
                "warmup_seconds": 0.01,
                "max_other_load": None,
            },
        }


@pytest.fixture(scope="session")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Hard:
    """Three channels hundreds of times as large as the others, which the next layer makes small again.

    Relu commutes with positive factors, so that the outputs are the same: what large models have of themselves (T. Dettmers et
    al., "LLM.int8()", NeurIPS 2022).
    """
    folder = tmp_path_factory.mktemp("hard")
    rng = np.random.default_rng(17)
    widths = {"first": (FEATURES, 128), "second": (128, 128), "third": (128, 512)}
    weights = {name: rng.normal(size=shape).astype(np.float32) / np.sqrt(shape[0]) for name, shape in widths.items()}
    hidden = centres()
    for name in weights:
        hidden = np.maximum(hidden @ weights[name], 0)
    weights["head"] = (hidden - hidden.mean(axis=0)).T.astype(np.float32)
    onnx.save(_layers(weights), folder / "easy.onnx")
    outliers = np.ones(128, np.float32)
    outliers[[5, 40, 99]] = 300, 500, 800
    weights["first"], weights["second"] = weights["first"] * outliers, weights["second"] / outliers[:, None]
    onnx.save(_layers(weights), folder / "hard.onnx")
    np.savez(folder / "calibration.npz", **tiny_samples(128, 11))
    np.savez(folder / "evaluation.npz", **tiny_samples(2000, 12))
    return Hard(*(folder / name for name in ("hard.onnx", "easy.onnx", "calibration.npz", "evaluation.npz")))


def _layers(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """MatMul after MatMul, with Relu between."""
    nodes, tensor = [], "x"
    for name in weights:
        last = name == list(weights)[-1]
        nodes.append(helper.make_node("MatMul", [tensor, name], ["logits" if last else f"{name}_product"], name=name))
        tensor = f"{name}_out"
        if not last:
            nodes.append(helper.make_node("Relu", [f"{name}_product"], [tensor], name=f"{name}_relu"))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def statistics_of(prepared: Path, calibration: Path) -> Path:
    """The statistics of a graph with the input `x[batch, 64]` on the samples of a file, beside the graph."""
    spec = (TensorSpec("x", "float32", ("batch", FEATURES)),)
    samples = load_samples(calibration, spec, label="label", role="calibration")
    path = prepared.with_suffix(".statistics.npz")
    calibrate(prepared, samples, path, threads=1, max_memory_mb=500)
    return path


def static_int8(
    prepared: Path,
    ranges: Mapping[str, Range],
    path: Path,
    *,
    every: bool = False,
    keep_float: Collection[str] = (),
    bits: WeightBits = 8,
) -> QdqReport:
    """INT8 static for the CPU with these ranges, per channel, UINT8 activations."""
    return quantize_qdq(
        prepared,
        path,
        ranges,
        rules=PAIRS,
        every_operator=every,
        activation="uint8",
        weights=Int8Weights(bits=bits),
        keep_float=keep_float,
    )

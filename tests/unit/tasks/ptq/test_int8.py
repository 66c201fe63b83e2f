"""INT8: calibrated ranges, scales, zero points, weights and outputs against a reference in numpy alone.

The reference knows the tiny model (product and bias, Relu, product) and the rules of affine quantization: a scale of the range
over the steps, zero inside every range, round half to even, saturate. It computes in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from conftest import Tiny, static_int8, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE

from tasks.ptq.calibrate.calibration import calibrate, read_ranges
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.methods import RANGES
from validators.records.run import SessionSettings
from validators.samples.datasets import Samples, TensorSpec, load_samples

Floats = NDArray[np.float64]
Ranges = dict[str, tuple[float, float]]
ROWS = 400


@dataclass(frozen=True)
class Calibrated:
    """The prepared tiny model with its ranges files."""

    tiny: Tiny
    folder: Path
    samples: Samples
    evaluation: NDArray[np.float32]

    @property
    def prepared(self) -> Path:
        return self.folder / "prepared.onnx"

    @property
    def statistics(self) -> Path:
        return self.folder / "statistics.npz"

    def ranges(self, method: str) -> Ranges:
        return read_ranges(self.statistics, method, symmetric=False)


@pytest.fixture(scope="module")
def calibrated(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    folder = tmp_path_factory.mktemp("int8")
    spec = (TensorSpec("x", "float32", ("batch", 64)),)
    samples = load_samples(tiny.calibration, spec, label="label", role="calibration")
    made = Calibrated(tiny, folder, samples, np.load(tiny.evaluation)["x"][:ROWS])
    prepare_graph(tiny.model, made.prepared)
    calibrate(made.prepared, samples, made.statistics, threads=1, max_memory_mb=500)
    return made


def activations(tiny: Tiny, x: NDArray[np.float32]) -> dict[str, Floats]:
    """The float activations by tensor name."""
    first, bias, second = (array.astype(np.float64) for array in tiny.weights)
    total = x.astype(np.float64) @ first + bias
    hidden = np.maximum(total, 0)
    return {"x": x.astype(np.float64), "sum": total, "hidden": hidden, "logits": hidden @ second}


# The reference


@dataclass(frozen=True)
class Affine:
    """real = scale * (stored - zero), stored in `low` to `high`."""

    scale: Floats
    zero: Floats
    low: int
    high: int

    def store(self, real: Floats) -> Floats:
        return np.clip(np.rint(real / self.scale) + self.zero, self.low, self.high)

    def read(self, stored: Floats) -> Floats:
        return (stored - self.zero) * self.scale


def of_activation(low: float, high: float, *, signed: bool) -> Affine:
    """Asymmetric over the range, which is made to hold zero."""
    bottom, top = (-128, 127) if signed else (0, 255)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float64(np.float32((high - low) / 255))
    return Affine(np.asarray(scale), np.rint(bottom - low / scale), bottom, top)


def of_weight(weight: Floats, axis: int | None, bits: WeightBits) -> Affine:
    """Symmetric over the largest absolute value, of the whole weight or of each slice along an axis."""
    limit = {8: 127, 7: 64}[bits]
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    amax = np.abs(weight).max(axis=others)
    return Affine((amax / limit).astype(np.float32).astype(np.float64), np.zeros_like(amax), -limit, limit)


def run(model: Path, x: NDArray[np.float32], optimization: Literal["basic", "all"] = "all") -> Floats:
    with open_session(model, SessionSettings("CPUExecutionProvider", 1, optimization)) as session:
        return run_batches(session, [{"x": x}], "logits").astype(np.float64)


def constants(model: Path) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(model).graph.initializer}


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("granularity", ["pc", "pt"])
def test_a_dynamic_variant_is_what_the_reference_computes(
    calibrated: Calibrated, tmp_path: Path, granularity: str, bits: WeightBits
) -> None:
    """Ranges of each request, for the whole tensor: outputs depend on the batch, in the way that the reference says."""
    variant = tmp_path / "variant.onnx"
    quantize_dynamic(calibrated.prepared, variant, weights=Int8Weights(granularity == "pc", bits))
    first, bias, second = (array.astype(np.float64) for array in calibrated.tiny.weights)
    axis = 1 if granularity == "pc" else None
    stored = constants(variant)
    weights = {"first": of_weight(first, axis, bits), "second": of_weight(second, axis, bits)}
    for tensor, weight in (("first", first), ("second", second)):
        np.testing.assert_allclose(stored[f"{tensor}_scale"], weights[tensor].scale, rtol=1e-6)
        np.testing.assert_array_equal(stored[f"{tensor}_int8"], weights[tensor].store(weight))

    def product(values: Floats, weight: Floats, name: str) -> tuple[Floats, Affine]:
        inputs = of_activation(float(values.min()), float(values.max()), signed=False)
        sums = (inputs.store(values) - inputs.zero) @ weights[name].store(weight)
        return sums * inputs.scale * weights[name].scale, inputs

    seen = {}
    for rows in (1, 7, ROWS):
        x = calibrated.evaluation[:rows]
        total, _ = product(x.astype(np.float64), first, "first")
        outputs, inputs = product(np.maximum(total + bias, 0), second, "second")
        # A hidden value halfway between two steps may fall on either; more than two of 128 in one row do not.
        allowed = 2 * float(inputs.scale) * np.abs(second).max()
        assert np.abs(run(variant, x, "basic") - outputs).max() <= allowed
        assert np.quantile(np.abs(run(variant, x, "all") - outputs), 0.99) <= allowed
        assert np.abs(activations(calibrated.tiny, x)["logits"] - outputs).max() > allowed
        seen[rows] = outputs[0]
    assert not np.allclose(seen[1], seen[ROWS])


@pytest.mark.parametrize("bits", BITS_HERE)
def test_dynamic_gemm_of_either_layout_is_per_output_channel(
    calibrated: Calibrated, tmp_path: Path, bits: WeightBits
) -> None:
    """Weights as (N, K) with transB, as linear layers are exported, give the numbers of weights as (K, N)."""
    first, bias, second = calibrated.tiny.weights
    x = calibrated.evaluation[:50]
    seen = []
    for transposed in (0, 1):
        model = tiny_model(np.ascontiguousarray(first.T) if transposed else first, bias, second)
        product = model.graph.node[0]
        product.CopyFrom(helper.make_node("Gemm", list(product.input), ["product"], name="gemm", transB=transposed))
        # A non-square weight must not be known by its old shape: the tool forgets what it transposed.
        model.graph.value_info.append(
            helper.make_tensor_value_info("first", TensorProto.FLOAT, model.graph.initializer[0].dims)
        )
        onnx.save(model, tmp_path / "model.onnx")
        quantize_dynamic(tmp_path / "model.onnx", tmp_path / "variant.onnx", weights=Int8Weights(bits=bits))
        onnx.checker.check_model(tmp_path / "variant.onnx", full_check=True)
        operators = [node.op_type for node in onnx.load(tmp_path / "variant.onnx").graph.node]
        assert operators.count("DynamicQuantizeMatMul") == 2
        seen.append(run(tmp_path / "variant.onnx", x))
    np.testing.assert_array_equal(seen[0], seen[1])
    floats = activations(calibrated.tiny, x)["logits"]
    assert 0 < np.abs(seen[1] - floats).mean() < 0.02 * floats.std()


# Calibration


def test_minmax_ranges_are_the_extremes(calibrated: Calibrated) -> None:
    """Over all calibration samples, of the input, the output and every activation between."""
    ranges = calibrated.ranges("minmax")
    expected = activations(calibrated.tiny, calibrated.samples.inputs["x"])
    assert set(ranges) >= set(expected)
    for name, values in expected.items():
        held = min(values.min(), 0), max(values.max(), 0)
        np.testing.assert_allclose(ranges[name], held, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(("method", "share"), [("p99.9", 0.999), ("percentile", 0.9999), ("p99.999", 0.99999)])
def test_percentile_ranges_leave_out_that_share_of_the_values(
    calibrated: Calibrated, method: str, share: float
) -> None:
    """Half of it at either end, within a bin of the histogram."""
    ranges = calibrated.ranges(method)
    for name, values in activations(calibrated.tiny, calibrated.samples.inputs["x"]).items():
        expected = np.quantile(values, [(1 - share) / 2, (1 + share) / 2], method="inverted_cdf")
        bound = min(expected[0], 0), max(expected[1], 0)
        np.testing.assert_allclose(ranges[name], bound, atol=np.abs(values).max() / 2048 * 1.5, err_msg=name)


@pytest.mark.parametrize("method", ["entropy", "mse"])
def test_ranges_that_cut_keep_nearly_all_values(calibrated: Calibrated, method: str) -> None:
    for name, values in activations(calibrated.tiny, calibrated.samples.inputs["x"]).items():
        low, high = calibrated.ranges(method)[name]
        assert min(values.min(), 0) <= low + 1e-6 and high - 1e-6 <= max(values.max(), 0) and low < high
        assert ((values >= low) & (values <= high)).mean() > 0.95, name


def test_symmetric_ranges_reach_as_far_to_either_side(calibrated: Calibrated) -> None:
    for method in RANGES:
        for low, high in read_ranges(calibrated.statistics, method, symmetric=True).values():
            assert low == -high < 0


def test_a_graph_that_cannot_run_is_refused(calibrated: Calibrated, tmp_path: Path) -> None:
    """Calibration of a broken graph is a refusal of kind invalid, and writes nothing."""
    broken = tiny_model(*calibrated.tiny.weights)
    broken.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((63, 128), np.float32), "first"))
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(CandidateRefused) as caught:
        calibrate(
            tmp_path / "broken.onnx", calibrated.samples, tmp_path / "statistics.npz", threads=1, max_memory_mb=500
        )
    assert caught.value.kind == "invalid" and caught.value.expected and caught.value.fix
    assert not (tmp_path / "statistics.npz").exists()


# Refusals, scope, side effects


def test_nothing_is_left_beside_the_source_or_the_variant(calibrated: Calibrated, tmp_path: Path) -> None:
    """The tools' own files lie elsewhere: two candidates at a time cannot meet on them."""
    before = {path: path.read_bytes() for path in calibrated.folder.iterdir()}
    static_int8(calibrated.prepared, calibrated.ranges("minmax"), tmp_path / "a.onnx")
    quantize_dynamic(calibrated.prepared, tmp_path / "b.onnx", weights=Int8Weights())
    assert {path: path.read_bytes() for path in calibrated.folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"a.onnx", "b.onnx"}


@pytest.mark.parametrize("every", [False, True])
def test_the_same_recipe_makes_the_same_bytes(calibrated: Calibrated, tmp_path: Path, every: bool) -> None:
    """A variant is identified by its digest: making it again must not change it."""
    for path in (tmp_path / "one.onnx", tmp_path / "two.onnx"):
        static_int8(calibrated.prepared, calibrated.ranges("mse"), path, every=every)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


SPEC = (TensorSpec("x", "float32", ("batch", 64)),)


@pytest.mark.parametrize("n", [100, 5, 9])
def test_any_number_of_samples_calibrates(tiny: Tiny, tmp_path: Path, n: int) -> None:
    """A last batch that is not full is used too: the extreme is planted in the last sample."""
    x = np.load(tiny.calibration)["x"][:n].copy()
    x[-1, 0] = 50.0
    np.savez(tmp_path / "x.npz", x=x)
    samples = load_samples(tmp_path / "x.npz", SPEC, label="label", role="calibration")
    told = calibrate(tiny.model, samples, tmp_path / "s.npz", threads=1, max_memory_mb=500)
    assert told["samples"] == n and told["passes"] == 1
    assert read_ranges(tmp_path / "s.npz", "minmax", symmetric=False)["x"][1] == 50


def test_a_model_of_a_fixed_batch_size_calibrates(tiny: Tiny, tmp_path: Path) -> None:
    """Exports of batch size 1 are common."""
    model = tiny_model(*tiny.weights)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "model.onnx")
    samples = load_samples(tiny.calibration, SPEC, label="label", role="calibration")
    calibrate(tmp_path / "model.onnx", samples, tmp_path / "s.npz", threads=1, max_memory_mb=500, fixed_batch=1)
    x = samples.inputs["x"]
    assert read_ranges(tmp_path / "s.npz", "minmax", symmetric=False)["x"] == (float(x.min()), float(x.max()))

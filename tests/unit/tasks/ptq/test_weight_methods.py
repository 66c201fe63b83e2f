"""HQQ, GPTQ and AWQ against straightforward forms of themselves, and against round to nearest on a real encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models.pools import text_pool
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.grams import Gram, collect_grams, plan_stages
from tasks.ptq.weight_only.awq import ALPHAS, AwqLayer, factors_for, search_factors
from tasks.ptq.weight_only.clipping import RATIOS, clipped, output_error
from tasks.ptq.weight_only.gptq import DAMPING, gptq
from tasks.ptq.weight_only.hqq import BETA, BETA_GROWTH, ITERATIONS, NORM, hqq, shrink
from tasks.ptq.weight_only.int4_grid import Grid, QuantizedWeight, as_blocks, fit_grid, quantize_on, round_to_nearest
from tasks.ptq.weight_only.sites import tensors_to_collect
from validators.errors import CandidateRefused
from validators.samples.datasets import Arrays

Floats = NDArray[np.float64]


def layer(rows: int = 40, columns: int = 12, seed: int = 0) -> tuple[Floats, Floats]:
    """Inputs `[300, K]` that depend on each other and differ in size, and a weight `[K, N]`."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(rows, rows)) / 4 + np.eye(rows)
    x = rng.normal(size=(300, rows)) @ mixing * rng.lognormal(0, 1.2, rows)
    return x, rng.normal(size=(rows, columns)) / 4


def squared_error(x: Floats, weight: NDArray[Any], other: NDArray[Any]) -> float:
    return float((((x @ weight.astype(np.float64)) - x @ other) ** 2).sum())


def column_by_column(x: Floats, weight: Floats, block_size: int, symmetric: bool) -> NDArray[np.int64]:
    """GPTQ as optimal brain quantization in a fixed order: the inverse itself, one elimination for each channel done.

    The ranges of blocks are narrowed beforehand, as `narrowest` finds them.
    """
    work, rows = weight.copy(), len(weight)
    hessian = 2 * x.T @ x
    inverse = np.linalg.inv(hessian + np.eye(rows) * DAMPING * np.trace(hessian) / rows)
    order = sorted(range(rows), key=lambda row: -hessian[row, row])
    grids = {}
    for start in range(0, rows, block_size):
        stop = start + block_size
        grids[start // block_size] = narrowest(x[:, start:stop], work[start:stop], symmetric)
    codes = np.zeros(weight.shape, np.int64)
    for place, row in enumerate(order):
        group = row // block_size
        scale, zero = grids[group].scales[0], grids[group].zero_points[0]
        codes[row] = np.clip(np.round(work[row] / scale) + zero, 0, 15)
        error = (work[row] - (codes[row] - zero) * scale) / inverse[row, row]
        for later in order[place + 1 :]:
            work[later] -= error * inverse[row, later]
        inverse -= np.outer(inverse[:, row], inverse[row]) / inverse[row, row]
    return codes


def narrowest(x: Floats, block: Floats, symmetric: bool) -> Grid:
    """The grid of one block with the share of each column's range that leaves the least error, by rounding, of `x @ block`."""
    best: list[tuple[float, float, float]] = []
    for column in block.T:
        found = []
        for ratio in RATIOS:
            grid = fit_grid(column[None, :, None], symmetric=symmetric, dtype=np.float32, shrink=ratio)
            scale, zero = float(grid.scales[0, 0]), float(grid.zero_points[0, 0])
            rounded = (np.clip(np.round(column / scale) + zero, 0, 15) - zero) * scale
            found.append((float(((x @ (rounded - column)) ** 2).sum()), scale, zero))
        best.append(min(found, key=lambda item: item[0]))
    return Grid(np.array([[scale for _, scale, _ in best]]), np.array([[zero for _, _, zero in best]]))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("rows", "block_size"), [(40, 16), (64, 32), (24, 32)])
def test_gptq_is_column_by_column_quantization(rows: int, block_size: int, symmetric: bool) -> None:
    """The same codes, to the last, also where the last block is not full."""
    x, weight = layer(rows, seed=rows)
    options: dict[str, Any] = {"block_size": block_size, "symmetric": symmetric, "dtype": np.float32}
    done = gptq(weight, x.T @ x, **options)
    expected = column_by_column(x, weight, block_size, symmetric)
    np.testing.assert_array_equal(done.codes, expected)
    assert (done.codes != round_to_nearest(weight, **options).codes).mean() > 0.05, "else nothing was carried"


def test_channels_that_were_never_active_are_rounded_to_nearest() -> None:
    """One silent channel, and then all of them."""
    x, weight = layer()
    x[:, 5] = 0
    options: dict[str, Any] = {"block_size": 16, "symmetric": True, "dtype": np.float32}
    plain = round_to_nearest(weight, **options)
    done = gptq(weight, x.T @ x, **options)
    nearest = quantize_on(done.grid, weight, 16, symmetric=True)
    np.testing.assert_array_equal(done.codes[5], nearest.codes[5])
    assert np.abs(done.dequantized()[5] - weight[5]).max() < np.abs(done.grid.scales[0]).max()
    silent = gptq(weight, np.zeros((40, 40)), **options)
    np.testing.assert_array_equal(silent.codes, plain.codes)


def test_gptq_refuses_sums_that_are_not_finite() -> None:
    _, weight = layer()
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        gptq(weight, np.full((40, 40), np.nan), block_size=16, symmetric=True, dtype=np.float32)


def test_shrinkage_by_hand() -> None:
    """|0.5| - 0.5^-0.3 / 10 = 0.5 - 0.12311 = 0.37689; 0.1 - 0.1^-0.3 / 10 = 0.1 - 0.19953 < 0."""
    seen = shrink(np.array([0.5, -0.5, 0.1, 0.0], np.float32), 10.0)
    np.testing.assert_allclose(seen, [0.37689, -0.37689, 0, 0], atol=1e-5)


def split_one_block(weight: Floats) -> tuple[float, float]:
    """Scale and zero point of one block and column by half-quadratic splitting, in float64, one weight at a time."""
    low, high = min(weight.min(), 0), max(weight.max(), 0)
    scale = float(np.float32((high - low) / 15))
    zero = float(round(-low / scale))

    def code(w: float, z: float) -> float:
        # round(w / scale + z), ties apart, which random weights do not have
        return min(max(round(w / scale + z), 0), 15)

    def norm(z: float, power: float = NORM) -> float:
        return float(sum(abs(w / scale - (code(w, z) - z)) ** power for w in weight))

    best, beta, most = zero, BETA, norm(zero, 2) * (1 + 1e-7)
    for _ in range(ITERATIONS):
        total = 0.0
        for w in weight:
            error = w / scale - (code(w, zero) - zero)
            excess = np.sign(error) * max(abs(error) - abs(error) ** (NORM - 1) / beta, 0) if error else 0.0
            total += code(w, zero) - (w / scale - excess)
        zero = total / len(weight)
        best = zero if norm(zero) < norm(best) and norm(zero, 2) <= most else best
        beta *= BETA_GROWTH
    return scale, best


def test_hqq_is_half_quadratic_splitting() -> None:
    """The zero points of a loop over single weights, also in a last block that is not full."""
    weight = np.random.default_rng(1).standard_t(4, size=(40, 6))
    done = hqq(weight, block_size=16, dtype=np.float32)
    expected = [[split_one_block(weight[start : start + 16, c]) for c in range(6)] for start in (0, 16, 32)]
    np.testing.assert_allclose(done.grid.scales, [[scale for scale, _ in row] for row in expected], rtol=1e-6)
    np.testing.assert_allclose(done.grid.zero_points, [[zero for _, zero in row] for row in expected], atol=2e-4)


def test_hqq_lessens_the_norm_and_knows_no_unit() -> None:
    """No block has a greater lp norm or squared error than after rounding to nearest; 2^-9 W has the codes of W."""
    weight = np.random.default_rng(2).standard_t(4, size=(128, 50))
    done = hqq(weight, block_size=32, dtype=np.float32)
    plain = round_to_nearest(weight, block_size=32, symmetric=False, dtype=np.float32)

    def norms(other: QuantizedWeight, power: float = NORM) -> Floats:
        steps = np.abs(as_blocks(other.dequantized() - weight, 32) / plain.grid.scales[:, None])
        return np.asarray((steps**power).sum(axis=1))

    assert (norms(done) <= norms(plain) * (1 + 1e-5)).all()
    assert (norms(done, 2) <= norms(plain, 2) * (1 + 1e-5)).all()
    assert (norms(done) < norms(plain) * 0.99).mean() > 0.4
    np.testing.assert_array_equal(hqq(weight / 512, block_size=32, dtype=np.float32).codes, done.codes)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_search_for_factors_is_brute_force(symmetric: bool) -> None:
    """Two layers that read one activation: of all alphas the one whose outputs, computed from X itself, are nearest."""
    x, first = layer(64, 12, seed=4)
    second = np.random.default_rng(5).normal(size=(64, 7))
    loudness = np.abs(x).mean(axis=0)
    options: dict[str, Any] = {"block_size": 32, "symmetric": symmetric, "dtype": np.float32}
    factors, alpha = search_factors([AwqLayer(first, x.T @ x), AwqLayer(second, x.T @ x)], loudness, **options)

    def error(tried: float) -> float:
        s = loudness**tried
        s = s / np.sqrt(s.max() * s.min())
        return sum(
            squared_error(x, w, round_to_nearest(w * s[:, None], **options).dequantized() / s[:, None])
            for w in (first, second)
        )

    errors = [error(tried) for tried in ALPHAS]
    assert alpha == ALPHAS[int(np.argmin(errors))] != 0, "else the case shows nothing"
    assert min(errors) < errors[0] * 0.95
    s = loudness**alpha
    np.testing.assert_allclose(1 / factors, s / np.sqrt(s.max() * s.min()), rtol=1e-5)


def test_factors_are_bounded_and_exact_in_their_dtype() -> None:
    """A silent channel counts as one of 1e-4 of the loudest: factors from 0.01 to 100. All silent: no factors."""
    factors = factors_for(np.array([0.0, 1.0, 5.0]), 1.0, np.float16)
    assert factors.tolist() == factors.astype(np.float16).astype(np.float64).tolist()
    np.testing.assert_allclose(factors, [100, 0.05, 0.01], rtol=1e-3)
    assert factors_for(np.zeros(3), 0.5, np.float32).tolist() == [1, 1, 1]


def test_output_error_is_that_of_the_outputs() -> None:
    x, weight = layer()
    np.testing.assert_allclose(output_error(weight, x.T @ x), ((x @ weight) ** 2).sum(axis=0))


@pytest.mark.parametrize("symmetric", [True, False])
def test_clipping_is_brute_force_and_harms_no_column(symmetric: bool) -> None:
    """With one block, its Gram matrix is the whole: every column has the best of all ratios, from X itself."""
    x, weight = layer(32, 10, seed=7)
    options: dict[str, Any] = {"block_size": 32, "symmetric": symmetric, "dtype": np.float32}
    done = clipped(weight, x.T @ x, **options).dequantized()
    tried = []
    for ratio in RATIOS:
        grid = fit_grid(weight[None], symmetric=symmetric, dtype=np.float32, shrink=ratio)
        codes = np.clip(np.round(weight / grid.scales) + grid.zero_points, 0, 15)
        tried.append(((x @ ((codes - grid.zero_points) * grid.scales - weight)) ** 2).sum(axis=0))
    np.testing.assert_allclose(((x @ (done - weight)) ** 2).sum(axis=0), np.min(tried, axis=0), rtol=1e-9)
    assert np.min(tried, axis=0).sum() < 0.95 * tried[0].sum()

    x, weight = layer(100, 30, seed=8)  # four blocks, the last one not full
    done = clipped(weight, x.T @ x, **options).dequantized()
    plain = round_to_nearest(weight, **options).dequantized()
    errors, before = (((x @ (other - weight)) ** 2).sum(axis=0) for other in (done, plain))
    assert (errors <= before * (1 + 1e-9)).all() and errors.sum() < 0.95 * before.sum()


def save_two_layers(path: Path) -> tuple[Floats, Floats]:
    """`a = relu(x @ first)` of shape `[batch, 3, 24]`, read by two products, and `y` is their sum."""
    rng = np.random.default_rng(9)
    arrays = {"first": rng.normal(size=(16, 24)), "left": rng.normal(size=(24, 5)), "right": rng.normal(size=(24, 5))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["p"], name="first"),
            helper.make_node("Relu", ["p"], ["a"], name="relu"),
            helper.make_node("MatMul", ["a", "left"], ["l"], name="left"),
            helper.make_node("MatMul", ["a", "right"], ["r"], name="right"),
            helper.make_node("Add", ["l", "r"], ["y"], name="sum"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return rng.normal(size=(10, 3, 16)).astype(np.float32), arrays["first"].astype(np.float32)


@pytest.mark.parametrize(("max_memory_mb", "channels_at_once"), [(1.0, 1024), (0.009, 1024), (1.0, 7)])
def test_grams_are_sums_over_all_batches(
    tmp_path: Path, max_memory_mb: float, channels_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a graph input and of an activation that two nodes read, from batches of 4, 4 and 2; in one stage, and in two."""
    monkeypatch.setattr("tasks.ptq.calibrate.grams.CHANNELS_AT_ONCE", channels_at_once)
    x, first = save_two_layers(tmp_path / "m.onnx")
    tensors = tensors_to_collect(tmp_path / "m.onnx", block_size=16)
    assert tensors == {"x": 16, "a": 24}
    shapes = {name: (4, 3, channels) for name, channels in tensors.items()}
    assert len(plan_stages(tensors, shapes, max_memory_mb)) == (1 if max_memory_mb == 1.0 else 2)
    passes = []

    def batches() -> Iterator[Arrays]:
        passes.append(1)
        for start in (0, 4, 8):
            yield {"x": x[start : start + 4]}

    grams = collect_grams(tmp_path / "m.onnx", tensors, batches, max_memory_mb=max_memory_mb)
    assert len(passes) == 2, "one for the shapes, and one for all stages"
    rows = x.reshape(-1, 16).astype(np.float64)
    for name, values in (("x", rows), ("a", np.maximum(rows @ first, 0))):
        np.testing.assert_allclose(grams[name].matrix, values.T @ values, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(grams[name].mean_absolute, np.abs(values).mean(axis=0), rtol=1e-5)
        assert grams[name].rows == 30


def test_stages_by_hand() -> None:
    """K = 1,000, 10 rows: 8.048 MB of values, sums and matrix, and 8.08 MB at work, of which there is one at a time."""
    tensors, shapes = dict.fromkeys("abcd", 1000), dict.fromkeys("abcd", (2, 5, 1000))
    for most in (8.13, 24.1):
        assert plan_stages(tensors, shapes, most) == [["a"], ["b"], ["c"], ["d"]]
    assert plan_stages(tensors, shapes, 24.2) == [["a", "b"], ["c", "d"]]
    assert plan_stages(tensors, shapes, 100) == [["a", "b", "c", "d"]]
    with pytest.raises(CandidateRefused, match="8 MB for the Gram matrix of 'a'") as caught:
        plan_stages(tensors, shapes, 8.12)
    assert caught.value.kind == "unsupported"  # however often it is tried again


@pytest.mark.parametrize("channels", [11_008, 28_672])
def test_wide_layers_fit_in_the_default_memory(channels: int) -> None:
    """The second projection of language models of 7 and 70 billion parameters, 8 windows of 512 tokens a batch."""
    assert plan_stages({"h": channels}, {"h": (8, 512, channels)}, 2000.0) == [["h"]]


def test_gram_matrices_lie_in_files_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that those of a whole model need not fit in memory; a full disk is refused before anything is computed."""
    x, _ = save_two_layers(tmp_path / "m.onnx")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    grams = collect_grams(tmp_path / "m.onnx", {"x": 16}, lambda: [{"x": x}], max_memory_mb=1)
    assert isinstance(grams["x"].matrix, np.memmap) and not [*(tmp_path / "temporary").iterdir()]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CandidateRefused, match="TMPDIR") as caught:
        collect_grams(tmp_path / "m.onnx", {"x": 16}, lambda: [{"x": x}], max_memory_mb=1)
    assert caught.value.kind == "infrastructure"


def test_activations_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    x, _ = save_two_layers(tmp_path / "m.onnx")
    x[7, 1, 3] = np.inf
    with pytest.raises(CandidateRefused, match="NaN or Inf among the values of 'x'"):
        collect_grams(tmp_path / "m.onnx", {"x": 16}, lambda: [{"x": x}], max_memory_mb=1)
    with pytest.raises(CandidateRefused, match="expected: 12 channels"):
        collect_grams(tmp_path / "m.onnx", {"x": 12}, lambda: [{"x": x}], max_memory_mb=1)


def test_grams_add_up() -> None:
    """Of one row and of three: sums add, means weigh by rows."""
    total = Gram(np.ones((2, 2)), np.array([4.0, 0.0]), 1) + Gram(np.eye(2), np.array([0.0, 8.0]), 3)
    assert total.matrix.tolist() == [[2, 1], [1, 2]] and total.mean_absolute.tolist() == [1.0, 6.0] and total.rows == 4


Encoder = dict[str, tuple[Floats, Gram, Gram]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Three layers of a real encoder: weight, Gram matrix on 64 reviews, and on 64 others."""
    folder = tmp_path_factory.mktemp("encoder")
    pool = text_pool(folder)
    graph = onnx.load(pool.model).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    asked = ("0.attention.query", "2.inner", "5.attention.output")
    nodes = {node.name: node for node in graph.node if node.name.removeprefix("encoder.layers.") in asked}
    weights = {name: numpy_helper.to_array(constants[node.input[1]]) for name, node in nodes.items()}
    tensors = {node.input[0]: len(weights[name]) for name, node in nodes.items()}
    seen, unseen = (
        collect_grams(pool.model, tensors, lambda rows=rows: pool.take(rows).batches(16), max_memory_mb=100)
        for rows in (np.arange(64), np.arange(64, 128))
    )
    return {
        name: (weights[name].astype(np.float64), seen[node.input[0]], unseen[node.input[0]])
        for name, node in nodes.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_each_method_beats_round_to_nearest_on_a_real_encoder(
    encoder: Encoder, block_size: int, symmetric: bool
) -> None:
    """In squared error of the outputs, on the samples that the method saw and on as many that it did not.

    GPTQ fits what it saw the closest. The last attention output, where the tokens of one review are much alike, shows it: 64
    samples are too few for it to help on others, and are not asked to here.
    """
    assert len(encoder) == 3
    options: dict[str, Any] = {"block_size": block_size, "symmetric": symmetric, "dtype": np.float32}
    for name, (weight, seen, unseen) in encoder.items():
        factors, _ = search_factors([AwqLayer(weight, seen.matrix)], seen.mean_absolute, **options)
        scaled = AwqLayer(weight / factors[:, None], seen.matrix * np.outer(factors, factors))
        found = {
            "gptq": gptq(weight, seen.matrix, **options).dequantized(),
            "awq": clipped(scaled.weight, scaled.gram, **options).dequantized() * factors[:, None],
        }
        if not symmetric:
            found["hqq"] = hqq(weight, block_size=block_size, dtype=np.float32).dequantized()
        plain = round_to_nearest(weight, **options).dequantized()
        bounds = {"gptq": 0.5, "awq": 0.9, "hqq": 1.0}
        for gram in (seen.matrix, unseen.matrix):
            before = output_error(plain - weight, gram).sum()
            for method, other in found.items():
                if method == "gptq" and gram is unseen.matrix and name.endswith("5.attention.output"):
                    continue
                ratio = output_error(other - weight, gram).sum() / before
                assert ratio < bounds[method], (name, method, ratio)

"""SmoothQuant and bias correction: equal in float, and better in INT8 where a few channels are far larger than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from test_qdq import BASIC, Case, build, draw, kernels, op, run, sqnr_db

from tasks.engines.ort.pairs import PAIRS
from tasks.ptq.calibrate.watched import watch
from tasks.ptq.eight_bit.bias_correction import correct_bias
from tasks.ptq.eight_bit.placement import IN_HALF
from tasks.ptq.eight_bit.smooth import ChannelStatistics, output_error, read_channels, smooth, smoothing_factors
from tasks.runtimes.ort import open_session, run_outputs

Array = NDArray[Any]
WIDTH = 32
OUTLIERS = [3, 17, 30]
FACTOR = np.ones(WIDTH, np.float32)
FACTOR[OUTLIERS] = 400.0


def again(path: Path, x: Array) -> Case:
    """The model at a path, with the values of its tensors."""
    graph = onnx.load(path)
    tensors = [name for node in graph.graph.node for name in node.output]
    kind = graph.graph.output[0].type.tensor_type.elem_type
    del graph.graph.output[:]
    graph.graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name in tensors)
    onnx.save(graph, path.with_name("watched_again.onnx"))
    with open_session(path.with_name("watched_again.onnx"), BASIC) as session:
        values = dict(zip(tensors, run_outputs(session, {"x": x}, tensors), strict=True))
    return Case(path, x, {"x": x} | values)


def plant(first: Array, second: Array) -> tuple[Array, Array]:
    """Columns of the first weight times 400, rows of the second by 400: the same function."""
    return first * FACTOR, second / FACTOR[:, None]


def after_layer_norm(folder: Path) -> Case:
    first, second = np.ones((1, WIDTH), np.float32) + 0.1 * draw(1, WIDTH), draw(WIDTH, 8)
    gamma, w = plant(first, second)
    constants = {"gamma": gamma[0], "beta": draw(WIDTH) * FACTOR, "w": w, "b": draw(8)}
    nodes = [op("LayerNormalization", "x gamma beta", "h", axis=-1), op("MatMul", "h w", "m"), op("Add", "m b", "y")]
    return build(folder, nodes, constants, (5, WIDTH))


def after_decomposed_norm(folder: Path) -> Case:
    gamma, w = plant(np.ones((1, WIDTH), np.float32), draw(WIDTH, 8))
    constants = {"gamma": gamma[0], "beta": draw(WIDTH) * FACTOR, "w": w, "axes": np.array([-1])}
    nodes = [op("ReduceMean", "x axes", "mean"), op("Sub", "x mean", "d"), op("Mul", "d gamma", "g")]
    nodes += [op("Add", "beta g", "h"), op("MatMul", "h w", "y")]
    return build(folder, nodes, constants, (5, WIDTH))


def after_linear(folder: Path) -> Case:
    """Through Relu, which a positive factor passes."""
    w1, w2 = plant(draw(16, WIDTH), draw(WIDTH, 8))
    constants = {"w1": w1.T.copy(), "b1": draw(WIDTH) * FACTOR, "w2": w2.T.copy(), "b2": draw(8)}
    nodes = [op("Gemm", "x w1 b1", "a", transB=1), op("Relu", "a", "h"), op("Gemm", "h w2 b2", "y", transB=1)]
    return build(folder, nodes, constants, (16,))


def after_linear_and_add(folder: Path) -> Case:
    w1, w2 = plant(draw(16, WIDTH), draw(WIDTH, 8))
    constants = {"w1": w1, "b1": draw(WIDTH) * FACTOR, "w2": w2}
    nodes = [op("MatMul", "x w1", "m"), op("Add", "m b1", "a"), op("Relu", "a", "h"), op("MatMul", "h w2", "y")]
    return build(folder, nodes, constants, (3, 16))


def with_two_readers(folder: Path) -> Case:
    """A residual connection reads the tensor as well, so that it has to stay."""
    gamma, w = plant(np.ones((1, WIDTH), np.float32), draw(WIDTH, WIDTH))
    constants = {"gamma": gamma[0], "w": w, "w2": draw(WIDTH, WIDTH) / FACTOR[:, None], "small": 1 / FACTOR}
    nodes = [op("LayerNormalization", "x gamma", "h", axis=-1), op("MatMul", "h w", "m"), op("MatMul", "h w2", "k")]
    nodes += [op("Mul", "h small", "r"), op("Add", "m k", "s"), op("Add", "s r", "y")]
    return build(folder, nodes, constants, (5, WIDTH))


def after_gelu(folder: Path) -> Case:
    """What a factor does not pass."""
    w1, w2 = plant(draw(16, WIDTH), draw(WIDTH, 8))
    nodes = [op("MatMul", "x w1", "a"), op("Gelu", "a", "h"), op("MatMul", "h w2", "y")]
    return build(folder, nodes, {"w1": w1, "w2": w2}, (3, 16))


def behind_a_gate(folder: Path) -> Case:
    """A product of two activations, of which the plain one is divided (as in SwiGLU)."""
    w1, w2 = plant(draw(16, WIDTH), draw(WIDTH, 8))
    nodes = [op("MatMul", "x wg", "g"), op("Sigmoid", "g", "s"), op("Mul", "g s", "gate"), op("MatMul", "x w1", "up")]
    nodes += [op("Mul", "gate up", "h"), op("MatMul", "h w2", "y")]
    return build(folder, nodes, {"wg": draw(16, WIDTH), "w1": w1, "w2": w2}, (3, 16))


PLANTED: dict[str, tuple[Callable[[Path], Case], str]] = {
    "layer normalization": (after_layer_norm, "folded"),
    "decomposed normalization": (after_decomposed_norm, "folded"),
    "Gemm and Relu": (after_linear, "folded"),
    "MatMul, Add and Relu": (after_linear_and_add, "folded"),
    "residual connection": (with_two_readers, "multiplied"),
    "GELU": (after_gelu, "multiplied"),
    "gate": (behind_a_gate, "folded"),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt"])
def test_planted_channels_cost_nothing_once_smoothed(tmp_path: Path, name: str, target: str) -> None:
    """Equal in float; in INT8 the planted model loses its other channels, the smoothed one is as good as any."""
    make, way = PLANTED[name]
    case = make(tmp_path)
    symmetric = target == "tensorrt"
    seen = read_channels(case.path, [{"x": case.x[:32]}, {"x": case.x[32:]}])
    done = smooth(case.path, tmp_path / "smooth.onnx", seen, symmetric=symmetric)
    assert done["h"].way == way and done["h"].alpha is not None
    assert done["h"].error_after < done["h"].error_before / 20

    smoothed = again(tmp_path / "smooth.onnx", case.x)
    scale = np.abs(case.values["y"]).max()
    assert np.abs(smoothed.values["y"] - case.values["y"]).max() <= 1e-5 * scale
    plain, _ = case.quantize(rules=PAIRS if target == "ort-cpu" else IN_HALF)
    before = sqnr_db(case.values["y"], run(plain, case.x, BASIC))
    variant, _ = smoothed.quantize(rules=PAIRS if target == "ort-cpu" else IN_HALF)
    after = sqnr_db(case.values["y"], run(variant, case.x, BASIC))
    assert before < 20 and after > 30 and after > before + 15
    if target == "ort-cpu":
        assert not kernels(variant).keys() & {"MatMul", "Gemm"}


def vector_product(folder: Path) -> Case:
    """`x v` sums along the last axis: its result has as many channels as v by chance, and v has none of them."""
    w = draw(WIDTH, 8) / FACTOR[:, None]
    return build(
        folder, [op("MatMul", "x v", "h"), op("MatMul", "h w", "y")], {"v": draw(WIDTH), "w": w}, (WIDTH, WIDTH)
    )


def own_sum(folder: Path) -> Case:
    """`h W + h` as one Gemm, as the runtime's basic level makes it: the sum reads `h` undivided."""
    w1, w2 = plant(draw(16, WIDTH), draw(WIDTH, WIDTH))
    nodes = [op("Gemm", "x w1 b1", "h"), op("Gemm", "h w2 h", "y")]
    return build(folder, nodes, {"w1": w1, "b1": draw(WIDTH) * FACTOR, "w2": w2}, (16,))


@pytest.mark.parametrize("make", [vector_product, own_sum])
def test_no_division_is_folded_where_it_would_reach_others(tmp_path: Path, make: Callable[[Path], Case]) -> None:
    case = make(tmp_path)
    rows = draw(64, WIDTH) * FACTOR
    seen = {"h": ChannelStatistics(rows.min(axis=0), rows.max(axis=0), rows)}
    done = smooth(case.path, tmp_path / "smooth.onnx", seen, symmetric=False)
    assert done["h"].way == "multiplied"
    found = run(tmp_path / "smooth.onnx", case.x, BASIC)
    np.testing.assert_allclose(found, case.values["y"], rtol=1e-4, atol=1e-4 * np.abs(case.values["y"]).max())
    left = smooth(case.path, tmp_path / "left.onnx", seen, symmetric=False, insert=False)["h"]
    assert (left.way, left.alpha) == ("left", None) and left.error_after == left.error_before == done["h"].error_before
    given, unchanged = (onnx.load(path).graph for path in (case.path, tmp_path / "left.onnx"))
    assert list(given.node) == list(unchanged.node) and list(given.initializer) == list(unchanged.initializer)


def test_factors_are_those_of_the_paper() -> None:
    """Eq. 4 by hand: sqrt(64 / 4) = 4 and sqrt(0.25 / 4) = 1/4, whose geometric mean is 1; a dead channel keeps 1."""
    amax, weight = np.array([64.0, 0.25, 0.0]), np.array([4.0, 4.0, 5.0])
    np.testing.assert_allclose(smoothing_factors(amax, weight, 0.5), [4.0, 0.25, 1.0])
    amax, weight = np.array([16.0, 1.0, 0.0]), np.array([8.0, 2.0, 5.0])
    # At 1 all of it goes to the weights: activations of one size.
    np.testing.assert_allclose((amax / smoothing_factors(amax, weight, 1.0))[:2], 4.0)
    # At 0 none does: weights of one size.
    np.testing.assert_allclose((weight * smoothing_factors(amax, weight, 0.0))[:2], 4.0)


def test_searched_error_is_that_of_the_quantized_layer(tmp_path: Path) -> None:
    """Against the graph that is really quantized and run."""
    case = build(tmp_path, [op("MatMul", "x w", "y")], {"w": draw(WIDTH, 8)}, (WIDTH,))
    x, w = case.x, draw(WIDTH, 8)
    seen = ChannelStatistics(x.min(axis=0), x.max(axis=0), x)
    variant, _ = case.quantize()
    found = 10 ** (-sqnr_db(case.values["y"], run(variant, x, BASIC)) / 10)
    np.testing.assert_allclose(output_error(seen, [w], np.ones(WIDTH), symmetric=False), found, rtol=0.02)


def test_alpha_is_the_best_of_the_grid(tmp_path: Path) -> None:
    case = after_linear(tmp_path)
    seen = read_channels(case.path, [{"x": case.x}])
    grid = (0.1, 0.5, 0.9)
    done = smooth(case.path, tmp_path / "smooth.onnx", seen, symmetric=False, alphas=grid)["h"]
    single = {}
    for alpha in grid:
        one = smooth(case.path, tmp_path / "one.onnx", seen, symmetric=False, alphas=[alpha])
        single[alpha] = one["h"].error_after
    assert done.alpha == min(single, key=lambda alpha: single[alpha])
    assert done.error_after == min(single.values()) < max(single.values())


def test_even_channels_are_left_as_they_are(tmp_path: Path) -> None:
    case = build(tmp_path, [op("MatMul", "x w", "y")], {"w": np.sign(draw(WIDTH, 8))}, (WIDTH,))
    x = np.sign(case.x) * 3
    seen = {"x": ChannelStatistics(x.min(axis=0), x.max(axis=0), x)}
    done = smooth(case.path, tmp_path / "smooth.onnx", seen, symmetric=False)
    assert done["x"].way == "left" and done["x"].alpha is None
    assert onnx.load(tmp_path / "smooth.onnx").graph == onnx.load(case.path).graph


# Bias correction


def shifted(folder: Path, kind: str) -> Case:
    """Two layers with weights whose rounding errors add up: inputs that are all about 1 meet errors of one sign."""
    rng = np.random.default_rng(5)
    w1 = (rng.normal(size=(64, 16)) * 0.1 + 0.004).astype(np.float32)
    w1[0] = 3.0  # the largest value, which sets the scale
    w2 = rng.normal(size=(16, 8)).astype(np.float32)
    constants = {"w1": w1, "b1": draw(16), "w2": w2, "b2": draw(8)}
    if kind == "Conv":
        constants |= {"w1": w1.T.reshape(16, 64, 1, 1).copy(), "w2": w2.T.reshape(8, 16, 1, 1).copy()}
        nodes = [op("Conv", "x w1 b1", "a"), op("Relu", "a", "h"), op("Conv", "h w2 b2", "y")]
        shape: tuple[int, ...] = (64, 2, 2)
    elif kind == "Gemm":
        nodes = [op("Gemm", "x w1 b1", "a"), op("Relu", "a", "h"), op("Gemm", "h w2 b2", "y")]
        shape = (64,)
    else:
        nodes = [op("MatMul", "x w1", "m"), op("Add", "m b1", "a"), op("Relu", "a", "h"), op("MatMul", "h w2", "k")]
        nodes += [op("Add", "k b2", "y")]
        shape = (64,) if kind == "MatMul" else (3, 64)
    case = build(folder, nodes, constants, shape)
    return again(case.path, (1 + 0.05 * case.x).astype(np.float32))


@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt"])
@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul", "MatMul of rank 3"])
def test_the_mean_of_every_channel_comes_back(tmp_path: Path, kind: str, target: str) -> None:
    """Over the samples that it was made from; and on others the outputs are closer than before."""
    case = shifted(tmp_path, kind)
    variant, report = case.quantize(rules=PAIRS if target == "ort-cpu" else IN_HALF)
    x, fresh = case.x[:32], case.x[32:]
    corrected = tmp_path / "corrected.onnx"
    done = correct_bias(case.path, variant, corrected, [{"x": x[:20]}, {"x": x[20:]}])
    assert set(done.largest) == set(report.quantized) and not done.left
    onnx.checker.check_model(corrected, full_check=True)

    axes = (0, 2, 3) if kind == "Conv" else tuple(range(case.values["y"].ndim - 1))

    def shift(model: Path, rows: Array, exact: Array) -> Array:
        return np.asarray((run(model, rows, BASIC) - exact).mean(axis=axes))

    exact = case.values["y"]
    before, after = (np.abs(shift(model, x, exact[:32])).max() for model in (variant, corrected))
    # An output that is quantized itself is right to its step only.
    assert after < before / 5
    assert sqnr_db(exact[32:], run(corrected, fresh, BASIC)) > sqnr_db(exact[32:], run(variant, fresh, BASIC)) + 3
    if target == "ort-cpu":
        assert kernels(corrected) == kernels(variant)


class Counted(list[dict[str, Array]]):
    """Batches that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[dict[str, Array]]:
        self.passes += 1
        return super().__iter__()


def test_a_deep_model_is_corrected_in_one_pass_of_each_model(tmp_path: Path) -> None:
    """Every layer's mean comes back on what the corrected ones before it give, branches and sums included."""
    constants, nodes, tensor = {}, [], "x"
    for index in range(8):
        constants |= {f"w{index}": draw(12, 12, 1, 1, seed=index) / 3 + 0.05, f"b{index}": draw(12, seed=index)}
        nodes.append(op("Conv", f"{tensor} w{index} b{index}", f"c{index}"))
        nodes.append(op("Relu", f"c{index}", f"r{index}"))
        if index % 2:
            nodes.append(op("Add", f"r{index} r{index - 1}", f"s{index}"))
        tensor = nodes[-1].output[0]
    constants |= {"w": draw(5, 12, 1, 1), "b": draw(5)}
    case = build(tmp_path, [*nodes, op("Conv", f"{tensor} w b", "y")], constants, (12, 3, 3))
    variant, report = case.quantize()
    batches = Counted([{"x": case.x[:40]}, {"x": case.x[40:]}])
    done = correct_bias(case.path, variant, tmp_path / "corrected.onnx", batches)
    assert list(done.largest) == [*(f"c{index}" for index in range(8)), "y"] == list(report.quantized)
    assert batches.passes == 2

    # With its Relu folded, a convolution of the variant gives the tensor that the Relu gave, before saturation.
    origins = {f"r{index}": f"c{index}" for index in range(8)}

    def shifts(path: Path) -> dict[str, float]:
        (found,) = watch(path, origins, [{"x": case.x}])
        return {
            name: float(np.abs((found[name] - case.values[origin]).mean(axis=(0, 2, 3))).max())
            for name, origin in origins.items()
        }

    before, after = shifts(variant), shifts(tmp_path / "corrected.onnx")
    # What is left is the rounding of the bias, and of the biases before it.
    assert all(after[name] < before[name] / 10 for name in origins), (before, after)


def test_a_layer_without_bias_is_named(tmp_path: Path) -> None:
    case = build(tmp_path, [op("MatMul", "x w", "y")], {"w": draw(8, 8)}, (8,))
    variant, _ = case.quantize()
    done = correct_bias(case.path, variant, tmp_path / "corrected.onnx", [{"x": case.x}])
    assert done.left == {"y": "has no bias"} and not done.largest
    np.testing.assert_array_equal(run(tmp_path / "corrected.onnx", case.x), run(variant, case.x))


def test_factors_that_help_only_the_rows_that_set_them_are_left(tmp_path: Path) -> None:
    """Few rows of even noise, many channels: factors fit the rows, and make others worse."""
    width = 256
    case = build(tmp_path, [op("MatMul", "x w", "y")], {"w": draw(width, 64)}, (width,))
    x = np.random.default_rng(3).normal(size=(8, width)).astype(np.float32)
    done = smooth(case.path, tmp_path / "s.onnx", read_channels(case.path, [{"x": x}]), symmetric=False)
    assert done["x"].alpha is None
    # Without halves the search judges factors on the rows that they are made of.
    whole = {name: replace(seen, halves=()) for name, seen in read_channels(case.path, [{"x": x}]).items()}
    assert smooth(case.path, tmp_path / "s.onnx", whole, symmetric=False)["x"].alpha is not None


def test_the_gain_of_a_norm_of_a_sum_takes_the_division(tmp_path: Path) -> None:
    """The norm of decoders, whose sum another node reads undivided."""
    gamma, w = plant(np.ones((1, WIDTH), np.float32), draw(WIDTH, WIDTH))
    # onnx knows no type and shape behind an operator of the runtime.
    constants = {"gamma": gamma[0], "w": w, "w0": draw(WIDTH, WIDTH), "shape": np.array([-1, 5, WIDTH])}
    norm = op("SkipSimplifiedLayerNormalization", "x a gamma", "h")
    norm.domain = "com.microsoft"
    norm.output.extend(["", "", "sum"])
    nodes = [op("MatMul", "x w0", "a"), norm, op("MatMul", "h w", "m"), op("Add", "m sum", "s")]
    nodes += [op("Cast", "s", "c", to=onnx.TensorProto.FLOAT), op("Reshape", "c shape", "y")]
    case = build(tmp_path, nodes, constants, (5, WIDTH))
    done = smooth(case.path, tmp_path / "s.onnx", read_channels(case.path, [{"x": case.x}]), symmetric=False)
    assert done["h"].way == "folded"
    before = run(case.path, case.x)
    np.testing.assert_allclose(run(tmp_path / "s.onnx", case.x), before, atol=1e-4 * np.abs(before).max())

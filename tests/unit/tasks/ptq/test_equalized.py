"""Channels of one magnitude before depthwise convolutions: equal in float, and better in INT8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from test_qdq import BASIC, Case, build, draw, kernels, op, run, sqnr_db
from test_smooth import again

from tasks.engines.ort.pairs import PAIRS
from tasks.ptq.eight_bit.placement import IN_HALF
from tasks.ptq.eight_bit.smooth import LARGEST_RAISE, Smoothing, read_channels, smooth

Array = NDArray[Any]
WIDTH = 12
# One channel is far larger than the others, in the Conv alone: the kernels of the depthwise Conv undo it.
FACTOR = np.ones(WIDTH, np.float32)
FACTOR[[3, 7]] = 12.0


def chain(folder: Path, activation: str = "Relu", *, factor: Array = FACTOR, rank: int = 2) -> Case:
    """A pointwise Conv, an activation, a depthwise Conv and a pointwise one."""
    ones, taps = [1] * rank, [3] * rank
    along = factor.reshape(-1, 1, *ones)
    constants = {"w": draw(WIDTH, 4, *ones) * along, "b": draw(WIDTH) * factor, "v": draw(5, WIDTH, *ones)}
    constants |= {"k": draw(WIDTH, 1, *taps) / np.maximum(along, 1), "c": draw(WIDTH)}
    nodes = [op("Conv", "x w b", "a")]
    if activation == "PRelu":
        constants["slope"] = np.linspace(-0.5, 1.5, WIDTH, dtype=np.float32).reshape(-1, *ones)
    if activation:
        nodes.append(op(activation, "a slope" if activation == "PRelu" else "a", "h"))
    made = nodes[-1].output[0]
    nodes += [op("Conv", f"{made} k c", "d", group=WIDTH, pads=[1] * 2 * rank), op("Conv", "d v", "y")]
    return build(folder, nodes, constants, (4, *[6] * rank))


def smoothed(case: Case, *, symmetric: bool = False) -> tuple[Path, dict[str, Smoothing]]:
    path = case.path.with_name("smooth.onnx")
    seen = read_channels(case.path, [{"x": case.x[:32]}, {"x": case.x[32:]}])
    return path, smooth(case.path, path, seen, symmetric=symmetric)


def weights(path: Path, node: str) -> list[Array]:
    """The weight and bias of a node."""
    graph = onnx.load(path).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return [tensors[name] for name in next(one for one in graph.node if one.name == node).input[1:]]


def after_products(folder: Path) -> Case:
    """As exporters write hard swish, and the one number a scale and a shift of PP-LCNet: all channels share the constants."""
    along = FACTOR.reshape(-1, 1, 1)
    constants = {"w": draw(WIDTH, 4, 1, 1), "f": along / 3, "k": draw(WIDTH, 1, 3, 3) / along[..., None]}
    constants |= {
        "three": np.float32(3),
        "zero": np.float32(0),
        "six": np.float32(6),
        "shift": np.array([0.25], np.float32),
    }
    nodes = [op("Conv", "x w", "a"), op("Add", "a three", "b"), op("Clip", "b zero six", "c"), op("Mul", "a c", "p")]
    nodes += [op("Mul", "p f", "g"), op("Conv", "g e", "h", group=WIDTH), op("Div", "h six", "q")]
    nodes += [op("Conv", "q e", "i", group=WIDTH), op("Mul", "half i", "r"), op("Add", "shift r", "s")]
    constants |= {"e": draw(WIDTH, 1, 3, 3, seed=1), "half": np.float32(0.5)}
    return build(folder, [*nodes, op("Conv", "s k", "y", group=WIDTH)], constants, (4, 9, 9))


def test_constants_of_all_channels_get_one_for_each(tmp_path: Path) -> None:
    case = after_products(tmp_path)
    path, done = smoothed(case)
    assert {name: one.way for name, one in done.items()} == dict.fromkeys("gqs", "folded")
    graph = onnx.load(path).graph
    assert [node.op_type for node in graph.node] == [node.op_type for node in onnx.load(case.path).graph.node]
    after = again(path, case.x)
    exact = case.values["y"]
    np.testing.assert_allclose(after.values["y"], exact, atol=1e-5 * np.abs(exact).max())
    for name in "gqs":
        largest, held = (np.abs(one.values[name]).max(axis=(0, 2, 3)) for one in (case, after))
        np.testing.assert_allclose(held, np.minimum(largest.max(), 16 * largest), rtol=1e-4)


@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt"])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", ""])
def test_planted_channels_cost_nothing_once_equalized(tmp_path: Path, activation: str, target: str) -> None:
    case = chain(tmp_path, activation)
    path, done = smoothed(case, symmetric=target == "tensorrt")
    (result,) = (one for one in done.values() if one.way == "folded")
    assert result.error_after < result.error_before / 5
    after = again(path, case.x)
    np.testing.assert_allclose(after.values["y"], case.values["y"], atol=1e-5 * np.abs(case.values["y"]).max())
    rules = PAIRS if target == "ort-cpu" else IN_HALF
    exact = case.values["y"]
    plain, _ = case.quantize(rules=rules)
    before = sqnr_db(exact, run(plain, case.x, BASIC))
    variant, _ = after.quantize(rules=rules)
    assert sqnr_db(exact, run(variant, case.x, BASIC)) > before + 5
    if target == "ort-cpu":
        assert kernels(variant)["QLinearConv"] == 3


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_weights_are_those_of_a_slow_reference(tmp_path: Path, rank: int) -> None:
    """Channel by channel, with one that is silent and one that nearly is."""
    factor = FACTOR.copy()
    factor[5], factor[6] = 0.0, 1e-3
    case = chain(tmp_path, factor=factor, rank=rank)
    path, _ = smoothed(case)
    largest = [max(float(value) for value in np.abs(case.values["h"][:, index]).ravel()) for index in range(WIDTH)]
    assert largest[5] == 0 < largest[6] < max(largest) / LARGEST_RAISE
    for index in range(WIDTH):
        expected = max(largest[index] / max(largest), 1 / 16) if largest[index] else 1.0
        for found, value in zip(weights(path, "a"), weights(case.path, "a"), strict=True):
            np.testing.assert_allclose(found[index], value[index] / expected, rtol=1e-6)
        np.testing.assert_allclose(
            weights(path, "d")[0][index], weights(case.path, "d")[0][index] * expected, rtol=1e-6
        )
    np.testing.assert_array_equal(weights(path, "d")[1], weights(case.path, "d")[1])
    held = np.abs(again(path, case.x).values["h"]).max(axis=(0, *range(2, rank + 2)))
    np.testing.assert_allclose(held, np.minimum(max(largest), 16 * np.array(largest)), rtol=1e-5)


def several(folder: Path) -> Case:
    """Two depthwise Convs that read one tensor, one with two outputs a channel, and one weight for both Convs before."""
    along = FACTOR.reshape(-1, 1, 1, 1)
    constants = {"w": draw(WIDTH, WIDTH, 1, 1) * along, "k": draw(WIDTH, 1, 3, 3) / along}
    constants["m"] = draw(2 * WIDTH, 1, 3, 3) / np.repeat(along, 2, axis=0)
    nodes = [op("Conv", "x w", "f"), op("Relu", "f", "g"), op("Conv", "g w", "a"), op("Relu", "a", "h")]
    nodes += [
        op("Conv", "h k", "d", group=WIDTH),
        op("Conv", "h m", "e", group=WIDTH),
        op("Concat", "d e", "y", axis=1),
    ]
    return build(folder, nodes, constants, (WIDTH, 6, 6))


def test_a_shared_weight_changes_for_its_own_convolution(tmp_path: Path) -> None:
    case = several(tmp_path)
    path, done = smoothed(case)
    assert {name: one.way for name, one in done.items()} == {"h": "folded"}
    np.testing.assert_array_equal(weights(path, "f")[0], weights(case.path, "f")[0])
    exact = case.values["y"]
    np.testing.assert_allclose(run(path, case.x, BASIC), exact, atol=1e-5 * np.abs(exact).max())


def edited(edit: Callable[[onnx.GraphProto], object]) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        case = chain(folder)
        model = onnx.load(case.path)
        edit(model.graph)
        onnx.save(model, case.path)
        return case

    return make


def _also_output(graph: onnx.GraphProto) -> None:
    graph.output.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [None] * 4))


def _read_by_others(graph: onnx.GraphProto) -> None:
    graph.node.append(op("Abs", "h", "z"))
    graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [None] * 4))


def _read_before_activation(graph: onnx.GraphProto) -> None:
    graph.node.append(op("Abs", "a", "z"))
    graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [None] * 4))


def _bounded(graph: onnx.GraphProto) -> None:
    """As ReLU6: a bound does not scale with its channel."""
    graph.node[1].CopyFrom(op("Clip", "a zero six", "h"))
    graph.initializer.extend(
        numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0), ("six", 6))
    )


def _not_depthwise(graph: onnx.GraphProto) -> None:
    """A pointwise Conv beside the depthwise one: its weights would pay for the factors."""
    graph.node.append(op("Conv", "h v", "z"))
    graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [None] * 4))


def _constant_over_activation(graph: onnx.GraphProto) -> None:
    graph.node[1].CopyFrom(op("Div", "b_one a", "h"))
    graph.initializer.append(numpy_helper.from_array(np.float32(1), "b_one"))


def _two_activations(graph: onnx.GraphProto) -> None:
    graph.node[1].CopyFrom(op("Mul", "a a", "h"))


def _grouped(graph: onnx.GraphProto) -> None:
    """Kernels of two channels each, whose weights would pay for the factors."""
    kernel = next(tensor for tensor in graph.initializer if tensor.name == "k")
    kernel.CopyFrom(numpy_helper.from_array(draw(WIDTH, 2, 3, 3), "k"))
    next(item for item in graph.node[2].attribute if item.name == "group").i = WIDTH // 2


def _read_before_shift(graph: onnx.GraphProto) -> None:
    graph.node[1].CopyFrom(op("Add", "a c_one", "h"))
    graph.initializer.append(numpy_helper.from_array(np.float32(1), "c_one"))
    _read_before_activation(graph)


def _computed_bias(graph: onnx.GraphProto) -> None:
    graph.node.insert(0, op("Abs", "b", "computed"))
    graph.node[1].input[2] = "computed"


CASES = [_also_output, _read_by_others, _read_before_activation, _bounded, _not_depthwise, _computed_bias]
CASES += [_constant_over_activation, _two_activations, _grouped, _read_before_shift]


@pytest.mark.parametrize("edit", CASES, ids=lambda edit: edit.__name__)
def test_channels_that_others_see_are_left(tmp_path: Path, edit: Callable[[onnx.GraphProto], object]) -> None:
    case = edited(edit)(tmp_path)
    path, done = smoothed(case)
    assert not done
    assert onnx.load(path).graph == onnx.load(case.path).graph


def test_even_channels_before_a_depthwise_conv_are_left(tmp_path: Path) -> None:
    case = chain(tmp_path, "", factor=np.zeros(WIDTH, np.float32))
    path, done = smoothed(case)
    assert [one.way for one in done.values()] == ["left"]
    assert onnx.load(path).graph == onnx.load(case.path).graph

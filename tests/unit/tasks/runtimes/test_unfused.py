"""Which Q/DQ of an optimized graph were meant to be fused: graphs written by hand, with the answer beside each."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.runtimes.unfused import find_unfused

CPU = "CPUExecutionProvider"


def graph_of(text: str, *, outputs: str = "y", stored: str = "w v") -> onnx.GraphProto:
    """A graph of lines `name: Kind a b -> c`; Q and DQ stand for the conversions, `custom.Kind` for another domain."""
    nodes = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(": ")
        inputs, _, made = rest.partition(" -> ")
        kind, *inputs = inputs.split()
        domain, _, kind = kind.rpartition(".")
        kind = {"Q": "QuantizeLinear", "DQ": "DequantizeLinear"}.get(kind, kind)
        nodes.append(helper.make_node(kind, inputs, made.split(), name=name, domain=domain))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", *outputs.split())]
    weights = [numpy_helper.from_array(numpy_helper.to_array(helper.make_tensor(name, 1, [1], [0])), name)
               for name in stored.split()]  # fmt: skip
    return helper.make_graph(nodes, "g", values[:1], values[1:], weights)


GRAPHS: dict[str, tuple[str, str]] = {
    "the ends of an integer kernel have to run": ("q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> y", ""),
    "a pair around nothing": ("q: Q x -> a\nd: DQ a -> b\nr: Softmax b -> y", "q d"),
    "a weight that is dequantized for each request": ("d: DQ w -> a\nm: Conv x a -> y", "d"),
    "a pair that integers go through on their way": ("q: Q x -> a\nt: Transpose a -> b\nd: DQ b -> c\nr: Erf c -> y", "q d"),
    "integers that are moved to their kernel": (
        "q: Q x -> a\nt: Transpose a -> b\nm: QLinearMatMul b w -> c\nd: DQ c -> y", ""),
    "integers that are moved away from their kernel": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nt: Transpose b -> c\nd: DQ c -> y", ""),
    "one reader in integers, one in float beside it": (
        "q: Q x -> a\nm: MatMulIntegerToFloat a w -> b\nd: DQ a -> c\ns: Add b c -> y", ""),
    "an operator without a kernel between two integer ones": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> c\ne: Erf c -> f\np: Q f -> g\n"
        "n: QLinearMatMul g w -> h\nl: DQ h -> y", "d p"),
    "an operator that nobody quantized between two integer ones": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> c\ne: Softmax c -> f\ns: Add f x -> g\np: Q g -> h\n"
        "n: MatMulIntegerToFloat h w -> y", ""),
    "a product of two activations, its result left in float": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nn: QLinearMatMul a v -> c\nd: DQ b -> e\nf: DQ c -> g\np: MatMul e g -> y",
        "d f"),
    "a sum of two activations, its result left in float": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nn: QLinearMatMul a v -> c\nd: DQ b -> e\nf: DQ c -> g\np: Add e g -> y", ""),
    "a product that was kept in float": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> c\np: MatMul c w -> y", ""),
    "a result that is quantized and also given as it is": (
        "q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> c\ne: Erf c -> y\np: Q y -> f\nn: MatMulIntegerToFloat f w -> z",
        ""),
    "what a custom operator reads is its own affair": ("q: Q x -> a\nk: custom.Thing a -> b\nd: DQ b -> y", ""),
    "integers that the caller gets": ("q: Q x -> y", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_those_left_over_are_those_listed_by_hand(case: str) -> None:
    text, expected = GRAPHS[case]
    outputs = "y z" if " -> z" in text else "y"
    assert find_unfused(graph_of(text, outputs=outputs), CPU) == expected.split()


def test_what_is_an_integer_kernel_hangs_on_the_provider() -> None:
    """The same graph where nothing has integer kernels: both ends are left over."""
    graph = graph_of("q: Q x -> a\nm: QLinearMatMul a w -> b\nd: DQ b -> y")
    assert find_unfused(graph, "CUDAExecutionProvider") == ["q", "d"]


def test_bodies_are_looked_into() -> None:
    """A pair in a branch is a pair."""
    graph = graph_of("i: If x -> y")
    body = graph_of("q: Q x -> a\nd: DQ a -> b\nr: Softmax b -> z", outputs="z")
    graph.node[0].attribute.append(helper.make_attribute("then_branch", body))
    assert find_unfused(graph, CPU) == ["q", "d"]


def test_an_output_that_is_left_out_feeds_nothing() -> None:
    """It has the empty name, as inputs that are left out: the operator's operands are still all dequantized."""
    text, expected = GRAPHS["an operator without a kernel between two integer ones"]
    graph = graph_of(text)
    (unit,) = (node for node in graph.node if node.name == "e")
    unit.input.append("")
    graph.node.append(helper.make_node("GRU", ["x", "w", "v"], ["", "last"], name="gru"))
    assert find_unfused(graph, CPU) == expected.split()

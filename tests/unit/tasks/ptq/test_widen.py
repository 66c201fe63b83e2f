"""Float16 graphs made float32: the same numbers, the same interface, wherever the type is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.float.widen import has_half, widen
from validators.errors import CandidateRefused

HALF = TensorProto.FLOAT16
node = helper.make_node


def info(name: str, kind: int = HALF, shape: Any = ("n", 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def half(values: Any, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float16), name)


def model_of(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    constants: tuple[onnx.TensorProto, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "half", [info("x")], outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def run(model: onnx.ModelProto, x: NDArray[Any]) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def types_inside(graph: onnx.GraphProto) -> set[int]:
    """What Casts make and constants are, in the graph and its bodies, but for the Casts at its border."""
    found = {tensor.data_type for tensor in graph.initializer}
    for one in graph.node:
        for item in one.attribute:
            if item.name in ("to", "dtype") and not one.name.endswith("_narrow"):
                found.add(item.i)
            if item.HasField("t"):
                found.add(item.t.data_type)
            if item.HasField("g"):
                found |= types_inside(item.g)
    return found


def everything() -> onnx.ModelProto:
    """Constants, Constant, ConstantOfShape, Cast, EyeLike, a body that captures, a function, and an output that is read on."""
    yes = helper.make_graph(
        [node("Add", ["first", "c"], ["yes_out"])], "yes", [], [info("yes_out")], [half([0.25], "c")]
    )
    no = helper.make_graph([node("Identity", ["x"], ["no_out"])], "no", [], [info("no_out")])
    function = helper.make_function(
        "acme",
        "Shift",
        ["a"],
        ["b"],
        [node("Constant", [], ["s"], value=half(0.5, "")), node("Add", ["a", "s"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["first"]),
        node("Constant", [], ["two"], value=half(2, "")),
        node("Mul", ["first", "two"], ["a"]),
        node("Shape", ["a"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["ones"], value=half([1], "")),
        node("Add", ["a", "ones"], ["b"]),
        node("EyeLike", ["b"], ["eye"], dtype=HALF),
        node("Sub", ["b", "eye"], ["d"]),
        node("Cast", ["shape"], ["sizes"], to=HALF),
        node("ReduceSum", ["sizes"], ["size"], keepdims=0),
        node("Div", ["d", "size"], ["e"]),
        node("If", ["yes"], ["f"], then_branch=yes, else_branch=no),
        node("Add", ["e", "f"], ["g"]),
        node("Shift", ["g"], ["y"], domain="acme"),
    ]
    constants = (half(np.eye(4) * 0.3, "w"), numpy_helper.from_array(np.array(True), "yes"))
    return model_of(nodes, [info("y"), info("first"), info("shape", TensorProto.INT64, [2])], constants, (function,))


def test_every_mention_of_the_type_is_widened_and_numbers_stay() -> None:
    """Numbers within half precision of each other; inputs and outputs of the type that they had, in their order."""
    model = everything()
    interface = [value.SerializeToString() for value in [*model.graph.input, *model.graph.output]]
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float16)
    before = run(model, x)
    assert has_half(model)
    assert widen(model) == 5
    onnx.checker.check_model(model, full_check=True)
    assert [value.SerializeToString() for value in [*model.graph.input, *model.graph.output]] == interface
    assert HALF not in types_inside(model.graph)
    for one, other in zip(before, run(model, x), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=3e-3, atol=2e-3)


def test_weights_are_widened_exactly() -> None:
    """All 65,536 numbers of half precision, NaN and infinities with them."""
    bits = np.arange(65536, dtype=np.uint16).view(np.float16)
    model = model_of([node("Add", ["x", "x"], ["y"])], [info("y")], (half(bits, "w"),))
    with np.errstate(invalid="ignore"):
        assert widen(model) == 1
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), bits.astype(np.float32))


def test_a_constant_and_an_input_may_be_outputs() -> None:
    model = model_of([node("Neg", ["x"], ["y"])], [info("y"), info("w", shape=[2])], (half([1, 2], "w"),))
    widen(model)
    y, w = run(model, np.ones((1, 4), np.float16))
    assert y.dtype == w.dtype == np.float16 and w.tolist() == [1, 2] and y.tolist() == [[-1] * 4]


def test_a_float32_model_has_no_half() -> None:
    """And one with float16 in a body alone has."""
    graph = helper.make_graph(
        [node("Neg", ["x"], ["y"])], "g", [info("x", TensorProto.FLOAT)], [info("y", TensorProto.FLOAT)]
    )
    assert not has_half(helper.make_model(graph))
    body = helper.make_graph([node("Cast", ["x"], ["h"], to=HALF)], "body", [], [info("h")])
    graph.node.append(node("If", ["c"], ["z"], then_branch=body, else_branch=body))
    assert has_half(helper.make_model(graph))


def test_sequences_at_the_border_are_refused() -> None:
    output = onnx.ValueInfoProto(
        name="y", type=helper.make_sequence_type_proto(helper.make_tensor_type_proto(HALF, None))
    )
    model = model_of([node("SequenceConstruct", ["x"], ["y"])], [output])
    with pytest.raises(CandidateRefused, match="sequence of float16") as caught:
        widen(model)
    assert caught.value.kind == "unsupported"

"""The source's graph: whatever is not a whole, valid, float model of known operators is refused with what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from onnx import TensorProto, helper, numpy_helper

from validators.errors import SourceError
from validators.onnx_graph import check_source_graph, external_files

FLOAT = TensorProto.FLOAT


def caught(path: Path) -> SourceError:
    """The error of a file that is no source."""
    with pytest.raises(SourceError) as seen:
        check_source_graph(path)
    error = seen.value
    assert error.found and error.expected and error.fix
    assert error.exit_code == 2 and path.name in error.found
    return error


def planted(tiny: Tiny, path: Path, fault: Callable[[onnx.ModelProto], object]) -> Path:
    """The tiny model with a fault."""
    model = tiny_model(*tiny.weights)
    fault(model)
    onnx.save(model, path)
    return path


def use(model: onnx.ModelProto, domain: str) -> None:
    model.opset_import.append(helper.make_opsetid(domain, 1))


def test_the_tiny_model_is_accepted_and_returned(tiny: Tiny) -> None:
    """A float model passes, and its graph is what is in the file."""
    model = check_source_graph(tiny.model)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add", "Relu", "MatMul"]
    assert external_files(tiny.model) == []


def test_a_file_cut_anywhere_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A hundred cut points, of them the first and the last bytes: none loads as a smaller model."""
    whole = tiny.model.read_bytes()
    path = tmp_path / "cut.onnx"
    points = {0, 1, 2, len(whole) - 1, len(whole) - 2, *np.linspace(3, len(whole) - 3, 95).astype(int).tolist()}
    for point in sorted(points):
        path.write_bytes(whole[:point])
        caught(path)
    path.write_bytes(whole)
    check_source_graph(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 nodes"),
        (b"This is a model card, not a model.\n", "truncated or not an ONNX file"),
        (b"\x00" * 64, "truncated or not an ONNX file"),
        (b"PK\x03\x04" + b"\x00" * 200, "truncated or not an ONNX file"),
    ],
    ids=["empty", "text", "zeros", "zip"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """Empty, text, or another format."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert words in caught(path).found


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The path is named."""
    assert "no such file" in caught(tmp_path / "none.onnx").found
    assert "no such file" in caught(tmp_path).found


@pytest.mark.parametrize(
    ("opset", "ir_version", "words"),
    [(27, 10, "opset 27"), (99, 10, "opset 99"), (21, 14, "IR version 14"), (12, 7, "opset 12"), (9, 4, "opset 9")],
)
def test_versions_outside_what_the_runtime_reads_are_refused(
    tiny: Tiny, tmp_path: Path, opset: int, ir_version: int, words: str
) -> None:
    """Too new and too old, by opset or by IR version."""

    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version, model.ir_version = opset, ir_version

    assert words in caught(planted(tiny, tmp_path / "model.onnx", change)).found


@pytest.mark.parametrize(("opset", "ir_version"), [(13, 8), (26, 13), (21, 10)])
def test_the_oldest_and_newest_versions_are_accepted(tiny: Tiny, tmp_path: Path, opset: int, ir_version: int) -> None:
    """The bounds themselves are inside."""

    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version, model.ir_version = opset, ir_version

    assert check_source_graph(planted(tiny, tmp_path / "model.onnx", change)).ir_version == ir_version


def test_a_file_without_the_default_domain_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Nothing says which operators it means."""
    path = planted(tiny, tmp_path / "model.onnx", lambda model: model.ClearField("opset_import"))
    assert "opset 0" in caught(path).found


def quantize_input(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), "zero"))
    model.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="q"))


def dynamic_input(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="q"))


def four_bit_weight(model: onnx.ModelProto) -> None:
    use(model, "com.microsoft")
    node = model.graph.node[0]
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"


def integer_product(model: onnx.ModelProto) -> None:
    model.graph.node[3].op_type = "MatMulInteger"


def fused_attention(model: onnx.ModelProto) -> None:
    use(model, "com.microsoft")
    node = model.graph.node[3]
    node.op_type, node.domain = "QAttention", "com.microsoft"


def in_a_branch(inner: onnx.NodeProto) -> Callable[[onnx.ModelProto], None]:
    """Hides a node in one branch of an If inside a branch of an If."""

    def change(model: onnx.ModelProto) -> None:
        def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
            return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, FLOAT, None)])

        def plain(name: str) -> onnx.GraphProto:
            return branch(name, [helper.make_node("Identity", ["hidden"], [name], name=name)], name)

        deep = branch("deep", [inner, helper.make_node("Identity", ["hidden"], ["deep_out"], name="i")], "deep_out")
        nested = helper.make_node("If", ["yes"], ["nested"], name="if_2", then_branch=deep, else_branch=plain("p1"))
        outer = helper.make_node(
            "If",
            ["yes"],
            ["chosen"],
            name="if_1",
            then_branch=branch("then", [nested], "nested"),
            else_branch=plain("p2"),
        )
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        model.graph.node.insert(3, outer)
        model.graph.node[4].input[0] = "chosen"

    return change


QUANTIZED = {
    "QuantizeLinear": quantize_input,
    "DynamicQuantizeLinear": dynamic_input,
    "MatMulNBits": four_bit_weight,
    "MatMulInteger": integer_product,
    "QAttention": fused_attention,
    "DequantizeLinear": in_a_branch(helper.make_node("DequantizeLinear", ["q", "s"], ["deep_q"], name="dq")),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_quantized_model_is_refused_wherever_the_operator_hides(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    """The operator is named, also inside nested branches."""
    found = caught(planted(tiny, tmp_path / "model.onnx", QUANTIZED[kind])).found
    assert "already quantized" in found and kind in found


def test_branches_of_float_operators_are_accepted(tiny: Tiny, tmp_path: Path) -> None:
    """The twin of the hidden operator: the same nested branches around a float one."""
    inner = helper.make_node("Relu", ["hidden"], ["deep_q"], name="r")
    check_source_graph(planted(tiny, tmp_path / "model.onnx", in_a_branch(inner)))


def swish(model: onnx.ModelProto) -> None:
    node = model.graph.node[2]
    node.op_type, node.domain = "Swish", "acme"
    use(model, "acme")


@pytest.mark.parametrize(
    "fault", [swish, in_a_branch(helper.make_node("Swish", ["hidden"], ["s"], domain="acme", name="s"))]
)
def test_a_custom_operator_is_refused(tiny: Tiny, tmp_path: Path, fault: Callable[[onnx.ModelProto], None]) -> None:
    """It is named with its domain, in the graph and in a branch."""
    found = caught(planted(tiny, tmp_path / "model.onnx", fault)).found
    assert "custom operators: acme::Swish" in found


def test_a_function_that_the_model_brings_is_no_custom_operator(tiny: Tiny, tmp_path: Path) -> None:
    """The same node is accepted when the file defines it in standard operators."""

    def define(model: onnx.ModelProto) -> None:
        swish(model)
        body = [helper.make_node("Sigmoid", ["a"], ["s"]), helper.make_node("Mul", ["a", "s"], ["b"])]
        model.functions.append(helper.make_function("acme", "Swish", ["a"], ["b"], body, [helper.make_opsetid("", 21)]))

    check_source_graph(planted(tiny, tmp_path / "model.onnx", define))


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "hidden"


def nothing_made(model: onnx.ModelProto) -> None:
    model.graph.node[3].output[0] = "other"


def no_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[3].input[:]


def no_such_operator(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type = "Reluu"


@pytest.mark.parametrize("fault", [cycle, nothing_made, no_inputs, no_such_operator])
def test_an_invalid_graph_is_refused(tiny: Tiny, tmp_path: Path, fault: Callable[[onnx.ModelProto], None]) -> None:
    """What `onnx.checker` finds is passed on in one line."""
    found = caught(planted(tiny, tmp_path / "model.onnx", fault)).found
    assert "fails onnx.checker" in found and "\n" not in found


def test_weights_beside_the_model_are_named_and_must_be_there(tiny: Tiny, tmp_path: Path) -> None:
    """External data is listed and checked: without its file the model is refused."""
    path = tmp_path / "model.onnx"
    onnx.save(tiny_model(*tiny.weights), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert external_files(path) == [tmp_path / "weights.bin"]
    check_source_graph(path)
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin" in caught(path).found


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([("acme", "Swish")], "custom operators: acme::Swish"),
        ([("", "DynamicQuantizeLinear")], "already quantized: it has DequantizeLinear, DynamicQuantizeLinear"),
    ],
)
def test_functions_are_looked_into(tiny: Tiny, tmp_path: Path, body: list[tuple[str, str]], words: str) -> None:
    """What is refused in the graph is refused in a function that it calls."""

    def define(model: onnx.ModelProto) -> None:
        node = model.graph.node[2]
        node.op_type, node.domain = "Mine", "mine"
        use(model, "mine")
        use(model, "acme")
        domain, kind = body[0]
        outputs = ["b"] if domain else ["q", "s", "z"]
        inner = [helper.make_node(kind, ["a"], outputs, domain=domain)]
        if not domain:
            inner.append(helper.make_node("DequantizeLinear", outputs, ["b"]))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
        model.functions.append(helper.make_function("mine", "Mine", ["a"], ["b"], inner, opsets))

    path = planted(tiny, tmp_path / "model.onnx", define)
    assert words in caught(path).found

"""The source's graph: whatever is not a whole, valid, float model of known operators is refused with what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import Tiny, tiny_model
from onnx import TensorProto, helper, numpy_helper

from validators.errors import SourceError
from validators.graph.source_graph import check_source_graph
from validators.untrusted.external_data import external_files

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
    [(27, 10, "opset 27"), (99, 10, "opset 99"), (21, 14, "IR version 14"), (6, 4, "opset 6"), (1, 3, "opset 1")],
)
def test_versions_outside_what_the_runtime_reads_are_refused(
    tiny: Tiny, tmp_path: Path, opset: int, ir_version: int, words: str
) -> None:
    """Too new and too old, by opset or by IR version."""

    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version, model.ir_version = opset, ir_version

    assert words in caught(planted(tiny, tmp_path / "model.onnx", change)).found


@pytest.mark.parametrize(("opset", "ir_version"), [(7, 4), (11, 6), (13, 8), (26, 13), (21, 10)])
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


def contrib(kind: str) -> Callable[[onnx.ModelProto], None]:
    """Makes the last node an operator of ONNX Runtime's own."""

    def change(model: onnx.ModelProto) -> None:
        use(model, "com.microsoft")
        node = model.graph.node[3]
        node.op_type, node.domain = kind, "com.microsoft"

    return change


def eight_bit_float(model: onnx.ModelProto) -> None:
    """FP8 Q/DQ around the input, as `fp8.py` writes it."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "scale"))
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True))
    pair = [("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "d")]
    for kind, name, output in pair[::-1]:
        model.graph.node.insert(0, helper.make_node(kind, [name, "scale", "zero"], [output], name=output))
    model.graph.node[2].input[0] = "d"


def stored_with_few_bits(kind: int, where: str) -> Callable[[onnx.ModelProto], None]:
    """A weight of a type that no float model has, behind a Cast and nothing more."""
    size = 2 if kind == TensorProto.INT4 else 4

    def change(model: onnx.ModelProto) -> None:
        tensor = helper.make_tensor("w", kind, [4], b"\0" * size, raw=True)
        if where == "initializer":
            model.graph.initializer.append(tensor)
        else:
            model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
        model.graph.node.insert(1, helper.make_node("Cast", ["w"], ["wide"], to=FLOAT))

    return change


QUANTIZED = {
    **{
        kind: contrib(kind)
        for kind in ("QLinearAdd", "QGemm", "DynamicQuantizeMatMul", "MatMulBnb4", "MatMulFpQ4", "GemmFloat8")
    },
    **{kind: contrib(kind) for kind in ("QMoE", "QOrderedMatMul", "GatherBlockQuantized", "MatMulNBitsMlp")},
    "DequantizeLinear, QuantizeLinear, weights of type FLOAT8E4M3FN": eight_bit_float,
    "weights of type INT4": stored_with_few_bits(TensorProto.INT4, "initializer"),
    "weights of type FLOAT8E5M2": stored_with_few_bits(TensorProto.FLOAT8E5M2, "attribute"),
    "QuantizeLinear": quantize_input,
    "DynamicQuantizeLinear": dynamic_input,
    "MatMulNBits": four_bit_weight,
    "MatMulInteger": integer_product,
    "QAttention": fused_attention,
    "DequantizeLinear": in_a_branch(helper.make_node("DequantizeLinear", ["q", "s"], ["deep_q"], name="dq")),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_model_is_refused_wherever_operator_hides(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    """The operator is named, also inside nested branches."""
    found = caught(planted(tiny, tmp_path / "model.onnx", QUANTIZED[kind])).found
    assert "already quantized" in found and kind in found


def test_branches_of_float_operators_are_accepted(tiny: Tiny, tmp_path: Path) -> None:
    """The twin of the hidden operator: the same nested branches around a float one."""
    inner = helper.make_node("Relu", ["hidden"], ["deep_q"], name="r")
    check_source_graph(planted(tiny, tmp_path / "model.onnx", in_a_branch(inner)))


@pytest.mark.parametrize("kind", ["QuickGelu", "FastGelu", "FusedMatMul"])
def test_a_float_operator_of_the_runtime_is_no_quantized_one(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    """Also where its name begins with a Q."""
    check_source_graph(planted(tiny, tmp_path / "model.onnx", contrib(kind)))


def test_half_precision_is_not_quantized(tiny: Tiny, tmp_path: Path) -> None:
    """Weights of float16 and of bfloat16 are weights of a float model."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float16), "half"))
        model.graph.initializer.append(helper.make_tensor("brain", TensorProto.BFLOAT16, [2], b"\0" * 4, raw=True))

    check_source_graph(planted(tiny, tmp_path / "model.onnx", change))


def swish(model: onnx.ModelProto) -> None:
    node = model.graph.node[2]
    node.op_type, node.domain = "Swish", "acme"
    use(model, "acme")


@pytest.mark.parametrize(
    "fault", [swish, in_a_branch(helper.make_node("Swish", ["hidden"], ["s"], domain="acme", name="s"))]
)
def test_a_custom_operator_is_refused(tiny: Tiny, tmp_path: Path, fault: Callable[[onnx.ModelProto], None]) -> None:
    """It is named with its domain, in the graph and in a branch, and the job's field that would help."""
    error = caught(planted(tiny, tmp_path / "model.onnx", fault))
    assert "custom operators: acme::Swish" in error.found and "`operator_libraries`" in error.fix


def test_custom_operator_is_accepted_if_a_library_may_have_it(tiny: Tiny, tmp_path: Path) -> None:
    """What else the checks hold against a source, they hold against this one."""
    check_source_graph(planted(tiny, tmp_path / "model.onnx", swish), custom_operators=True)
    path = planted(tiny, tmp_path / "model.onnx", QUANTIZED["QLinearAdd"])
    with pytest.raises(SourceError, match="already quantized"):
        check_source_graph(path, custom_operators=True)


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


@pytest.mark.parametrize(("columns", "is_refused"), [(23_169, False), (23_171, True)])
def test_weight_too_large_for_a_tensor_is_refused(tmp_path: Path, columns: int, is_refused: bool) -> None:
    """Protobuf ends at 2^31 bytes, which is 23,170.5 columns of as many rows: one fewer passes, wherever the data lies."""
    weight = TensorProto(name="w", data_type=FLOAT, dims=(23_170, columns), data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(23_170 * columns * 4)  # no block of it is on the disk
    ends = [helper.make_tensor_value_info(name, FLOAT, ["n", size]) for name, size in (("x", 23_170), ("y", columns))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], "g", ends[:1], ends[1:], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "large.onnx"
    onnx.save(model, path)
    if is_refused:
        error = caught(path)
        assert "'w' has 2.1 GB" in error.found and "split" in error.fix
    else:
        check_source_graph(path)


def test_weights_of_attributes_and_bodies_in_files_are_named(tiny: Tiny, tmp_path: Path) -> None:
    """A file that changes there changes the source."""
    model = tiny_model(*tiny.weights)
    in_a_branch(helper.make_node("Add", ["hidden", "shift"], ["deep_q"], name="a"))(model)
    shift = numpy_helper.from_array(np.ones(128, np.float32), "shift")
    outer = next(node for node in model.graph.node if node.op_type == "If")
    nested = next(item for item in outer.attribute if item.name == "then_branch").g.node[0].attribute[0].g
    nested.initializer.append(shift)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["one"], value=shift))
    for tensor, name in ((nested.initializer[0], "body.bin"), (model.graph.node[0].attribute[0].t, "attribute.bin")):
        (tmp_path / name).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert external_files(tmp_path / "model.onnx") == [tmp_path / "attribute.bin", tmp_path / "body.bin"]


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


def test_file_of_the_runtimes_optimizer_is_refused(tmp_path: Path) -> None:
    """The runtime loads the file again, but its weights have the layout of this processor's kernels."""
    weight = numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), "weight")
    node = helper.make_node("Conv", ["x", "weight"], ["y"])
    x, y = (helper.make_tensor_value_info(name, FLOAT, ["batch", 16, None, None]) for name in "xy")
    graph = helper.make_graph([node], "conv", [x], [y], [weight])
    before, path = tmp_path / "before.onnx", tmp_path / "optimized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), before)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])
    if not any(node.domain for node in onnx.load(path).graph.node):
        pytest.skip("the runtime has no layouts of its own for this processor")
    error = caught(path)
    assert "com.microsoft.nchwc::Conv" in error.found and "this one was made of" in error.fix
    check_source_graph(before)

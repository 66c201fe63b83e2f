"""Tied embeddings: bytes by hand, look-up and head against a loop in float64, one copy of what both read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from test_weight_only import K, constants_of, node, normal, operators, run, save

from tasks.engines.ort.pairs import PAIRS
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.eight_bit.tied import LEAST_NUMBERS, TableBits, retie, round_rows
from tasks.ptq.weight_only.matmul_nbits import BlockForm, BlockWeights, quantize_weights
from validators.errors import CandidateRefused

TOKENS, BLOCK = 48, 16


def test_bytes_by_hand() -> None:
    """Steps of 0.5 from -2: codes 0, 4, 15; and of a sixteenth for 8 bits, with zero at 128 and -2 at 96."""
    row = np.zeros((1, 32), np.float32)
    row[0, :3], row[0, 16] = [-2.0, 0.0, 5.5], -1.5
    four = round_rows(row, bits=4, block_size=16)
    # 0 | 4 << 4, then 15 | 4 << 4, then zeros (4); the second block has 15 steps of 0.1 from -1.5: codes 0 and 15.
    assert four.codes.tolist() == [[64, 79, *[68] * 6, 240, *[255] * 7]]
    np.testing.assert_array_equal(four.scales, np.array([[0.5, 0.1]], np.float32))
    assert four.zero_points.tolist() == [[4 | 15 << 4]]
    row[0, 2] = 127 / 16
    eight = round_rows(row, bits=8, block_size=16)
    assert eight.codes[0, :4].tolist() == [96, 128, 255, 128] and eight.zero_points.tolist() == [[128, 128]]
    assert eight.scales[0, 0] == 1 / 16


def test_a_row_of_zeros_stays_one() -> None:
    rows = round_rows(np.zeros((2, 32), np.float16), bits=4, block_size=16)
    assert (rows.scales == 1).all() and not rows.codes.any() and not rows.zero_points.any()


def one_by_one(table: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """The table as its codes stand for it, a block at a time."""
    made, top = np.empty(table.shape), 2**bits - 1
    for token in range(len(table)):
        for start in range(0, K, BLOCK):
            block = table[token, start : start + BLOCK].astype(np.float64)
            low, high = min(block.min(), 0.0), max(block.max(), 0.0)
            scale = float(np.float32(max(high, -low) / 127 if bits == 8 else (high - low) / top))
            zero = 128 if bits == 8 else round(-low / scale)
            codes = [min(max(round(value / scale) + zero, 0), top) for value in block]
            made[token, start : start + BLOCK] = [(code - zero) * scale for code in codes]
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Row 7 of a table is added to x, and the sum multiplied with the table, transposed."""
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Add", "x rows", "a"),
        node("Transpose", "table", "head", perm=[1, 0]),
        node("MatMul", "a head", "y"),
    ]
    return save(tmp_path / "m.onnx", nodes, {"table": normal(TOKENS, K), "ids": np.array([7], np.int64)})


@pytest.mark.parametrize("bits", [8, 4])
def test_look_up_and_head(bits: TableBits, model: Path, tmp_path: Path) -> None:
    """Both read one rounded table; a search gives it other bits, by the node that looks it up."""
    proto = onnx.load(model)
    proto.graph.node[0].name = "look up"
    onnx.save(proto, model)
    weights = BlockWeights("rtn", BLOCK, True, accuracy_level=0, forms={"look up": BlockForm(bits, BLOCK)})
    report = quantize_weights(model, tmp_path / "v.onnx", weights)
    assert report.tied == ("table",) and report.quantized == report.left == {}
    rounded = one_by_one(normal(TOKENS, K), bits)
    x = normal(5, K)
    np.testing.assert_allclose(run(tmp_path / "v.onnx", x), (x + rounded[7]) @ rounded.T, atol=1e-4)


def test_both_read_one_copy(model: Path, tmp_path: Path) -> None:
    """INT8 for both is what happens unasked: no float table is left, and its codes are there once."""
    quantize_weights(model, tmp_path / "v.onnx", BlockWeights("rtn", BLOCK, True))
    made = constants_of(tmp_path / "v.onnx")
    assert operators(tmp_path / "v.onnx") == ["GatherBlockQuantized", "Add", *["Reshape"] * 3, "MatMulNBits"]
    large = {name: array.nbytes for name, array in made.items() if array.nbytes > 64}
    assert large == {"table_codes8": TOKENS * K, "table_scales8": TOKENS * 2 * 4, "table_zero_points8": TOKENS * 2}
    head = next(made for made in onnx.load(tmp_path / "v.onnx").graph.node if made.op_type == "MatMulNBits")
    attributes = {item.name: helper.get_attribute_value(item) for item in head.attribute}
    assert attributes == {"K": K, "N": TOKENS, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}


def test_a_copy_of_the_table_is_tied_again(model: Path, tmp_path: Path) -> None:
    """Folding computes the transposition, and leaves two constants; any other weight of that shape is none of it."""
    nodes = [node("Gather", "table ids", "rows"), node("Add", "x rows", "a"), node("MatMul", "a copy", "y")]
    table = normal(TOKENS, K)
    save(tmp_path / "folded.onnx", nodes, {"table": table, "copy": table.T.copy(), "ids": np.array([7], np.int64)})
    for path in (model, tmp_path / "folded.onnx"):
        quantize_weights(path, tmp_path / f"v-{path.name}", BlockWeights("rtn", BLOCK, True))
    x = normal(5, K)
    one, two = (run(tmp_path / f"v-{path}", x) for path in ("m.onnx", "folded.onnx"))
    np.testing.assert_array_equal(one, two)
    assert operators(tmp_path / "v-folded.onnx") == operators(tmp_path / "v-m.onnx")

    other = onnx.load(tmp_path / "folded.onnx")
    head = next(node.input[1] for node in other.graph.node if node.op_type == "MatMul")
    weight = next(item for item in other.graph.initializer if item.name == head)
    values = onnx.numpy_helper.to_array(weight).copy()
    values[0, 0] += 1
    weight.CopyFrom(onnx.numpy_helper.from_array(values, head))
    before = [node.op_type for node in other.graph.node]
    assert retie(other.graph) == 0 and [node.op_type for node in other.graph.node] == before


@pytest.mark.parametrize("why", ["gathered along another axis", "rows that are no whole blocks", "excluded"])
def test_what_is_no_tied_embedding_is_left_alone(why: str, model: Path, tmp_path: Path) -> None:
    proto, block_size, exclude = onnx.load(model), BLOCK, ()
    if why == "gathered along another axis":
        proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    elif why == "rows that are no whole blocks":
        block_size = 64
    else:
        exclude = ("y_MatMul",)
    onnx.save(proto, model)
    if why == "excluded":
        proto.graph.node.append(helper.make_node("MatMul", ["a", "w"], ["other"], name="other"))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(normal(K, K), "w"))
        onnx.save(proto, model)
    weights = BlockWeights("rtn", block_size, True)
    report = quantize_weights(model, tmp_path / "v.onnx", weights, exclude=exclude)
    assert report.tied == () and "table" in constants_of(tmp_path / "v.onnx")
    assert "Gather" in operators(tmp_path / "v.onnx")


def test_an_embedding_of_its_own_is_in_blocks(tmp_path: Path) -> None:
    """INT8 unasked, INT4 if its node's form says so; one of few numbers, one read elsewhere and one excluded stay in float."""
    tokens = LEAST_NUMBERS // K
    tables = {name: normal(tokens, K) for name in ("whole", "summed", "left")} | {"small": normal(tokens - 1, K)}
    nodes = [node("Gather", f"{name} ids", f"{name}_row") for name in tables]
    nodes += [
        node("Sum", " ".join(f"{name}_row" for name in tables), "s"),
        node("ReduceMean", "summed", "mean", keepdims=0),
        node("Add", "s mean", "a"),
        node("MatMul", "a w", "b"),
        node("Add", "b x", "y"),
    ]
    constants = {**tables, "ids": np.array([7], np.int64), "w": normal(K, K)}
    model = save(tmp_path / "m.onnx", nodes, constants)
    for bits in (8, 4):
        forms = {} if bits == 8 else {"whole_row_Gather": BlockForm(4, BLOCK)}
        weights = BlockWeights("rtn", BLOCK if bits == 8 else 32, True, forms=forms)
        report = quantize_weights(model, tmp_path / "v.onnx", weights, exclude=["left_row_Gather", "b_MatMul"])
        assert report.looked_up == {"whole_row_Gather": bits} and (report.tied, report.quantized) == ((), {})
        made = constants_of(tmp_path / "v.onnx")
        assert {"small", "summed", "left"} <= made.keys() and "whole" not in made
        x, row = normal(5, K), tables["whole"][7:8]
        shift = (one_by_one(row, bits) - row) @ constants["w"]
        np.testing.assert_allclose(run(tmp_path / "v.onnx", x) - run(model, x), np.tile(shift, (5, 1)), atol=1e-4)


def test_an_embedding_alone_is_quantized_for_its_noise_only(tmp_path: Path) -> None:
    """A ranking quantizes it without the products; no candidate of INT4 is made of look-ups alone."""
    nodes = [node("Gather", "table ids", "row"), node("MatMul", "x w", "p"), node("Add", "p row", "y")]
    constants = {"table": normal(LEAST_NUMBERS // K, K), "ids": np.array([7], np.int64), "w": normal(K, K)}
    model = save(tmp_path / "m.onnx", nodes, constants)
    report = quantize_weights(model, tmp_path / "v.onnx", BlockWeights("rtn", BLOCK, True), exclude=["p_MatMul"])
    assert list(report.looked_up.values()) == [8] and not report.quantized
    save(tmp_path / "m.onnx", [nodes[0], node("Add", "x row", "y")], constants)
    with pytest.raises(CandidateRefused, match="no MatMul or Gemm"):
        quantize_weights(model, tmp_path / "v.onnx", BlockWeights("rtn", BLOCK, True))


def test_static_int8_has_its_embeddings_in_blocks_too(tmp_path: Path) -> None:
    """Beside Q/DQ pairs of the product; a node kept in float keeps its table."""
    nodes = [node("Gather", "table ids", "row"), node("Add", "x row", "a"), node("MatMul", "a w", "y")]
    constants = {"table": normal(LEAST_NUMBERS // K, K), "ids": np.array([7], np.int64), "w": normal(K, K)}
    model = save(tmp_path / "m.onnx", nodes, constants)
    x = normal(5, K)
    statistics = {"a": (-9.0, 9.0), "y": (-60.0, 60.0), "x": (-5.0, 5.0), "row": (-5.0, 5.0)}
    for kept in ((), ("row_Gather",)):
        quantize_qdq(
            model, tmp_path / "v.onnx", statistics, rules=PAIRS, every_operator=False, activation="uint8",
            weights=Int8Weights(),
        )  # fmt: skip
        rest = quantize_dynamic(
            tmp_path / "v.onnx", tmp_path / "v.onnx", weights=Int8Weights(), keep_float=kept, rest=True
        )
        assert rest.quantized == (() if kept else ("row_Gather",))
        kinds = operators(tmp_path / "v.onnx")
        assert kinds.count("GatherBlockQuantized") == 1 - len(kept) and kinds.count("DequantizeLinear") == 2
        assert ("table" in constants_of(tmp_path / "v.onnx")) == bool(kept)
        np.testing.assert_allclose(run(tmp_path / "v.onnx", x), run(model, x), atol=0.5)

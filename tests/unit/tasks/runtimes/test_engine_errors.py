"""What TensorRT says when it makes no engine of a file: each message of the table provoked by a real build, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from engine_models import ACTIVATION, FLOAT32, WEIGHT, build, codes, int8_product, pair, save, scales
from onnx import TensorProto
from tensorrt_rules import op

from tasks.engines.tensorrt.errors import notes_in, refusal_of, refused_warning
from tasks.engines.tensorrt.shipped.build import NodeError

pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt-aot is not installed")

W = {"w": WEIGHT.astype(np.float16)}
PRODUCT = op("MatMul", "x w", "o")
E4M3 = np.zeros((), ml_dtypes.float8_e4m3fn)


def activation(zero: Any, scale: float = 0.02, dtype: Any = np.float16) -> Callable[[Path], Path]:
    """A product whose input goes through Q/DQ with this zero point and scale."""
    constants = W | {"s": np.array(scale, dtype), "z": zero}
    return lambda path: save(path, [*pair("x", "s", "z"), op("MatMul", "x_d w", "o")], constants)


def weight(dtype: Any) -> Callable[[Path], Path]:
    nodes = [op("DequantizeLinear", "w s", "w_d"), op("MatMul", "x w_d", "o")]
    return lambda path: save(path, nodes, {"w": codes(dtype), "s": np.array(0.1, np.float16)})


def both(zero: Any, dtype: Any) -> Callable[[Path], Path]:
    """A product of an activation with this zero point and weights of this type."""
    nodes = [*pair("x", "s", "z"), op("DequantizeLinear", "w ws", "w_d", axis=1), op("MatMul", "x_d w_d", "o")]
    return lambda path: save(path, nodes, ACTIVATION | {"z": zero, "w": codes(dtype), "ws": scales(64)})


def bias(path: Path) -> Path:
    nodes = [op("DequantizeLinear", "b bs", "b_d", axis=0), op("Gemm", "x w b_d", "o")]
    return save(path, nodes, W | {"b": np.arange(64, dtype=np.int32), "bs": scales(64)})


def outside(path: Path, content: bytes | None) -> Path:
    """A model whose external data is gone, or cut off."""
    model = onnx.load(save(path, [PRODUCT], W))
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    path.with_name("data").unlink()
    if content is not None:
        path.with_name("data").write_bytes(content)
    return path


def text(path: Path, content: str | None) -> Path:
    if content is not None:
        path.write_text(content)
    return path


def product(path: Path) -> Path:
    return save(path, [PRODUCT], W)


def custom(path: Path) -> Path:
    node = onnx.helper.make_node("Mine", ["x"], ["o"], name="own", domain="com.acme")
    return save(path, [node], {}, domains=["com.acme"])


INVALID_FILES: dict[str, tuple[Callable[[Path], Path], str, str, str]] = {
    # model, kind of refusal, what it names, its cause
    "zero point": (activation(np.array(3, np.int8)), "invalid", "x_q (QuantizeLinear)", "asymmetric"),
    "uint8": (activation(np.array(128, np.uint8)), "invalid", "x_q (QuantizeLinear)", "UINT8"),
    "zero scale": (activation(np.array(0, np.int8), 0.0), "invalid", "x_q (QuantizeLinear)", "scale of zero"),
    "negative scale": (activation(np.array(0, np.int8), -1.0), "invalid", "x_q (QuantizeLinear)", "scale of zero"),
    "int32 bias": (bias, "invalid", "b_d (DequantizeLinear)", "bias stored as INT32"),
    "scale types": (
        activation(np.array(0, np.int8), dtype=np.float32),
        "invalid",
        "o (MatMul)",
        "mixes float16 and float32",
    ),
    "input types": (
        lambda path: save(path, [PRODUCT], {"w": WEIGHT}),
        "invalid",
        "o (MatMul)",
        "mixes float16 and float32",
    ),
    "sum of types": (
        lambda path: save(path, [op("Add", "x b", "o")], {"b": np.ones(32, np.float32)}),
        "invalid",
        "o (Add)",
        "mixes float16 and float32",
    ),
    "uint4": (weight(ml_dtypes.uint4), "unsupported", "w", "UINT4"),
    "int16": (weight(np.int16), "unsupported", "w", "INT16"),
    "uint16": (weight(np.uint16), "unsupported", "w", "UINT16"),
    "e5m2": (weight(ml_dtypes.float8_e5m2), "unsupported", "w", "E5M2"),
    "external data gone": (lambda path: outside(path, None), "invalid", "w", "external data"),
    "external data cut off": (lambda path: outside(path, b"123"), "invalid", "w", "external data"),
    "no such operator": (
        lambda path: save(path, [op("Det", "x", "o")], {}, shape=[32, 32]),
        "unsupported",
        "o (Det)",
        "does not have",
    ),
    "custom operator": (custom, "unsupported", "own (Mine)", "custom"),
    "text": (
        lambda path: save(path, [op("Identity", "x", "o")], {}, dtype=TensorProto.STRING),
        "unsupported",
        "",
        "is not numeric",
    ),
    "no model": (lambda path: text(path, "no model"), "invalid", "", "not an ONNX file"),
    "no file": (lambda path: text(path, None), "invalid", "", "is missing"),
    "shapes": (
        lambda path: save(path, [PRODUCT], {"w": WEIGHT[:16].astype(np.float16)}),
        "invalid",
        "o (MatMul)",
        "do not fit together",
    ),
    "fp8 with int8": (both(E4M3, np.int8), "unsupported", "", "FP8 with INT8"),
    "int8 with fp8": (both(np.array(0, np.int8), ml_dtypes.float8_e4m3fn), "unsupported", "", "FP8 with INT8"),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_a_file_is_refused_with_its_node_and_cause(tmp_path: Path, name: str) -> None:
    model, kind, place, cause = INVALID_FILES[name]
    plan = build(model(tmp_path / "model.onnx"))
    assert plan.engine is None
    refusal = refusal_of(plan.errors, plan.messages)
    assert refusal.kind == kind and cause in refusal.found.partition("likely cause: ")[2]
    assert refusal.found.startswith(f"TensorRT at {place}: " if place else "TensorRT: ")
    assert refusal.expected and refusal.fix


@pytest.mark.parametrize(
    ("profile", "cause"),
    [
        ({}, "a dynamic axis without a range"),
        ({"x": ((8, 32), (4, 32), (8, 32))}, "does not include its optimum"),
        ({"x": ((1, 16), (4, 16), (8, 16))}, "fixes at another size"),
        ({"x": ((1,), (4,), (8,))}, "fixes at another size"),
    ],
)
def test_a_profile_is_refused(tmp_path: Path, profile: dict[str, Any], cause: str) -> None:
    plan = build(product(tmp_path / "model.onnx"), profile)
    refusal = refusal_of(plan.errors, plan.messages)
    assert plan.engine is None and refusal.kind == "invalid" and cause in refusal.found
    assert "engines.axes" in refusal.fix and " x: " in refusal.found


def test_a_type_that_the_gpu_does_not_have_is_refused(tmp_path: Path) -> None:
    path = both(E4M3, ml_dtypes.float8_e4m3fn)(tmp_path / "model.onnx")
    assert build(path).engine is not None
    plan = build(path, compute_capability="8.6")
    refusal = refusal_of(plan.errors, plan.messages)
    assert plan.engine is None and refusal.kind == "unsupported" and "8.9 or later" in refusal.found


def test_no_workspace_is_refused(tmp_path: Path) -> None:
    plan = build(product(tmp_path / "model.onnx"), workspace_mb=0)
    refusal = refusal_of(plan.errors, plan.messages)
    assert plan.engine is None and refusal.kind == "unsupported" and "workspace_mb" in refusal.found


def test_an_engine_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    """UINT8 with a zero point of 0 parses, as INT8: a range from 0 to 255 would end at 127."""
    plan = build(activation(np.array(0, np.uint8))(tmp_path / "model.onnx"))
    refusal = refused_warning(plan.messages)
    assert plan.engine is not None and refusal is not None and refusal.kind == "invalid"
    assert "read as INT8" in refusal.found
    assert refused_warning([("WARNING", "Skipping tactic 3 due to insufficient memory on requested size of 9")]) is None
    assert refused_warning(build(int8_product(tmp_path / "model.onnx")).messages) is None


def test_warnings_that_change_nothing_are_left_out(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", [op("Cast", "x", "o", to=FLOAT32)], {}, dtype=TensorProto.INT64, gives=FLOAT32)
    plan = build(path)
    assert (
        any("Int64 binding" in text for kind, text in plan.messages if kind == "WARNING")
        and notes_in(plan.messages) == ()
    )
    assert notes_in([("WARNING", "Something else\n"), ("WARNING", "Something else"), ("INFO", "no")]) == (
        "Something else",
    )


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "[virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 8 bytes.)",
            "infra",
        ),
        ("Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode[a...b]}.)", "unsupp"),
    ],
)
def test_what_needs_a_gpu_is_known_by_its_words(said: str, kind: str) -> None:
    """Never provoked: as NVIDIA's documentation prints them."""
    assert refusal_of([], [("ERROR", said)]).kind.startswith(kind)


def test_memory_comes_before_what_fails_behind_it() -> None:
    errors = [NodeError(3, "conv", "Conv", "INVALID_NODE", "shiftIsAllZeros")]
    assert refusal_of(errors, [("ERROR", "out of memory")]).kind == "infrastructure"
    assert refusal_of(errors, []).kind == "invalid"


def test_many_nodes_are_counted_and_unknown_words_are_passed_on() -> None:
    errors = [NodeError(index, f"n{index}", "Conv", "INVALID_NODE", "never heard of") for index in range(5)]
    refusal = refusal_of(errors, [("VERBOSE", "out of memory")])
    assert refusal.found == (
        "TensorRT at n0 (Conv), n1 (Conv), n2 (Conv) and 2 more: never heard of; likely cause: unknown"
    )
    assert refusal_of([], []).found == "TensorRT: nothing; likely cause: unknown"


def test_input_whose_values_decide_shapes_is_built_for_a_range(tmp_path: Path) -> None:
    """`n` says how many copies of the product there are: a shape tensor, of which TensorRT wants to know the values."""
    path = save(tmp_path / "tiled.onnx", [PRODUCT], W)
    model = onnx.load(path)
    model.graph.node[0].output[0] = "product"
    model.graph.node.extend([op("Concat", "one n", "copies", axis=0), op("Tile", "product copies", "o")])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("n", TensorProto.INT64, [1]))
    onnx.save(model, path)
    refused = build(path)
    assert refused.engine is None and any("values for shape input tensor n" in text for _, text in refused.messages)
    assert build(path, values={"n": ((1,), (2,), (4,))}).engine

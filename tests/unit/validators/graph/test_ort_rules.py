"""The linter's rules for ONNX Runtime, against the sessions that it makes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from docs_pages import ROOT
from other_processor import environment, why_not
from packaging.version import Version
from qdq_models import E4M3, HALF, IMAGE, INT4, SINGLE, Part, const, drawn, model, op, pair, product, weight

from tasks.engines.catalog import lint, lint_here
from tasks.engines.ort.rules import CPU_RULES, CUDA_RULES

CPU, CUDA = ({rule.identifier: rule for rule in rules} for rules in (CPU_RULES, CUDA_RULES))
RUNTIME = f"ONNX Runtime {onnxruntime.__version__}"
ALL, NONE = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def made(part: Part, shape: tuple[int | str, ...] = ("n", 64), others: str = "") -> onnx.ModelProto:
    """A model of floats; `others` is one more output."""
    proto = model(part, shape, floats=SINGLE)
    if others:
        proto.graph.output.append(onnx.helper.make_tensor_value_info(others, onnx.TensorProto.FLOAT, None))
    return proto


def x(codes: object = np.uint8, **changes: object) -> Part:
    return pair(codes=codes, floats=SINGLE, **changes)  # type: ignore[arg-type]  # the table gives the right types


def w(*shape: int, **changes: object) -> Part:
    return weight(*shape, floats=SINGLE, **changes)  # type: ignore[arg-type]  # the table gives the right types


def out(name: str = "m") -> Part:
    return pair(name, "y", codes=np.uint8, floats=SINGLE, scale=0.5)


CONV = x() + w(8, 4, 3, 3, axis=0)
ENDS = product(kind="Conv", output="m") + out()
GEMM = x() + w(64, 32, zero=[0] * 32)
RELU_READ_TWICE = product(kind="Conv", output="c") + op("Relu", "c", "m") + out("m")


def bias(scale: object, codes: Any = np.int32, n: int = 32) -> Part:
    """A bias stored as integers, with a scale or several."""
    dequantized = op("DequantizeLinear", "bq bs", "b", axis=0)
    return dequantized + const(bq=np.arange(n, dtype=np.dtype(codes)), bs=np.full(n, scale, SINGLE))


def right(part: Part, factor: float = 1.0, n: int = 32) -> Part:
    """A bias with the product of both factors' scales."""
    return bias(part.constants["xd_s"] * part.constants["wd_s"] * factor, n=n)


def half(part: Part, shape: tuple[int | str, ...] = ("n", 64)) -> onnx.ModelProto:
    constants = {name: array.astype(HALF) if array.dtype == SINGLE else array for name, array in part.constants.items()}
    return model(Part(part.nodes, constants), shape, floats=HALF)


def between(kind: str, inputs: str, rows: int = 64, **more: object) -> onnx.ModelProto:
    """An operator behind a pair, before MatMul."""
    attributes = {name: value for name, value in more.items() if not isinstance(value, np.ndarray)}
    constants = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    return made(x() + op(kind, inputs, "z", **attributes) + const(**constants) + w(rows, 32) + product("z wd"))


LINT_ALL = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from tasks.engines.catalog import lint_here
for path in sys.argv[1:]:
    findings, basis = lint_here(Path(path), "ort-cpu")
    print(json.dumps([[asdict(one) for one in findings], basis]))
"""
LSTM = x() + w(1, 32, 64, axis=None) + w(1, 32, 8, axis=None, output="rd")
LSTM += op("LSTM", "xd wd rd", "y", hidden_size=8)
STORED = w(16, 4, 32, axis=None) + op("Reshape", "wd rows", "z") + const(rows=np.array([64, 32]))
LINEAR = product(output="a") + const(b=drawn(32).astype(SINGLE)) + op("Add", "a b", "y")
# With the rule and the float kernel that the session has for the product; without a rule where only the session knows.
FLOAT_RUNS: dict[str, tuple[str, onnx.ModelProto, str]] = {
    "Conv with a float output": ("CPU201", made(CONV + product(kind="Conv"), IMAGE), "Conv"),
    "Conv, Relu with a float output": (
        "CPU201",
        made(CONV + product(kind="Conv", output="c") + op("Relu", "c", "y"), IMAGE),
        "FusedConv",
    ),
    "Conv, Relu read by Q and in float": (
        "CPU201",
        made(CONV + RELU_READ_TWICE + op("Sigmoid", "m", "s"), IMAGE, others="s"),
        "FusedConv",
    ),
    "Conv quantized by two scales": ("CPU201", made(CONV + ENDS + pair("m", "z", floats=SINGLE), IMAGE), "Conv"),
    "Conv, Clip above the range": (
        "",
        made(
            CONV
            + product(kind="Conv", output="c")
            + op("Clip", "c low high", "m")
            + const(low=SINGLE.type(0), high=SINGLE.type(6))
            + out(),
            IMAGE,
        ),
        "FusedConv",
    ),
    "INT8 by INT4": ("CPU202", made(x() + w(64, 32, codes=INT4) + product()), "MatMul"),
    "16 bits": ("CPU202", made(x(np.int16) + w(64, 32) + product()), "MatMul"),
    "constant as first factor": ("CPU202", made(x() + w(8, 64, axis=None) + product("wd xd"), (64, 16)), "MatMul"),
    "constant as first factor, per channel": (
        "CPU202",
        made(x(np.int8) + w(8, 64, axis=0) + product("wd xd"), (64, 16)),
        "MatMul",
    ),
    "ConvTranspose": (
        "CPU203",
        made(x() + w(4, 8, 3, 3, axis=None) + product(kind="ConvTranspose", output="m") + out(), IMAGE),
        "ConvTranspose",
    ),
    "Einsum": ("CPU203", made(x() + w(64, 32) + product(kind="Einsum", equation="ij,jk->ik")), "Einsum"),
    "LSTM": ("CPU203", made(LSTM, ("s", "n", 64)), "LSTM"),
    "float weight": ("CPU204", made(x() + const(w=drawn(64, 32).astype(SINGLE)) + product("xd w")), "MatMul"),
    "INT8 weight of Conv alone": ("CPU204", made(w(8, 4, 3, 3, axis=0) + product("x wd", "Conv"), IMAGE), "Conv"),
    "INT8 weight of Gemm alone": ("CPU204", made(w(64, 32, zero=[0] * 32) + product("x wd", "Gemm")), "Gemm"),
    "INT8 weight of MatMul alone, per channel": ("CPU204", made(w(64, 32) + product("x wd")), "MatMul"),
    "INT4 weight in blocks of 8": (
        "CPU204",
        made(w(256, 64, codes=INT4, axis=0, blocks=32) + product("x wd"), ("n", 256)),
        "MatMul",
    ),
    "Gemm without zero points": ("CPU205", made(x() + w(64, 32) + product(kind="Gemm")), "Gemm"),
    "Gemm with a float bias": (
        "CPU206",
        made(GEMM + const(b=drawn(32).astype(SINGLE)) + product("xd wd b", "Gemm")),
        "Gemm",
    ),
    "Gemm with an INT8 bias": ("CPU206", made(GEMM + bias(0.1, np.int8) + product("xd wd b", "Gemm")), "Gemm"),
    "MatMul and Add of a bias": ("CPU206", made(x() + w(64, 32) + LINEAR), "Gemm"),
    "Gemm with beta": ("", made(GEMM + right(GEMM) + product("xd wd b", "Gemm", beta=0.5)), "Gemm"),
    "Conv with an INT32 bias of another scale": (
        "CPU207",
        made(CONV + bias(0.3, n=8) + product("xd wd b", "Conv", "m") + out(), IMAGE),
        "Conv",
    ),
    "Conv with an INT32 bias, 2 % off": (
        "CPU207",
        made(CONV + right(CONV, 1.02, 8) + product("xd wd b", "Conv", "m") + out(), IMAGE),
        "Conv",
    ),
    "MatMul with scales of FLOAT16": ("CPU208", half(x() + w(64, 32) + product()), "MatMul"),
    "Gemm with scales of FLOAT16": ("CPU208", half(GEMM + product(kind="Gemm")), "Gemm"),
    "Conv with scales of FLOAT16": ("CPU208", half(CONV + ENDS, IMAGE), "Conv"),
    "Reshape of a stored weight": ("CPU209", made(x() + STORED + product("xd z")), "MatMul"),
    "Slice of a stored weight": (
        "CPU209",
        made(
            x()
            + w(80, 32, axis=None)
            + op("Slice", "wd first last", "z")
            + const(first=np.array([0]), last=np.array([64]))
            + product("xd z")
        ),
        "MatMul",
    ),
    "Gather behind a pair": ("CPU209", between("Gather", "xd at", 32, axis=1, at=np.arange(32)), "MatMul"),
    "Flatten behind a pair": ("CPU209", between("Flatten", "xd"), "MatMul"),
    "Mul by one number behind a pair": ("CPU209", between("Mul", "xd c", c=np.array(1.5, SINGLE)), "FusedMatMul"),
    "Concat behind a pair": ("", between("Concat", "xd xd", 128, axis=1), "MatMul"),
}
# With the rule, and what comes of the first request.
OTHER_RUNS: dict[str, tuple[str, onnx.ModelProto, str]] = {
    "MatMul with scales along K": ("CPU101", made(x() + w(64, 32, axis=0) + product()), "fails"),
    "MatMul with scales along K, K = N": ("CPU101", made(x() + w(64, 64, axis=0) + product()), "wrong"),
    "Gemm with scales along K, K = N": (
        "CPU101",
        made(x() + w(64, 64, axis=0, zero=[0] * 64) + product(kind="Gemm")),
        "wrong",
    ),
    "Conv with scales along input channels": ("CPU101", made(x() + w(8, 4, 3, 3, axis=1) + ENDS, IMAGE), "fails"),
    "Conv of an image quantized per channel": (
        "CPU101",
        made(x(scale=[0.05] * 4, axis=1) + w(8, 4, 3, 3, axis=0) + ENDS, IMAGE),
        "fails",
    ),
    "UINT8 constant as first factor, per channel": (
        "CPU101",
        made(x() + w(8, 64, codes=np.uint8, axis=0, zero=[3] * 8) + product("wd xd"), (64, 16)),
        "fails",
    ),
    "Gemm with an INT32 bias of another scale": (
        "CPU103",
        made(GEMM + bias(0.3) + product("xd wd b", "Gemm")),
        "wrong",
    ),
    "INT8 weight of MatMul in blocks, both quantized": (
        "CPU002",
        made(x() + w(64, 32, axis=0, blocks=2) + product()),
        "fails",
    ),
    "INT8 weight of Conv in blocks, both quantized": (
        "CPU002",
        made(x() + w(8, 4, 3, 3, axis=0, blocks=2) + ENDS, IMAGE),
        "fails",
    ),
}
# With the kernel that stands for the product.
SOUND = {
    "MatMul": (made(x() + w(64, 32) + product()), "MatMulIntegerToFloat"),
    "Gemm": (made(x() + w(64, 32, zero=[0] * 32) + product(kind="Gemm")), "QGemm"),
    "Conv": (made(CONV + product(kind="Conv", output="m") + out(), IMAGE), "QLinearConv"),
    "Conv, Relu": (
        made(CONV + product(kind="Conv", output="c") + op("Relu", "c", "m") + out(), IMAGE),
        "QLinearConv",
    ),
    "INT4 weights": (made(w(256, 32, codes=INT4, axis=0, blocks=4) + product("x wd"), ("n", 256)), "MatMulNBits"),
    "INT8 weights in blocks": (made(w(256, 32, axis=0, blocks=4) + product("x wd"), ("n", 256)), "MatMulNBits"),
    "INT8 weights of one scale": (made(w(64, 32, axis=None) + product("x wd")), "MatMulNBits"),
    "INT4 weights of Gemm": (
        made(w(256, 32, codes=INT4, axis=0, blocks=4) + product("x wd", "Gemm"), ("n", 256)),
        "MatMulNBits",
    ),
    "INT4 weights with scales of FLOAT16": (
        half(w(256, 32, codes=INT4, axis=0, blocks=4) + product("x wd"), ("n", 256)),
        "MatMulNBits",
    ),
    "Gemm with an INT32 bias": (made(GEMM + right(GEMM) + product("xd wd b", "Gemm")), "QGemm"),
    "Gemm with a float bias, quantized output": (
        made(GEMM + const(b=drawn(32).astype(SINGLE)) + product("xd wd b", "Gemm", "m") + out()),
        "QGemm",
    ),
    "Conv with an INT32 bias": (
        made(CONV + right(CONV, n=8) + product("xd wd b", "Conv", "m") + out(), IMAGE),
        "QLinearConv",
    ),
    "Conv with a float bias": (
        made(CONV + const(b=drawn(8).astype(SINGLE)) + product("xd wd b", "Conv", "m") + out(), IMAGE),
        "QLinearConv",
    ),
    "MatMul and Add, three axes": (made(x() + w(64, 32) + LINEAR, ("n", 8, 64)), "MatMulIntegerToFloat"),
    "UINT8 constant as first factor": (
        made(x() + w(8, 64, codes=np.uint8, axis=None, zero=3) + product("wd xd"), (64, 16)),
        "MatMulIntegerToFloat",
    ),
    "Reshape": (between("Reshape", "xd all", all=np.array([-1, 64])), "MatMulIntegerToFloat"),
    "Slice": (
        between("Slice", "xd first last axis", 32, first=np.array([0]), last=np.array([32]), axis=np.array([1])),
        "MatMulIntegerToFloat",
    ),
    "Transpose of the weight": (
        made(x() + w(32, 64, axis=0) + op("Transpose", "wd", "t", perm=[1, 0]) + product("xd t")),
        "MatMulIntegerToFloat",
    ),
}


def session(path: Path, level: object = ALL) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def kernels(path: Path) -> Counter[str]:
    session(path)
    return Counter(node.op_type for node in onnx.load(path.with_suffix(".optimized.onnx")).graph.node)


def titles(rule: str) -> set[str]:
    return {"SEEN float"} if rule == "SEEN" else {CPU[rule].title} if rule else set()


def proto_product(proto: onnx.ModelProto) -> str:
    """The name of the node that multiplies."""
    kinds = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM")
    return str(next(node.name for node in proto.graph.node if node.op_type in kinds))


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("name", FLOAT_RUNS)
def test_float_products_are_seen_and_explained(tmp_path: Path, name: str) -> None:
    """Rules alone know most of them, the session all; a rule then says why."""
    rule, proto, kernel = FLOAT_RUNS[name]
    path = saved(tmp_path, proto)
    assert {finding.rule for finding in lint(path, "ort-cpu") if finding.consequence == "float"} == titles(rule)
    findings, basis = lint_here(path, "ort-cpu")
    assert [finding.rule for finding in findings] == [*titles(rule or "SEEN")]
    seen = f"{RUNTIME} multiplies floats in {kernel}, behind "
    assert findings[0].consequence == "float" and findings[0].seen.startswith(seen)
    assert findings[0].node == proto_product(proto) and basis.startswith(
        f"seen in a session of {RUNTIME} on this processor"
    )


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_failures_and_wrong_numbers_are_seen(tmp_path: Path, name: str) -> None:
    rule, proto, consequence = OTHER_RUNS[name]
    path = saved(tmp_path, proto)
    assert {finding.rule for finding in lint(path, "ort-cpu")} == titles(rule)
    (finding,), _ = lint_here(path, "ort-cpu")
    assert (finding.rule, finding.consequence, finding.node) == (CPU[rule].title, consequence, proto_product(proto))
    words = "fails at a first request of x [" if consequence == "fails" else "(RMS) off the graph as written"
    assert finding.seen.startswith(RUNTIME) and words in finding.seen


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_has_no_finding_and_its_kernel(tmp_path: Path, name: str) -> None:
    proto, kernel = SOUND[name]
    path = saved(tmp_path, proto)
    assert lint(path, "ort-cpu") == () and lint_here(path, "ort-cpu")[0] == () and kernels(path)[kernel] == 1


def test_the_page_lists_the_patterns_with_expected_and_seen() -> None:
    """The kernel of integers is expected of each product, and the file's numbers of each answer."""
    page = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| (.*) \| (.*) \| (.*) \| (.*) \|$", page, re.M))
    told = {"fails": ("an answer", "fails at a first request"), "wrong": ("the file's numbers", "other numbers")}
    known = {
        (name, "integers", f"floats in {kernel}", f"`{rule}`" if rule else "")
        for name, (rule, _, kernel) in FLOAT_RUNS.items()
    }
    known |= {(name, *told[outcome], f"`{rule}`") for name, (rule, _, outcome) in OTHER_RUNS.items()}
    assert known <= rows


def test_weights_of_8_bits_saturate_without_vnni(tmp_path: Path) -> None:
    """UINT8 weights and INT8 weights of 7 bits do not. AVX2 without VNNI, this processor's or with CPUID masked."""
    if why := why_not("avx2"):
        pytest.skip(why)
    large = np.tile([[127], [-127], [127], [127]], (16, 32))
    variants = {"INT8": (np.int8, large), "7 bits": (np.int8, large // 2), "UINT8": (np.uint8, large + 128)}
    for name, (codes, weights) in variants.items():
        part = w(64, 32, codes=codes, zero=[128 if codes is np.uint8 else 0] * 32, scale=[0.01] * 32)
        part.constants["wd_q"] = weights.astype(codes)
        onnx.save(made(x(scale=0.002) + part + product()), tmp_path / f"{name}.onnx")
    command = [sys.executable, "-c", LINT_ALL, *(str(tmp_path / f"{name}.onnx") for name in variants)]
    done = subprocess.run(command, env=os.environ | environment("avx2"), capture_output=True, text=True, check=True)
    found = {name: json.loads(line) for name, line in zip(variants, done.stdout.splitlines(), strict=True)}
    assert found["7 bits"][0] == found["UINT8"][0] == [] and "vnni" not in found["INT8"][1]
    (finding,) = found["INT8"][0]
    assert finding["rule"] == CPU["CPU102"].title and "(RMS) off the graph as written" in finding["seen"]


def test_no_runtime_leaves_the_rules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, FLOAT_RUNS["LSTM"][1])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    findings, basis = lint_here(path, "ort-cpu")
    assert basis == "rules alone: ONNX Runtime is not installed"
    assert [(item.rule, item.seen) for item in findings] == [(CPU["CPU203"].title, "")]


def test_missing_weights_leave_the_rules_alone(tmp_path: Path) -> None:
    proto = FLOAT_RUNS["INT8 weight of Gemm alone"][1]
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1000)
    (tmp_path / "w.bin").unlink()
    findings, basis = lint_here(tmp_path / "m.onnx", "ort-cpu")
    assert basis.startswith("rules alone: ") and "w.bin" in basis and [item.seen for item in findings] == [""]


def test_without_a_request_the_graph_still_shows_the_kernels(tmp_path: Path) -> None:
    """Rows of 7 numbers of an axis that the model leaves open: no size that is tried fits."""
    rows = op("Reshape", "x sevens", "r") + const(sevens=np.array([-1, 7]))
    whole = rows + pair("r", "xd", codes=np.uint8, floats=SINGLE) + w(7, 32) + LINEAR
    findings, basis = lint_here(saved(tmp_path, made(whole, ("n", "m"))), "ort-cpu")
    assert basis.endswith("without a request: none could be made up")
    assert [item.rule for item in findings] == [CPU["CPU206"].title]


def test_custom_operators_leave_the_rules_alone(tmp_path: Path) -> None:
    proto = made(op("Own", "x", "o") + x() + w(64, 32) + product(kind="Gemm"))
    proto.graph.node[0].domain = "acme"
    proto.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    findings, basis = lint_here(saved(tmp_path, proto), "ort-cpu")
    assert basis.startswith("rules alone: ") and basis.endswith("of acme")
    assert [item.rule for item in findings] == [CPU["CPU205"].title]


def test_a_file_that_does_not_load_fails(tmp_path: Path) -> None:
    proto = made(op("QuickGeluu", "x", "y"))
    proto.graph.node[0].domain = "com.microsoft"
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (finding,), _ = lint_here(saved(tmp_path, proto), "ort-cpu")
    assert finding.consequence == "fails" and "does not load" in finding.seen and "QuickGeluu" in finding.seen


@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
def test_fp8_does_not_load_or_runs_in_float(tmp_path: Path, kind: str) -> None:
    parts = {"MatMul": w(64, 32, codes=E4M3), "Conv": w(8, 4, 3, 3, codes=E4M3, axis=0)}
    whole = x(E4M3) + parts[kind] + product(kind=kind, output="m")
    whole += pair("m", "y", codes=E4M3, floats=SINGLE)
    path = saved(tmp_path, made(whole, ("n", 64) if kind == "MatMul" else IMAGE))
    assert CPU["CPU001"].title in {finding.rule for finding in lint(path, "ort-cpu")}
    if Version(onnxruntime.__version__) < Version("1.32"):
        with pytest.raises(Exception, match="float8e4m3fn"):
            session(path)
    else:
        assert kernels(path)[kind] == 1
    session(path, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)


def test_scales_along_the_sum_give_other_numbers(tmp_path: Path) -> None:
    """Against the unoptimized graph, which computes what the file says; per output channel the two agree."""
    data = {"x": drawn(8, 64).astype(np.float32)}
    difference = {}
    for axis in (0, 1):
        path = saved(tmp_path, made(x() + w(64, 64, axis=axis) + product()))
        found = [finding.rule for finding in lint(path, "ort-cpu")]
        assert found == ([CPU["CPU101"].title] if axis == 0 else [])
        answers = [session(path, level).run(None, data)[0] for level in (ALL, NONE)]
        difference[axis] = np.abs(answers[0] - answers[1]).max() / np.abs(answers[1]).max()
    assert difference[1] < 1e-5 and difference[0] > 0.1


def test_pairs_are_no_use_to_the_cuda_provider(tmp_path: Path) -> None:
    assert [item.rule for item in lint(saved(tmp_path, SOUND["MatMul"][0]), "ort-cuda")] == [CUDA["CUDA201"].title]
    assert lint(saved(tmp_path, SOUND["INT4 weights"][0]), "ort-cuda") == ()

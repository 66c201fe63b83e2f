"""The linter's rules: each is broken by a model of its own, and what it says comes of that is seen in a real build."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from broken_models import BROKEN as BROKEN_PAIRS
from broken_models import Broken, in_float
from docs_pages import ROOT
from limit_models import LIMITS, WITHIN
from qdq_models import E4M3, HALF, IMAGE, INT4, Part, attention, const, drawn, model, op, pair, product, weight
from real_builds import Built, build

from tasks.engines.catalog import lint, lint_here
from tasks.engines.tensorrt.rules import TENSORRT_RULES
from validators.graph.lint import Finding

BROKEN = BROKEN_PAIRS | LIMITS
RULES = {rule.identifier: rule for rule in TENSORRT_RULES}
HALVES = {"start": [0], "end": [32], "axis": [1], "index": list(range(32)), "all": [-1, 64]}


def moved(nodes: Part, rows: int = 64) -> onnx.ModelProto:
    """MatMul behind an operator that moves what was dequantized."""
    return model(
        pair() + nodes + weight(rows, 32) + product("z wd") + const(**{k: np.array(v) for k, v in HALVES.items()})
    )


def fused(name: str, inputs: str) -> Part:
    return op(name, inputs, "z")


# No rule is broken, and the product is one of integers; operators between that the linter lets pass.
SOUND: dict[str, onnx.ModelProto] = {
    "MatMul": model(pair() + weight(64, 32) + product()),
    "MatMul of one scale": model(pair() + weight(64, 32, axis=None) + product()),
    "MatMul of a float weight behind both": model(
        pair() + pair("w", "wd", scale=[0.02] * 32, axis=1) + const(w=drawn(64, 32).astype(HALF)) + product()
    ),
    "MatMul with zeros as zero points": model(pair() + weight(64, 32, zero=[0] * 32) + product()),
    "MatMul in opset 19": model(pair(codes=E4M3) + weight(64, 32, codes=E4M3) + product(), opset=19),
    "Gemm": model(pair() + weight(64, 32) + const(b=drawn(32).astype(HALF)) + product("xd wd b", "Gemm")),
    "Gemm with transB": model(pair() + weight(32, 64, axis=0) + product(kind="Gemm", transB=1)),
    "Conv": model(pair() + weight(8, 4, 3, 3, axis=0) + product(kind="Conv"), IMAGE),
    "Conv of FP8": model(pair(codes=E4M3) + weight(8, 4, 3, 3, codes=E4M3, axis=0) + product(kind="Conv"), IMAGE),
    "Conv of groups": model(pair() + weight(16, 4, 3, 3, axis=0) + product(kind="Conv", group=4), ("n", 16, 8, 8)),
    "batch of matrices": model(pair() + weight(4, 64, 32, axis=2) + product(), ("n", 4, 8, 64)),
    "weight on the left": model(pair() + weight(8, 64, axis=0) + product("wd xd"), (64, 16)),
    "rows of a matrix": model(pair(scale=[0.1] * 8, axis=0) + weight(64, 32) + product(), (8, 64)),
    "INT8 by INT4 per channel": model(pair() + weight(64, 32, codes=INT4) + product()),
    "Einsum": model(pair() + weight(64, 32) + product(kind="Einsum", equation="ij,jk->ik")),
    "scale folded": model(
        op("Mul", "a b", "xd_s")
        + const(a=np.asarray(0.5, HALF), b=np.asarray(0.1, HALF), xd_z=np.asarray(0, np.int8))
        + Part(pair().nodes)
        + weight(64, 32)
        + product()
    ),
    "Transpose of the weight": model(
        pair() + weight(32, 64, axis=0) + op("Transpose", "wd", "t", perm=[1, 0]) + product("xd t")
    ),
    "Reshape": moved(fused("Reshape", "xd all")),
    "Slice": moved(fused("Slice", "xd start end axis"), 32),
    "Gather": moved(op("Gather", "xd index", "z", axis=1), 32),
    "Split": moved(op("Split", "xd", "z z2", axis=1, num_outputs=2), 32),
    "Pad before a Conv": model(
        pair()
        + op("Pad", "xd pads", "z")
        + weight(8, 4, 3, 3, axis=0)
        + product("z wd", "Conv")
        + const(pads=np.array([0, 0, 1, 1, 0, 0, 1, 1])),
        IMAGE,
    ),
    "Concat": moved(op("Concat", "xd xd", "z", axis=1), 128),
    "Identity": moved(fused("Identity", "xd")),
    "Neg": moved(fused("Neg", "xd")),
    "Flatten": moved(fused("Flatten", "xd")),
    "Squeeze": moved(op("Unsqueeze", "xd axis", "u") + fused("Squeeze", "u axis")),
    "Mul by one number": moved(const(c=np.asarray(1.5, HALF)) + fused("Mul", "xd c")),
    "Div by one number": moved(const(c=np.asarray(8, HALF)) + fused("Div", "xd c")),
    "Cast there and back": moved(op("Cast", "xd", "u", to=1) + op("Cast", "u", "z", to=10)),
    "MaxPool": model(
        pair() + op("MaxPool", "xd", "z", kernel_shape=[2, 2]) + weight(8, 4, 3, 3, axis=0) + product("z wd", "Conv"),
        IMAGE,
    ),
}
# INT4 weights alone are multiplied in float, by a kernel that reads the INT4.
WEIGHT_ONLY: dict[str, onnx.ModelProto] = {
    f"{rows} by 32, {blocks} blocks": model(
        weight(rows, 32, codes=INT4, axis=0, blocks=blocks) + product("x wd"), ("n", rows)
    )
    for rows, blocks in ((128, 2), (1024, 128), (1024, 2), (192, 3))
} | {
    "along N": model(weight(256, 64, codes=INT4, axis=1, blocks=2) + product("x wd"), ("n", 256)),
    "negative scales": model(
        weight(256, 64, codes=INT4, axis=0, blocks=4, scale=np.full((4, 64), -0.1)) + product("x wd"), ("n", 256)
    ),
    "zero scales": model(
        weight(256, 64, codes=INT4, axis=0, blocks=4, scale=np.zeros((4, 64))) + product("x wd"), ("n", 256)
    ),
    "Gemm": model(
        weight(64, 256, codes=INT4, axis=1, blocks=4)
        + const(b=drawn(64).astype(HALF))
        + product("x wd b", "Gemm", transB=1),
        ("n", 256),
    ),
}
FUSED_ATTENTION: dict[str, onnx.ModelProto] = {
    "FP8": attention(E4M3),
    "FP8, any batch": attention(E4M3, shape=("n", 8, 128, 64)),
    "float16": attention(E4M3, quantized=0),
    "float16, any length": attention(E4M3, quantized=0, shape=("n", 8, "s", 64)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """All models as files, by the identity of the model: keys are not unique over the tables."""
    folder = tmp_path_factory.mktemp("models")
    tables = [
        [case.model for case in BROKEN.values()],
        *(table.values() for table in (SOUND, WEIGHT_ONLY, FUSED_ATTENTION, WITHIN)),
    ]
    paths = {
        id(made): folder / f"{index}.onnx" for index, made in enumerate(made for table in tables for made in table)
    }
    for made in (made for table in tables for made in table):
        onnx.save(made, paths[id(made)])
    return paths


@pytest.fixture(scope="module")
def builds(files: dict[int, Path]) -> dict[int, Built]:
    """What TensorRT-RTX makes of each."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    return dict(zip(files, build(*files.values()), strict=True))


def findings(files: dict[int, Path], made: onnx.ModelProto) -> tuple[Finding, ...]:
    return lint(files[id(made)], "tensorrt")


def test_each_rule_is_broken_by_a_model() -> None:
    assert {case.rule for case in BROKEN.values()} == set(RULES)
    assert [rule.identifier for rule in TENSORRT_RULES] == sorted(RULES)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_breaks_its_rule_alone(files: dict[int, Path], name: str) -> None:
    case = BROKEN[name]
    found = findings(files, case.model)
    assert [finding.rule for finding in found] == [RULES[case.rule].title], found
    assert found[0].consequence == RULES[case.rule].consequence and found[0].node and found[0].found and found[0].fix


@pytest.mark.parametrize("name", BROKEN)
def test_a_build_shows_what_the_rule_says(builds: dict[int, Built], name: str) -> None:
    case: Broken = BROKEN[name]
    built = builds[id(case.model)]
    if isinstance(case.evidence, str):
        assert RULES[case.rule].consequence == "fails" and not built.engine
        assert any(case.evidence in error for error in built.errors), built.errors
    else:
        assert built.engine and not built.errors
        assert case.evidence(built), built.layers


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_has_no_finding_and_multiplies_in_integers(
    files: dict[int, Path], builds: dict[int, Built], name: str
) -> None:
    assert findings(files, SOUND[name]) == ()
    built = builds[id(SOUND[name])]
    assert built.engine and not in_float(built)


@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_sound_weights_of_int4_are_read_by_the_product(
    files: dict[int, Path], builds: dict[int, Built], name: str
) -> None:
    assert findings(files, WEIGHT_ONLY[name]) == ()
    built = builds[id(WEIGHT_ONLY[name])]
    assert [layer.kind for layer in built.of("y") if "Int4" in layer.constants] == ["runtime_fusion"]


@pytest.mark.parametrize("name", FUSED_ATTENTION)
def test_sound_attention_is_one_kernel(files: dict[int, Path], builds: dict[int, Built], name: str) -> None:
    assert findings(files, FUSED_ATTENTION[name]) == ()
    assert any("mha" in layer.tactic for layer in builds[id(FUSED_ATTENTION[name])].layers)


@pytest.mark.parametrize("name", WITHIN)
def test_settings_within_the_limits_have_no_finding(
    files: dict[int, Path], builds: dict[int, Built], name: str
) -> None:
    assert findings(files, WITHIN[name]) == () and builds[id(WITHIN[name])].engine


def test_the_page_lists_the_limits_with_expected_and_seen() -> None:
    page = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    rows = {tuple(row) for row in re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", page, re.M)}
    assert {(name, "an engine", f"“{case.evidence}”") for name, case in LIMITS.items()} <= rows


def test_errors_of_the_parser_are_facts(tmp_path: Path) -> None:
    """A rule explains the first; the second has none; the third is named by the rule alone, as the parser does not."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    onnx.save(LIMITS["LSTM with input_forget"].model, tmp_path / "lstm.onnx")
    (finding,), basis = lint_here(tmp_path / "lstm.onnx", "tensorrt")
    assert basis.startswith("rules, and the parser of TensorRT-RTX 1.")
    assert finding.rule == "TRT009 refused-setting" and "Coupled input/forget is unsupported" in finding.seen
    onnx.save(model(op("Reshape", "x to", "y") + const(to=np.array([7, 7])), (8, 8)), tmp_path / "shape.onnx")
    (finding,), _ = lint_here(tmp_path / "shape.onnx", "tensorrt")
    assert (finding.rule, finding.consequence) == ("SEEN fails", "fails") and finding.found == finding.seen
    onnx.save(LIMITS["ScatterElements that takes the largest"].model, tmp_path / "scatter.onnx")
    (finding,), _ = lint_here(tmp_path / "scatter.onnx", "tensorrt")
    assert finding.node == "y" and "Unsupported reduction type" in finding.seen


def test_without_the_parser_the_rules_are_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.tensorrt.lint.available", dict)
    onnx.save(LIMITS["LSTM with input_forget"].model, tmp_path / "lstm.onnx")
    (finding,), basis = lint_here(tmp_path / "lstm.onnx", "tensorrt")
    assert basis.startswith("rules alone: tensorrt_rtx is not installed")
    assert (finding.rule, finding.seen) == ("TRT009 refused-setting", "")

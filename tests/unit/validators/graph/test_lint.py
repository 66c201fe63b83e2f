"""`quantgate lint`: what it prints and writes, its exit codes, and what it says of files that are no such models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny
from docs_pages import ROOT
from onnx import TensorProto, helper
from qdq_models import HALF, SINGLE, Part, const, drawn, model, op, pair, product, weight
from test_cli import quantgate

from tasks.engines.catalog import find_target, lint
from validators.errors import SourceError
from validators.graph.lint import CONSEQUENCES, MEANING

GOOD = pair() + weight(64, 32) + product()
ALONG_K = pair() + weight(64, 32, axis=0) + product()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file, one that runs in float with an idle pair at the end, and one that is merely slow."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(model(GOOD), folder / "good.onnx")
    onnx.save(model(pair() + weight(63, 32) + product(), ("n", 63)), folder / "slow.onnx")
    bad = pair() + weight(64, 32, axis=0) + product(output="m") + pair("m", "y")
    onnx.save(model(bad), folder / "bad.onnx")
    (folder / "text.onnx").write_text("This is a model card, not a model.\n")
    return folder


def test_findings_are_printed_by_consequence_with_what_to_do(folder: Path) -> None:
    done = quantgate(folder, "lint", "bad.onnx", "--target", "tensorrt", "--rules-only")
    assert done.returncode == 3 and not done.stderr
    heading, float_line, slow_line, summary, basis = done.stdout.splitlines()
    assert heading.split() == ["Consequence", "Node", "Rule", "Found", "Fix"]
    assert re.match(
        r"float +m +TRT201 weight-axis +64 scales along axis 0 of \[64, 32\] \(wd\) +give scales", float_line
    )
    assert re.match(r"slow +y_q +TRT302 idle-pair +between MatMul and an output +quantize only", slow_line)
    assert summary == f"bad.onnx: 1 float ({MEANING['float']}); 1 slow ({MEANING['slow']})"
    assert basis == "basis: rules alone, as asked for"


def test_what_is_merely_slow_ends_with_0(folder: Path) -> None:
    done = quantgate(folder, "lint", "slow.onnx")
    assert done.returncode == 0 and "TRT304 padded-channels" in done.stdout and "1 slow" in done.stdout


def test_a_sound_file_and_a_float_one_are_told_apart(folder: Path, tiny: Tiny) -> None:
    done = quantgate(folder, "lint", "good.onnx", "--rules-only")
    assert (done.returncode, done.stdout) == (0, "good.onnx: no findings\nbasis: rules alone, as asked for\n")
    done = quantgate(folder, "lint", str(tiny.model))
    assert done.returncode == 0 and "not quantized, nothing to check" in done.stdout


def test_a_session_shows_what_the_runtime_does(tmp_path: Path) -> None:
    """Standard error stays empty, also where the runtime fails: that is the finding."""
    whole = pair(floats=SINGLE) + weight(64, 32, axis=0, floats=SINGLE) + product()
    onnx.save(model(whole, floats=SINGLE), tmp_path / "m.onnx")
    done = quantgate(tmp_path, "lint", "m.onnx", "--target", "ort-cpu", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 3 and not done.stderr
    assert document["basis"].startswith("seen in a session of ONNX Runtime ")
    (finding,) = document["findings"]
    assert (finding["rule"], finding["consequence"]) == ("CPU101 axis-of-sum", "fails")
    assert "fails at a first request of x [3, 64]" in finding["seen"]


def test_the_document_is_for_machines(folder: Path) -> None:
    done = quantgate(folder, "lint", "bad.onnx", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 3 and document["target"] == "tensorrt" and document["model"] == "bad.onnx"
    assert [(item["rule"], item["node"], item["consequence"]) for item in document["findings"]] == [
        ("TRT201 weight-axis", "m", "float"),
        ("TRT302 idle-pair", "y_q", "slow"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.onnx",), "none.onnx: no such file"),
        (("text.onnx",), "truncated or not an ONNX file"),
        (("good.onnx", "--target", "tpu"), "'ort-cpu', 'cpu', 'openvino'"),
        (("good.onnx", "--target", "openvino"), "a target with rules: ort-cpu, ort-cuda, tensorrt"),
    ],
)
def test_what_cannot_be_linted_ends_with_2(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = quantgate(folder, "lint", *arguments)
    assert done.returncode == 2 and words in done.stderr and "fix:" in done.stderr and not done.stdout


def test_weights_beside_the_file_are_not_read_but_scales_are(tmp_path: Path) -> None:
    """Without its file a weight makes no difference; a scale does, and is named."""
    proto = model(ALONG_K)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1000)
    (tmp_path / "w.bin").unlink()
    assert [finding.rule for finding in lint(tmp_path / "m.onnx", "tensorrt")] == ["TRT201 weight-axis"]
    onnx.save(model(ALONG_K), tmp_path / "s.onnx", save_as_external_data=True, location="s.bin", size_threshold=0)
    assert [finding.rule for finding in lint(tmp_path / "s.onnx", "tensorrt")] == ["TRT201 weight-axis"]
    (tmp_path / "s.bin").unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        lint(tmp_path / "s.onnx", "tensorrt")


def branch(part: Part, output: str) -> onnx.GraphProto:
    nodes = [*part.nodes, helper.make_node("Identity", [part.nodes[-1].output[0]], [output], name=output)]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in part.constants.items()]
    return helper.make_graph(
        nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT16, None)], tensors
    )


def test_bodies_are_looked_into_and_see_the_names_around_them(tmp_path: Path) -> None:
    """A pair outside, its product in a branch: both sides are found, and two branches may use one name for two things."""
    inside, other = weight(64, 32, axis=0) + product(), weight(64, 32) + product()
    choice = helper.make_node(
        "If", ["c"], ["y"], name="if", then_branch=branch(inside, "a"), else_branch=branch(other, "b")
    )
    made = model(pair() + Part([choice]), others={"c": (np.bool_, ())})
    onnx.save(made, tmp_path / "m.onnx")
    assert [(item.rule, item.node) for item in lint(tmp_path / "m.onnx", "tensorrt")] == [("TRT201 weight-axis", "y")]


def test_constants_may_be_nodes(tmp_path: Path) -> None:
    part = pair(zero=3) + weight(64, 32) + product()
    nodes = [
        helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array, name), name=f"c_{name}")
        for name, array in part.constants.items()
    ]
    onnx.save(model(Part([*nodes, *part.nodes])), tmp_path / "m.onnx")
    assert [item.rule for item in lint(tmp_path / "m.onnx", "tensorrt")] == ["TRT001 zero-point"]


def test_a_deep_graph_of_computed_scales_ends(tmp_path: Path) -> None:
    """Two thousand sums that each read the one before twice: every path through them would be 2 ** 2000."""
    part = op("ReduceMax", "x", "s0", keepdims=0)
    for index in range(2000):
        part.nodes.append(helper.make_node("Add", [f"s{index}"] * 2, [f"s{index + 1}"], name=f"s{index + 1}"))
    part += Part(pair().nodes, {"xd_z": np.asarray(0, np.int8)}) + weight(64, 32) + product()
    for node in part.nodes:
        node.input[:] = ["s2000" if name == "xd_s" else name for name in node.input]
    onnx.save(model(part), tmp_path / "m.onnx")
    assert [item.rule for item in lint(tmp_path / "m.onnx", "tensorrt")] == ["TRT204 computed-scale"]


def test_an_unnamed_node_is_named_by_what_it_makes(tmp_path: Path) -> None:
    made = model(pair() + const(w=drawn(64, 32).astype(HALF)) + product("xd w"))
    made.graph.node[-1].ClearField("name")
    onnx.save(made, tmp_path / "m.onnx")
    assert [item.node for item in lint(tmp_path / "m.onnx", "tensorrt")] == ["MatMul of y"]


def test_the_page_has_every_rule_as_the_linter_knows_it() -> None:
    page = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+\d{3}) ([\w-]+)` \| (\w+) \| (.*) \| (.*) \|$", page, re.M)
    known = [
        (rule.identifier, rule.name, rule.consequence, rule.claim, rule.fix)
        for target in ("tensorrt", "ort-cpu", "ort-cuda")
        for rule in find_target(target).lint_rules
    ]
    assert rows == known
    assert all(f"| {name} | {MEANING[name]} |" in page for name in CONSEQUENCES)

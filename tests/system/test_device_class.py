"""A class of devices in real runs: engines compete, champions change engines, and what is not installed is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import Answer, register_models, run_jobs, write_job

from tasks.engines.openvino import session as openvino

missing = openvino.why_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing is not None, reason=missing.found if missing else "")]

STATIC = "int8-static-minmax-pc"
OURS, THEIRS = f"{STATIC}@ort-cpu", f"{STATIC}@openvino"
# Imported by every process of an environment, before anything else.
WITHOUT_OPENVINO = """
import importlib.metadata as metadata
import sys
real = metadata.version
def version(name):
    if name == "openvino":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
sys.modules["openvino"] = None
"""


@dataclass(frozen=True)
class World:
    """What was answered with OpenVINO, and in an environment without it."""

    here: dict[str, Answer]
    without: dict[str, Answer]

    def candidates(self, name: str) -> dict[str, dict[str, Any]]:
        """The candidates of a run's result, by name."""
        result = (self.here | self.without)[name].result
        assert result is not None
        return {one["name"]: one for one in result["candidates"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> World:
    """Runs of one registered model, in this order."""
    root = tmp_path_factory.mktemp("class")
    state = root / "state"
    register_models(state, tiny.model.parent)
    (root / "site").mkdir()
    (root / "site" / "sitecustomize.py").write_text(WITHOUT_OPENVINO)

    def call(name: str, **changes: object) -> dict[str, object]:
        job = tiny.job(source="models:/tiny/1", target="cpu") | {"search": "all"} | changes
        return {"name": name, "job": str(write_job(root / f"{name}.yaml", job))}

    def run(name: str, *calls: dict[str, object], **extra: str) -> dict[str, Answer]:
        return run_jobs(state, root / name, list(calls), plain=True, **extra)

    first = run("first", call("theirs", candidates=[THEIRS]))
    asked = str(call("default", candidates="default", search="race")["job"])
    without = run(
        "without",
        {"name": "default", "job": asked, "promote": False},
        call("named", candidates=[OURS, THEIRS]),
        call("baseline", candidates=[OURS], baseline="openvino"),
        {"name": "candidates", "arguments": ["candidates", asked, "--json"]},
        PYTHONPATH=str(root / "site"),
    )
    relative = call("relative", candidates=[OURS, THEIRS], baseline="openvino") | {"promote": False}
    last = run("last", call("ours", candidates=[OURS, THEIRS]), relative)
    back = {"name": "back", "command": "rollback", "model": "tiny", "target": "cpu"}
    return World(first | last, without | run("back", back, PYTHONPATH=str(root / "site")))


def test_a_champion_gives_way_to_a_faster_one_of_another_engine(world: World) -> None:
    """The champion runs in OpenVINO; a winner in ONNX Runtime is timed in turn with it, and not by two speedups."""
    first = world.here["theirs"].result
    assert first is not None and first["outcome"] == "promoted", world.here["theirs"].said
    assert first["champion"]["alias"] == "champion-cpu" and first["baseline"]["engine"] == "ort-cpu"
    result = world.here["ours"].result
    assert result is not None
    # On so small a model the one in ONNX Runtime is three times as fast.
    (verdict,) = (one for one in world.candidates("ours")[OURS]["verdicts"] if one["gate"] == "beats_champion")
    assert verdict["outcome"] == "pass" and verdict["method"] == "p50 beside the champion, in turn"
    assert (result["outcome"], result["chosen"], result["champion"]["previous"]) == ("promoted", OURS, "1")


def test_speedups_are_relative_to_the_baseline_of_the_job(world: World) -> None:
    """Variants come from the store; their latencies are measured again, in turn with the source in OpenVINO."""
    result = world.here["relative"].result
    assert result is not None and result["baseline"]["engine"] == "openvino"
    before, after = world.candidates("ours"), world.candidates("relative")
    for name in (OURS, THEIRS):
        assert after[name]["outcome"] == "passed" and after[name]["size_bytes"] == before[name]["size_bytes"]
        assert before[name]["speedup_p50"] != after[name]["speedup_p50"]
    assert "baseline in openvino" in world.here["relative"].said


def test_an_engine_that_is_not_installed_is_left_out_and_named(world: World) -> None:
    result, answer = world.without["default"].result, world.without["default"]
    assert result is not None
    assert {one["name"].partition("@")[2] for one in result["candidates"]} == {"ort-cpu"}
    left_out = {one["engine"]: one for one in result["absent_engines"]}
    absent = left_out.pop("openvino")
    assert not absent["for_source"] and "install" in absent["fix"] and "openvino" in absent["fix"]
    # The source has no PyTorch program: nothing is missing here.
    assert [(name, one["for_source"]) for name, one in left_out.items()] == [("torch-inductor", True)]
    assert "note:      torch-inductor" not in answer.out
    assert "note:      openvino is left out: openvino is not installed" in answer.out and absent["fix"] in answer.out
    page = unescape(Path(result["report"]).read_text(encoding="utf-8"))
    assert "openvino is left out" in page and absent["fix"] in page
    assert "torch-inductor is left out" not in page
    rows = {row["candidate"]: row["here"] for row in json.loads(world.without["candidates"].out)}
    assert (
        rows[THEIRS.replace("minmax", "mse")] == f"openvino is left out: {absent['reason']}; to add it: {absent['fix']}"
    )
    assert rows[OURS] == "yes"


def test_a_named_candidate_of_an_absent_engine_is_a_refusal(world: World) -> None:
    refused = world.candidates("named")[THEIRS]
    assert refused["refusal"]["kind"] == "unsupported" and "install " in refused["refusal"]["reason"]


def test_a_champion_of_an_absent_engine_stays(world: World) -> None:
    """Nobody can tell here whether it is slower."""
    result = world.without["named"].result
    assert result is not None and result["outcome"] == "no_variant"
    assert f"{OURS} passes every gate, but the present champion stays (version 1, {THEIRS})" in result["reason"]
    assert "openvino is left out" in result["reason"] and "install " in result["reason"]


def test_rollback_passes_over_no_version_of_an_absent_engine(world: World) -> None:
    """Version 1 runs in OpenVINO: its files are checked, and it is not loaded."""
    answer = world.without["back"]
    assert answer.code == 0, answer.said
    assert "models:/tiny-quantized@champion-cpu: version 2 was left, and version 1 is the champion now" in answer.out


def test_a_baseline_that_is_not_installed_ends_the_run(world: World) -> None:
    result = world.without["baseline"].result
    assert result is not None and result["error"]["kind"] == "InfrastructureError"
    assert "the baseline's engine openvino does not run here" in result["error"]["found"]
    assert "install " in result["error"]["fix"] and "another `baseline`" in result["error"]["fix"]

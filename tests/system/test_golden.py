"""One run from the registry to an answer of the champion on each CPU target, and a promotion that is killed: `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import environment, register_models, run_jobs, write_job
from test_promotion import driven

from tasks.runtimes.openvino import session as openvino
from validators.digests import digest_file

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.golden
CONSUMER = """
import sys
import mlflow, numpy as np
data = np.load(sys.argv[2])
answers = mlflow.pyfunc.load_model(sys.argv[1]).predict({"x": data["x"]})["logits"]
print((answers.argmax(axis=1) == data["label"]).mean())
"""
TARGETS = ("ort-cpu", "openvino", "cpu")


def targets_here() -> list[Any]:
    """The CPU targets, of which two need the package of OpenVINO."""
    missing = openvino.why_missing()
    why = missing.found if missing else ""
    needs_openvino = pytest.mark.skipif(bool(missing), reason=why)
    return [pytest.param(TARGETS[0]), *(pytest.param(target, marks=needs_openvino) for target in TARGETS[1:])]


@pytest.mark.parametrize("target", targets_here())
def test_registered_model_becomes_an_answering_champion(target: str, tiny: Tiny, tmp_path: Path) -> None:
    state = tmp_path / "state"
    register_models(state, tiny.model.parent)
    candidates = [f"{name}@{target}" for name in ("int8-static-minmax-pc", "int8-dynamic-pc")]
    if target == "cpu":
        candidates = [f"int8-static-minmax-pc@{engine}" for engine in ("ort-cpu", "openvino")]
    job = tiny.job(source="models:/tiny/1", target=target, candidates=candidates, search="race")
    call: dict[str, object] = {"name": "run", "job": str(write_job(tmp_path / "job.yaml", job))}
    answer = run_jobs(state, tmp_path / "run", [call])["run"]
    assert answer.code == 0 and answer.result is not None, answer.said
    result = answer.result
    assert result["outcome"] == "promoted"
    by_name = {one["name"]: one for one in result["candidates"]}
    winner = by_name.pop(result["chosen"])
    assert winner["outcome"] == "passed"
    # What is slower may have been stopped; ranges at run time need VNNI on OpenVINO.
    (other,) = by_name.values()
    assert other["speedup_p50"] or other["refusal"]["kind"] in ("stopped", "unsupported")
    assert {"drop", "confirmed_drop", "coverage", "size_ratio"} <= {one["gate"] for one in winner["verdicts"]}
    asked = [sys.executable, "-W", "ignore", "-c", CONSUMER, f"models:/tiny-quantized@champion-{target}"]
    uri = f"sqlite:///{state / 'mlflow.db'}"
    command = [*asked, str(tiny.evaluation)]
    done = subprocess.run(
        command, env=environment(state, MLFLOW_TRACKING_URI=uri), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The fraction of right answers, which the source has on all samples; a model that guesses has a quarter.
    assert float(done.stdout.splitlines()[-1]) > 0.7
    if target == "openvino":
        check_model_server(state, tmp_path / "served")


def check_model_server(state: Path, folder: Path) -> None:
    """`quantgate export --ovms` writes the files that `config.json` names, with the digests of the version."""
    command = [sys.executable, "-m", "flows.cli.app", "export", "tiny", "--target", "openvino", "--ovms", str(folder)]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "not carried over: the runtime is the server's own" in done.stdout
    (config,) = (one["config"] for one in json.loads((folder / "config.json").read_text())["model_config_list"])
    assert config["plugin_config"]["INFERENCE_PRECISION_HINT"] == "f32"
    (manifest,) = (state / "mlartifacts").rglob("manifest.json")
    digest = json.loads(manifest.read_text())["files"]["model.onnx"]
    assert digest_file(folder / config["base_path"] / "1" / "model.onnx") == digest


def test_killed_promotion_is_taken_up_by_the_next_run(tmp_path: Path) -> None:
    """Killed while the alias moves, version 3 becomes the champion once, without another version of it."""
    (line,) = driven(tmp_path, "faults", "kill:7")
    assert line["first"] == "killed" and line["left"]["aliases"]["champion-ort-cpu"] == 2
    assert line["second"] == "promoted" and line["end"]["aliases"]["champion-ort-cpu"] == 3
    assert sorted(line["end"]["versions"]) == ["1", "2", "3"]

"""One run from the registry to an answer of the champion on each CPU target, and a promotion that is killed: `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import Answer, environment, register_models, run_jobs, write_job
from test_promotion import driven

from tasks.engines.openvino import session as openvino
from validators.digests import digest_file

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.golden
# Prints the fraction of right answers of each version on a line.
CONSUMER = """
import sys
import mlflow, numpy as np
data = np.load(sys.argv[1])
for uri in sys.argv[2:]:
    answers = mlflow.pyfunc.load_model(uri).predict({"x": data["x"]})["logits"]
    print((answers.argmax(axis=1) == data["label"]).mean())
"""
TARGETS = ("ort-cpu", "openvino", "cpu")


missing = openvino.why_missing()
# Two of them need the package of OpenVINO.
HERE = TARGETS[:1] if missing else TARGETS


@dataclass(frozen=True)
class World:
    """The runs on the targets, and the fraction of right answers that each champion gives in another process."""

    state: Path
    runs: dict[str, Answer]
    right: dict[str, float]


@pytest.fixture(scope="module")
def world(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The runs, of one registered model, in one process."""
    root = tmp_path_factory.mktemp("golden")
    state = root / "state"
    register_models(state, tiny.model.parent)
    calls: list[dict[str, object]] = []
    for target in HERE:
        candidates = [f"{name}@{target}" for name in ("int8-static-minmax-pc", "int8-dynamic-pc")]
        if target == "cpu":
            candidates = [f"int8-static-minmax-pc@{engine}" for engine in ("ort-cpu", "openvino")]
        job = tiny.job(source="models:/tiny/1", target=target, candidates=candidates, search="race")
        calls.append({"name": target, "job": str(write_job(root / f"{target}.yaml", job))})
    runs = run_jobs(state, root / "runs", calls)
    for answer in runs.values():
        assert answer.code == 0 and answer.result is not None, answer.said
    uris = [f"models:/tiny-quantized@champion-{target}" for target in HERE]
    command = [sys.executable, "-W", "ignore", "-c", CONSUMER, str(tiny.evaluation), *uris]
    env = environment(state, MLFLOW_TRACKING_URI=f"sqlite:///{state / 'mlflow.db'}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    right = map(float, done.stdout.splitlines()[-len(HERE) :])
    return World(state, runs, dict(zip(HERE, right, strict=True)))


@pytest.mark.parametrize("target", TARGETS)
def test_registered_model_becomes_an_answering_champion(target: str, world: World) -> None:
    if target not in HERE and missing:
        pytest.skip(missing.found)
    result: Any = world.runs[target].result
    assert result["outcome"] == "promoted"
    by_name = {one["name"]: one for one in result["candidates"]}
    winner = by_name.pop(result["chosen"])
    assert winner["outcome"] == "passed"
    # What is slower may have been stopped; ranges at run time need VNNI on OpenVINO.
    (other,) = by_name.values()
    assert other["speedup_p50"] or other["refusal"]["kind"] in ("stopped", "unsupported")
    assert {"drop", "confirmed_drop", "coverage", "size_ratio"} <= {one["gate"] for one in winner["verdicts"]}
    # A model that guesses is right on a quarter.
    assert world.right[target] > 0.7


@pytest.mark.skipif(bool(missing), reason=missing.found if missing else "")
def test_champion_is_exported_for_model_server(world: World, tmp_path: Path) -> None:
    """`quantgate export --ovms` writes the files that `config.json` names, with the digests of the version."""
    folder = tmp_path / "served"
    command = [sys.executable, "-m", "flows.cli.app", "export", "tiny", "--target", "openvino", "--ovms", str(folder)]
    done = subprocess.run(command, env=environment(world.state), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "not carried over: the runtime is the server's own" in done.stdout
    (config,) = (one["config"] for one in json.loads((folder / "config.json").read_text())["model_config_list"])
    assert config["plugin_config"]["INFERENCE_PRECISION_HINT"] == "f32"
    chosen = world.runs["openvino"].result
    assert chosen is not None
    manifests = [json.loads(path.read_text()) for path in (world.state / "mlartifacts").rglob("manifest.json")]
    (digest,) = {one["files"]["model.onnx"] for one in manifests if one["candidate"] == chosen["chosen"]}
    assert digest_file(folder / config["base_path"] / "1" / "model.onnx") == digest


def test_killed_promotion_is_taken_up_by_the_next_run(tmp_path: Path) -> None:
    """Killed while the alias moves, version 3 becomes the champion once, without another version of it."""
    (line,) = driven(tmp_path, "faults", "kill:7")
    assert line["first"] == "killed" and line["left"]["aliases"]["champion-ort-cpu"] == 2
    assert line["second"] == "promoted" and line["end"]["aliases"]["champion-ort-cpu"] == 3
    assert sorted(line["end"]["versions"]) == ["1", "2", "3"]

"""The oldest versions that pyproject.toml allows promote a champion, and the locked ones, nearly the newest, go on with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from driving import Answer, environment, register_models, run_jobs, write_job
from test_golden import CONSUMER

pytestmark = pytest.mark.slow
# `make test-all` installs requirements/oldest.txt there.
OLDEST = Path(sys.prefix) / "oldest" / "bin" / "python"


def version_in(python: Path, package: str) -> str:
    """The version of an installed package in another environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, Path, dict[str, object]]:
    """A state folder in which the oldest versions promoted a variant: it, the job and the run's result."""
    assert OLDEST.exists(), f"found: no {OLDEST}; fix: run `make test-all`, which sets it up"
    root = tmp_path_factory.mktemp("oldest")
    state, found = root / "state", root / "result.json"
    register_models(state, tiny.model.parent, str(OLDEST))
    told = tiny.job(source="models:/tiny/1", candidates=["int4-g32-rtn@ort-cpu"], objective="size")
    job = write_job(root / "job.yaml", told | {"budgets": {"recovery": 0}})
    command = [str(OLDEST), "-m", "flows.cli.app", "run", str(job), "--result", str(found)]
    done = subprocess.run(command, env=environment(state), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return root, state, json.loads(found.read_text(encoding="utf-8"))


def accuracy(python: Path, state: Path, tiny: Tiny) -> float:
    """The share of right answers that the champion gives in an environment."""
    command = [str(python), "-W", "ignore", "-c", CONSUMER, str(tiny.evaluation)]
    env = environment(state, MLFLOW_TRACKING_URI=f"sqlite:///{state / 'mlflow.db'}")
    done = subprocess.run(
        [*command, "models:/tiny-quantized@champion-ort-cpu"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return float(done.stdout)


def test_oldest_versions_promote_a_champion(world: tuple[Path, Path, dict[str, object]], tiny: Tiny) -> None:
    _, state, result = world
    assert result["outcome"] == "promoted" and result["chosen"] == "int4-g32-rtn@ort-cpu"
    assert version_in(OLDEST, "onnxruntime") != version_in(Path(sys.executable), "onnxruntime")
    assert accuracy(OLDEST, state, tiny) > 0.9


def test_newest_versions_compare_with_their_champion(world: tuple[Path, Path, dict[str, object]], tiny: Tiny) -> None:
    """On the state folder as it is: Prefect's database is moved, and the champion is measured again beside the new variant."""
    root, state, _ = world
    assert accuracy(Path(sys.executable), state, tiny) > 0.9
    weaker = tiny.job(source="models:/tiny/1", candidates=["int8-static-minmax-pc@ort-cpu"], objective="size")
    job = str(write_job(root / "weaker.yaml", weaker))
    calls: list[dict[str, object]] = [{"name": "weaker", "job": job, "replace_device": True}]
    answer: Answer = run_jobs(state, root / "runs", calls, bare=True)["weaker"]
    assert answer.result is not None and answer.result["outcome"] == "no_variant", answer.said
    (candidate,) = answer.result["candidates"]
    verdicts = {verdict["gate"]: verdict["outcome"] for verdict in candidate["verdicts"]}
    assert verdicts["beats_champion"] == "fail"

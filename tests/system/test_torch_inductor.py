"""A PyTorch source through a run with the target `torch-inductor`, up to a version that a consumer loads with torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from driving import TESTS, environment, lend_both, run_jobs, write_job

from tasks.runtimes.inductor import session as inductor

MISSING = inductor.why_missing() or inductor.why_no_int8()
# Compilers take a minute for a package.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=MISSING.found if MISSING else ""),
]
CONSUMER = """
import sys
import mlflow, numpy as np
data = np.load(sys.argv[2])
model = mlflow.pyfunc.load_model(sys.argv[1])
answers = model.predict({"x": data["x"]})["x" if False else "%s"]
print((answers.argmax(axis=1) == data["label"]).mean())
print(sorted({"tasks", "torchao", "onnxruntime"} & set(sys.modules)))
"""


def test_pytorch_source_becomes_a_champion_that_torch_runs(tiny: Tiny, tmp_path: Path) -> None:
    state = tmp_path / "state"
    lend_both(state)
    command = [sys.executable, "-W", "ignore", str(TESTS / "linear_user.py"), str(tiny.model.parent)]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["int8-static-minmax-pc", "int8-static-entropy-pc", "int4-g32-rtn"]
    gates = {"min_speedup": None, "max_size_ratio": None, "max_compile_seconds": 3600}
    candidates = [f"{name}@torch-inductor" for name in names]
    job = tiny.job(source="models:/linear/1", target="torch-inductor", candidates=candidates, gates=gates)
    call: dict[str, object] = {"name": "run", "job": str(write_job(tmp_path / "job.yaml", job))}
    answer = run_jobs(state, tmp_path / "run", [call])["run"]
    assert answer.code == 0 and answer.result is not None, answer.said
    assert answer.result["outcome"] == "promoted" and answer.result["chosen"] == candidates[0]
    by_name = {one["name"]: one for one in answer.result["candidates"]}
    refused = {name: by_name[name]["refusal"]["reason"] for name in candidates[1:]}
    assert "ranges by entropy" in refused[candidates[1]] and "INT4" in refused[candidates[2]]
    verdicts = {one["gate"]: one for one in by_name[candidates[0]]["verdicts"]}
    assert verdicts["coverage"]["value"] == 1.0
    assert 0 < verdicts["compile_seconds"]["value"] < 3600 and verdicts["compile_seconds"]["outcome"] == "pass"

    asked = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        CONSUMER % "linear_1",
        "models:/linear-quantized@champion-torch-inductor",
    ]
    uri = f"sqlite:///{state / 'mlflow.db'}"
    done = subprocess.run(
        [*asked, str(tiny.evaluation)],
        env=environment(state, MLFLOW_TRACKING_URI=uri),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    right, loaded = done.stdout.splitlines()[-2:]
    # The source is right on more than 0.7 of the samples; a model that guesses has a quarter.
    assert float(right) > 0.7
    assert loaded == "[]"

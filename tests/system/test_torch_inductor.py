"""A PyTorch source through runs of TorchInductor's targets, up to versions that a consumer loads with torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from driving import TESTS, environment, lend_both, run_jobs, write_job
from torch_cuda_twin import NAME

from tasks.engines.inductor import session as inductor

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
answers = model.predict({"x": data["x"]})["linear_1"]
print((answers.argmax(axis=1) == data["label"]).mean())
print(sorted({"tasks", "torchao", "onnxruntime"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def registered(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder with the registered model `linear`."""
    state = tmp_path_factory.mktemp("state")
    lend_both(state)
    command = [sys.executable, "-W", "ignore", str(TESTS / "linear_user.py"), str(tiny.model.parent)]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return state


def consume(state: Path, uri: str, evaluation: Path) -> tuple[float, str]:
    """Return the accuracy of a version in a process that never imports quantgate, and what it loaded of other engines."""
    command = [sys.executable, "-W", "ignore", "-c", CONSUMER, uri, str(evaluation)]
    env = environment(state, MLFLOW_TRACKING_URI=f"sqlite:///{state / 'mlflow.db'}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    right, loaded = done.stdout.splitlines()[-2:]
    return float(right), loaded


def test_pytorch_source_becomes_a_champion_that_torch_runs(tiny: Tiny, registered: Path, tmp_path: Path) -> None:
    names = ["int8-static-minmax-pc", "int8-static-entropy-pc", "int4-g32-rtn"]
    gates = {"min_speedup": None, "max_size_ratio": None, "max_compile_seconds": 3600}
    candidates = [f"{name}@torch-inductor" for name in names]
    job = tiny.job(source="models:/linear/1", target="torch-inductor", candidates=candidates, gates=gates)
    call: dict[str, object] = {"name": "run", "job": str(write_job(tmp_path / "job.yaml", job))}
    answer = run_jobs(registered, tmp_path / "run", [call], plain=True)["run"]
    assert answer.code == 0 and answer.result is not None, answer.said
    assert answer.result["outcome"] == "promoted" and answer.result["chosen"] == candidates[0]
    by_name = {one["name"]: one for one in answer.result["candidates"]}
    refused = {name: by_name[name]["refusal"]["reason"] for name in candidates[1:]}
    assert "'entropy' in" in refused[candidates[1]] and "INT4" in refused[candidates[2]]
    verdicts = {one["gate"]: one for one in by_name[candidates[0]]["verdicts"]}
    assert verdicts["coverage"]["value"] == 1.0
    assert 0 < verdicts["compile_seconds"]["value"] < 3600 and verdicts["compile_seconds"]["outcome"] == "pass"
    right, loaded = consume(registered, "models:/linear-quantized@champion-torch-inductor", tiny.evaluation)
    # The source is right on more than 0.7 of the samples; a model that guesses has a quarter.
    assert right > 0.7 and loaded == "[]"


@pytest.mark.parametrize("target", [NAME, pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def test_torch_cuda_promotes_what_its_kernels_cover(
    target: str, tiny: Tiny, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package brings the twin, whose FP8 form is made and fails by its coverage: no kernel of a processor runs it."""
    brought = tmp_path / "twin-1.0.dist-info"
    brought.mkdir()
    (brought / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n", encoding="utf-8")
    (brought / "entry_points.txt").write_text(
        f"[quantgate.targets]\n{NAME} = torch_cuda_twin:TARGET\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")]))
    candidates = [f"{name}@{target}" for name in ("bf16", "int8-dynamic-pc", "fp8-amax-pc", "int8-static-minmax-pc")]
    gates = {"min_speedup": None, "max_size_ratio": None, "min_coverage": 0.9}
    job = tiny.job(source="models:/linear/1", target=target, candidates=candidates, gates=gates)
    call: dict[str, object] = {"name": "run", "job": str(write_job(tmp_path / "job.yaml", job))}
    answer = run_jobs(registered, tmp_path / "run", [call], plain=True)["run"]
    assert answer.code == 0 and answer.result is not None, answer.said
    by_name = {one["name"].partition("@")[0]: one for one in answer.result["candidates"]}
    assert "fixed ranges" in by_name["int8-static-minmax-pc"]["refusal"]["reason"]
    covered = {
        name: next(one for one in by_name[name]["verdicts"] if one["gate"] == "coverage")
        for name in ("bf16", "int8-dynamic-pc", "fp8-amax-pc")
    }
    assert {name: one["outcome"] for name, one in covered.items()} == {
        "bf16": "pass",
        "int8-dynamic-pc": "pass",
        "fp8-amax-pc": "fail" if target == NAME else "pass",
    }
    # The layer with four outputs has no INT8 kernel.
    assert 0.99 < covered["int8-dynamic-pc"]["value"] < 1.0
    assert covered["fp8-amax-pc"]["value"] == (0.0 if target == NAME else pytest.approx(0.99, abs=0.02))
    assert (
        answer.result["outcome"] == "promoted" and answer.result["chosen"] in candidates[: 2 if target == NAME else 3]
    )
    right, loaded = consume(registered, f"models:/linear-quantized@champion-{target}", tiny.evaluation)
    assert right > 0.7 and loaded == "[]"

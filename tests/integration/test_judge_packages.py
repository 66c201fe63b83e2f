"""Judging a candidate needs the packages in `requirements/judge.in` alone: no Prefect, MLflow, torch or Great Expectations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import yaml
from conftest import Tiny
from packages import linked

ROOT = Path(__file__).parents[2]


def test_judge_needs_few_packages(tmp_path: Path, tiny: Tiny) -> None:
    """From an ONNX file, an .npz file and a CSV file to the page, in an environment of its own."""
    samples = np.load(tiny.evaluation)
    table = np.column_stack([samples["label"], samples["x"]])
    header = ",".join(["label", *(f"x.{index}" for index in range(samples["x"].shape[1]))])
    np.savetxt(
        tmp_path / "evaluation.csv", table, ["%d", *["%.6g"] * samples["x"].shape[1]], ",", header=header, comments=""
    )
    data = {"calibration": str(tiny.calibration), "evaluation": str(tmp_path / "evaluation.csv")}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny.job(data=data)), encoding="utf-8")
    python = linked(tmp_path / "venv", (ROOT / "requirements" / "judge.in").read_text(encoding="utf-8").split())
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "QUANTGATE_STATE": str(tmp_path / "state")}
    absent = subprocess.run([python, "-c", "import prefect"], capture_output=True, env=env, check=False)
    assert b"No module named 'prefect'" in absent.stderr
    command = [str(python), "-W", "error", str(ROOT / "tests" / "support" / "judge_steps.py")]
    command += [str(tmp_path / "job.yaml"), str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "winner"
    assert "int8-static-minmax-pc@ort-cpu" in (tmp_path / "page.html").read_text(encoding="utf-8")

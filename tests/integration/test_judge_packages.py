"""`quantgate judge` in an environment of `requirements/judge.in` alone: no Prefect, MLflow, torch or Great Expectations."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from conftest import Tiny, static_int8
from packages import linked

ROOT = Path(__file__).parents[2]
# As little time as an answer takes, on a machine that does other things.
QUICK = [
    *("--set", "measurement.launches=1", "--set", "measurement.block_seconds=0.02"),
    *("--set", "measurement.warmup_seconds=0.01", "--set", "measurement.max_other_load=null"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, with the metadata of quantgate, which runs from this folder."""
    folder = tmp_path_factory.mktemp("judge") / "venv"
    found = linked(folder, (ROOT / "requirements" / "judge.in").read_text(encoding="utf-8").split())
    (site,) = folder.glob("lib/*/site-packages")
    facts = next(Path(sysconfig.get_path("purelib")).glob("quantgate-*.dist-info"))
    (site / facts.name).symlink_to(facts)
    return found


def judged(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "QUANTGATE_STATE": str(folder / "state")}
    command = [str(python), "-W", "error", "-m", "flows.cli.app", "judge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False)


def test_judge_needs_few_packages(python: Path, tmp_path: Path, tiny: Tiny) -> None:
    """Two ONNX files and a CSV file: verdict, page, JUnit, and evidence that is sound; a wrong file fails with its code."""
    absent = subprocess.run([python, "-c", "import prefect"], capture_output=True, check=False)
    assert b"No module named 'prefect'" in absent.stderr
    samples = np.load(tiny.evaluation)
    table = np.column_stack([samples["label"], samples["x"]])
    header = ",".join(["label", *(f"x.{index}" for index in range(samples["x"].shape[1]))])
    formats = ["%d", *["%.6g"] * samples["x"].shape[1]]
    np.savetxt(tmp_path / "test.csv", table, formats, ",", header=header, comments="")
    variant = tmp_path / "variant.onnx"
    static_int8(tiny.model, {"x": (-9.0, 9.0), "hidden": (0.0, 60.0)}, variant)
    files = ["--result", "result.json", "--junit", "junit.xml", "--evidence", "evidence.zip"]
    given = [str(tiny.model), str(variant), "--data", "test.csv", *QUICK]
    done = judged(python, tmp_path, *given, *files, "--set", "gates.min_speedup=null")
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["outcome"] == "winner" and result["chosen"] == "int8-given-variant@ort-cpu"
    assert result["chosen"] in Path(result["report"]).read_text(encoding="utf-8")
    assert 'failures="0"' in (tmp_path / "junit.xml").read_text()
    checked = [str(python), "-m", "tasks.champion.bundle", "evidence.zip"]
    sound = subprocess.run(
        checked, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False
    )
    assert sound.returncode == 0 and "confirmed_drop" in sound.stdout, sound.stdout + sound.stderr

    # The float model under a false name, which no kernel of 8 bits runs.
    false = judged(python, tmp_path, str(tiny.model), str(tiny.model), *given[2:], "--result", "false.json")
    assert false.returncode == 3, false.stderr[-2000:]
    (candidate,) = json.loads((tmp_path / "false.json").read_text())["candidates"]
    assert "coverage" in [verdict["gate"] for verdict in candidate["verdicts"] if verdict["outcome"] == "fail"]


def test_bad_input_is_told_at_once(python: Path, tmp_path: Path, tiny: Tiny) -> None:
    done = judged(python, tmp_path, str(tiny.model), "gone.onnx", "--data", str(tiny.evaluation))
    assert done.returncode == 2 and "no file" in done.stderr and "gone.onnx" in done.stderr

"""A job for a model from options of the command line, and the file that it is written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Tiny
from driving import write_job

from flows.cli.run import job_of
from validators.errors import JobError
from validators.job.read_job import read_job


def options(calibration: str | None, evaluation: str | None, metric: str | None = None) -> dict[str, str | None]:
    return {"data.calibration": calibration, "data.evaluation": evaluation, "metric": metric}


def test_a_model_with_data_is_a_job(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are those of the present folder; the file that is saved gives the same job from any folder."""
    monkeypatch.chdir(tiny.model.parent)
    given = options("calibration.npz", "s3://data/evaluation.npz", "f1_macro")
    saved = tmp_path / "job.yaml"
    job = job_of("tiny.onnx", given, ["gates.max_drop=0.01"], saved)
    assert (job.source, job.data.calibration) == (str(tiny.model), tiny.model.parent / "calibration.npz")
    assert (str(job.data.evaluation), job.metric) == ("s3://data/evaluation.npz", "f1_macro")
    assert job.gates.max_drop == 0.01
    monkeypatch.chdir(tmp_path)
    assert read_job(saved) == job
    with pytest.raises(JobError, match="--save-job"):
        job_of(str(tiny.model), given, [], saved)
    registered = job_of("models:/fraud/3", given)
    assert registered.source == "models:/fraud/3"


def test_options_win_over_the_job_file(tiny: Tiny, tmp_path: Path) -> None:
    file = write_job(tmp_path / "job.yaml", tiny.job())
    job = job_of(str(file), options(None, None, "f1_macro"), ["seed=7", "metric=accuracy"])
    assert (job.metric, job.seed, job.data.evaluation) == ("accuracy", 7, tiny.evaluation), "and changes over options"


def test_a_model_without_data_is_told_the_options() -> None:
    with pytest.raises(JobError, match="without data") as caught:
        job_of("models:/fraud/3", options("c.npz", None))
    assert caught.value.fix == "give --evaluation FILE, or write a job: `quantgate init models:/fraud/3`"

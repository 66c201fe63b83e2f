"""Evaluation data with copies, as a run loads it: gates count clusters, and a job that too few of them serve is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, tiny_samples

from tasks.evidence.load_data import load_data
from tasks.run.clock import Clock
from tasks.run.context import Run
from tasks.storage.locks import FolderLocks
from tasks.storage.store import Store
from validators.digests import digest_model
from validators.errors import JobError
from validators.job.read_job import parse_job
from validators.records.run import Source
from validators.samples.run_inputs import Evidence


def loaded(tiny: Tiny, folder: Path, arrays: dict[str, Any], **data: Any) -> Evidence:
    """The evidence of a run on these evaluation samples."""
    np.savez(folder / "evaluation.npz", **arrays)
    calibration = dict(tiny_samples(128, 5), patient=np.arange(128) + 5000)
    np.savez(folder / "calibration.npz", **calibration)
    files = {"calibration": str(folder / "calibration.npz"), "evaluation": str(folder / "evaluation.npz")}
    job = parse_job(tiny.job(data=files | {"ignore": ["patient"]} | data), base=folder)
    run = Run(job, folder, "", Store(folder / "store"), Clock(), FolderLocks(folder))
    return load_data.fn(run, Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file"))


def test_copies_count_as_one(tiny: Tiny, tmp_path: Path) -> None:
    """Three copies of 600 samples, one of them under another label; they choose together, or confirm together."""
    arrays = {name: np.tile(array, (3, *[1] * (array.ndim - 1))) for name, array in tiny_samples(600, 9).items()}
    arrays["label"][:600] = (arrays["label"][:600] + 1) % 4
    evidence = loaded(tiny, tmp_path, arrays)
    assert evidence.copies == 1200 and evidence.clusters is not None
    assert evidence.clusters[:600].tolist() == evidence.clusters[1200:].tolist()
    assert len(np.unique(evidence.clusters)) == 600
    assert evidence.confirmation[:600].tolist() == evidence.confirmation[600:1200].tolist()
    assert evidence.evaluation.clusters is None, "they are no groups of the job"


def test_copies_do_not_make_up_for_samples(tiny: Tiny, tmp_path: Path) -> None:
    """A tolerance of two points needs 149 different samples that choose; 200 samples have about 100."""
    arrays = {name: np.tile(array, (5, *[1] * (array.ndim - 1))) for name, array in tiny_samples(200, 9).items()}
    with pytest.raises(JobError, match=r"clusters of equal weight") as caught:
        loaded(tiny, tmp_path, arrays)
    assert "no copies" in caught.value.fix


def test_groups_with_each_others_copies_are_one_cluster(tiny: Tiny, tmp_path: Path) -> None:
    """Each of 500 patients is in the data twice, under two keys."""
    arrays = {name: np.tile(array, (2, *[1] * (array.ndim - 1))) for name, array in tiny_samples(1000, 9).items()}
    arrays["patient"] = np.repeat(np.arange(1000), 2)
    evidence = loaded(tiny, tmp_path, arrays, groups="patient", ignore=[])
    assert evidence.copies == 1000 and evidence.clusters is not None
    assert (
        len(np.unique(evidence.clusters)) == 500
        and evidence.clusters[:1000].tolist() == evidence.clusters[1000:].tolist()
    )
    assert evidence.confirmation[:1000].tolist() == evidence.confirmation[1000:].tolist()


def test_samples_that_differ_are_independent(tiny: Tiny, tmp_path: Path) -> None:
    evidence = loaded(tiny, tmp_path, tiny_samples(1000, 9))
    assert evidence.clusters is None and evidence.copies == 0

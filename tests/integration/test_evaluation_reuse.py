"""Evaluation data that confirmed many winners: the runs are counted in a real tracking database, and the reader is warned."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from databases import lend_mlflow

from tasks.records.run_record import CONFIRMED_TAG, EVALUATION_TAG, MANY_CONFIRMATIONS, count_confirmations
from tasks.registry.mlflow_registry import connect
from validators.records.run import DataFile
from validators.samples.datasets import Samples


@pytest.mark.parametrize(
    ("others", "warned"), [(0, False), (MANY_CONFIRMATIONS - 1, False), (MANY_CONFIRMATIONS, True)]
)
def test_winners_that_the_same_samples_confirmed_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, others: int, warned: bool
) -> None:
    lend_mlflow(tmp_path / "mlflow.db")
    samples = Samples(DataFile(tmp_path / "evaluation.npz", "a" * 64, 4), {"x": np.zeros((4, 1))}, None)
    with connect(f"sqlite:///{tmp_path / 'mlflow.db'}") as client, caplog.at_level(logging.WARNING, "quantgate"):
        experiment = client.create_experiment("quantgate")
        confirmed, digest = {CONFIRMED_TAG: "true"}, {EVALUATION_TAG: "a" * 64}
        for _ in range(others):
            client.create_run(experiment, tags=confirmed | digest)
        # None of these counts: other samples, no confirmation, the run itself when it is tried again.
        client.create_run(experiment, tags=confirmed | {EVALUATION_TAG: "b" * 64})
        client.create_run(experiment, tags=digest)
        own = client.create_run(experiment, tags=confirmed | digest).info.run_id
        assert count_confirmations(client, own, samples) == others
    assert (f"evaluation.npz confirmed {others} winners before" in caplog.text) is warned

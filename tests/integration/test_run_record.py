"""The record of a run in a real tracking database: its end when a signal comes, and how often its samples confirmed."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from databases import lend_mlflow

from tasks.records import run_record
from tasks.records.run_record import CONFIRMED_TAG, EVALUATION_TAG, MANY_CONFIRMATIONS, count_confirmations, recorded
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


@pytest.mark.parametrize(
    ("error", "is_opened", "status"),
    [
        (KeyboardInterrupt(), False, "KILLED"),
        (KeyboardInterrupt(), True, "KILLED"),
        (ValueError(), True, "FAILED"),
        (ValueError(), False, "RUNNING"),  # such as a server that did not answer; the step is tried again
    ],
)
def test_no_run_goes_on_in_mlflow_after_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_opened: bool, status: str
) -> None:
    """Also when it comes after the server made the run, and before this process knew its id."""
    lend_mlflow(tmp_path / "mlflow.db")
    run: Any = SimpleNamespace(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setattr(run_record, "flow_run", SimpleNamespace(id="f" * 8))
    with connect(run.tracking_uri) as client:
        experiment = client.create_experiment(run_record.EXPERIMENT)
        tags = {run_record.FLOW_RUN: "f" * 8, run_record.KIND: "run"}
        other = client.create_run(experiment, tags=tags | {run_record.FLOW_RUN: "e" * 8}).info.run_id
        made: list[str] = []

        def opens(*_given: Any) -> str:
            made.append(client.create_run(experiment, tags=tags).info.run_id)
            if not is_opened:
                raise error
            return made[0]

        monkeypatch.setattr(run_record, "open_run", opens)
        with pytest.raises(type(error)), recorded(run, "run"):
            raise error
        assert client.get_run(made[0]).info.status == status
        assert client.get_run(other).info.status == "RUNNING"

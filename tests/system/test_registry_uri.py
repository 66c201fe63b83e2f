"""A registry of its own beside the tracking store: two real databases, a real promotion, a real consumer."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import mlflow
import numpy as np
import pytest
from databases import lend_mlflow
from promoters import BATCH, pack, promote

from tasks.registry.mlflow_registry import connect, experiment_id, warn_of_local_locks

TABLES = ("runs", "logged_models", "registered_models", "model_versions", "registered_model_aliases")


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files of both databases, empty; the process is in their folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    files = {name: tmp_path / f"{name}.db" for name in ("tracking", "registry")}
    for file in files.values():
        lend_mlflow(file)
    return files


def uri(file: Path) -> str:
    return f"sqlite:///{file}"


def rows(file: Path) -> dict[str, int]:
    """How many rows a database has in each table."""
    with sqlite3.connect(file) as database:
        return {table: database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in TABLES}


@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of the consumer's signature
def test_versions_go_to_registry_uri_and_runs_to_tracking_uri(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion writes the version to one store and its run to the other, and a consumer loads it by the alias."""
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", uri(stores["registry"]))
    with connect(uri(stores["tracking"])) as client:
        experiment = experiment_id(client, "quantgate", uri(stores["tracking"]))
        assert client.get_experiment(experiment).tags["mlflow.note.content"].startswith("Runs of quantgate")
        mlflow.set_experiment(experiment_id=experiment)
    assert promote(tmp_path, pack(tmp_path, 2.0), None, uri(stores["tracking"])) == "1"
    found = {name: rows(file) for name, file in stores.items()}
    assert found["tracking"] == dict(zip(TABLES, (1, 1, 0, 0, 0), strict=True))
    assert found["registry"] == dict(zip(TABLES, (0, 0, 1, 1, 1), strict=True))
    champion = mlflow.pyfunc.load_model("models:/m-quantized@champion-ort-cpu")
    np.testing.assert_array_equal(champion.predict(BATCH)["y"], 2 * BATCH["x"])


def test_registry_is_the_tracking_store_by_default(stores: dict[str, Path]) -> None:
    """One store after the other: MLflow keeps the address that it was given in the environment, which must not last."""
    for file in stores.values():
        with connect(uri(file)) as client:
            client.create_registered_model(file.stem)
        assert "MLFLOW_REGISTRY_URI" not in os.environ
    assert [rows(file)["registered_models"] for file in stores.values()] == [1, 1]


@pytest.mark.parametrize(
    ("tracking", "registry", "store", "warns"),
    [
        ("http://mlflow:5000", None, None, True),
        ("http://mlflow:5000", None, "s3://quantgate/work", False),
        ("sqlite:///mlflow.db", "postgresql://ann:pw@db/mlflow", None, True),
        ("http://mlflow:5000", "sqlite:///registry.db", None, False),
        ("http://127.0.0.1:5000", None, None, False),
        (None, None, None, False),
    ],
)
def test_locks_of_one_machine_with_a_shared_registry_warn(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tracking: str | None,
    registry: str | None,
    store: str | None,
    warns: bool,
) -> None:
    """A registry that other machines reach needs a store that they share; the warning names the setting."""
    values = {"MLFLOW_TRACKING_URI": tracking, "MLFLOW_REGISTRY_URI": registry, "QUANTGATE_STORE": store}
    for name, value in values.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    warn_of_local_locks(tmp_path)
    assert ["QUANTGATE_STORE" in record.message for record in caplog.records] == [True] * warns

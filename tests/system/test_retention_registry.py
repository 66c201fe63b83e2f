"""Retention on a real registry and real files: what goes is gone with its artifacts, and a crash leaves nothing that stays."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from databases import lend_mlflow

from tasks.registry.champion_slot import TAG
from tasks.registry.mlflow_registry import connect, experiment_id
from tasks.registry.mlflow_runs import EXPERIMENT
from tasks.run.settings import tracking_uri
from tasks.service.registry_retention import delete_all, list_kept
from tasks.service.retention_policy import Policy
from tasks.storage.locks import FolderLocks
from tasks.storage.store import Store
from validators.records.journal import JOURNAL, Journal, tag_of

pytestmark = pytest.mark.slow

POLICY = Policy(keep_versions=1, older_than_days=30)
OLD = time.time() - 60 * 86_400


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with six old versions of one model: the champion is 4, before it was 2, and 6 is the newest; 5 is somebody
    else's, and so is an alias on 1. A logged variant was never registered."""
    state = tmp_path / "state"
    lend_mlflow(state / "mlflow.db")
    monkeypatch.setenv("QUANTGATE_STATE", str(state))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("QUANTGATE_STORE", raising=False)
    with connect(tracking_uri(state)) as client:
        experiment = experiment_id(client, EXPERIMENT, tracking_uri(state))
        client.create_registered_model("m-quantized")
        for number in range(1, 8):
            model = client.create_logged_model(experiment, name="variant")
            Path(model.artifact_location.removeprefix("file://")).mkdir(parents=True)
            Path(model.artifact_location.removeprefix("file://"), "MLmodel").write_text("flavors: {}")
            if number == 7:
                break
            tags = {f"{TAG}variant_digest": str(number), f"{TAG}target": "ort-cpu"} if number != 5 else {}
            if number == 4:
                tags[JOURNAL] = tag_of(Journal("done", previous="2"))
            client.create_model_version("m-quantized", f"models:/{model.model_id}", tags=tags)
        client.set_registered_model_alias("m-quantized", "champion-ort-cpu", "4")
        client.set_registered_model_alias("m-quantized", "theirs", "1")
    with sqlite3.connect(state / "mlflow.db") as database:
        database.execute("UPDATE model_versions SET creation_time = ?", (int(OLD * 1000),))
        database.execute("UPDATE logged_models SET creation_timestamp_ms = ?", (int(OLD * 1000),))
    return state


def versions(state: Path) -> set[str]:
    with connect(tracking_uri(state)) as client:
        return {str(one.version) for one in client.search_model_versions("name = 'm-quantized'")}


def logged(state: Path) -> int:
    """How many folders of logged variants have files in them."""
    return len(list((state / "mlartifacts").rglob("MLmodel")))


def clean(**changes: Any) -> Any:
    return delete_all(POLICY, list_kept(POLICY))


def test_a_list_deletes_nothing(state: Path) -> None:
    fates = {fate.name for fate in list_kept(POLICY).fates if fate.goes and fate.kind == "version"}
    assert fates == {"m-quantized/3"}
    assert versions(state) == set("123456") and logged(state) == 7


def test_what_goes_is_gone_with_its_artifacts(state: Path) -> None:
    """Version 3, its files, and those of the variant that was never registered; MLflow by itself leaves files behind."""
    kept = clean()
    assert kept.failed == () and len(kept.deleted) == 3
    assert versions(state) == set("12456") and logged(state) == 5
    assert not any(fate.goes for fate in list_kept(POLICY).fates)


def test_what_got_an_alias_since_it_was_listed_stays(state: Path) -> None:
    listed = list_kept(POLICY)
    with connect(tracking_uri(state)) as client:
        client.set_registered_model_alias("m-quantized", "mine", "3")
    kept = delete_all(POLICY, listed)
    assert versions(state) == set("123456") and logged(state) == 6
    assert any("alias mine" in told for told in kept.failed)


def test_nothing_goes_while_a_promotion_holds_the_lock(state: Path) -> None:
    listed = list_kept(POLICY)
    with FolderLocks(state / "locks").hold("promotion-m-quantized-ort-cpu", wait_seconds=0):
        kept = delete_all(POLICY, listed)
    assert "3" in versions(state)
    assert any("a promotion or rollback holds the lock" in told for told in kept.failed)


@pytest.mark.parametrize("call", ["delete_model_version", "delete_logged_model"])
def test_a_second_run_finishes_what_a_crash_left(state: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Killed right after the version went, and right before the entry of a logged model whose files are gone."""
    from mlflow import MlflowClient

    real = getattr(MlflowClient, call)

    def crash(self: Any, *arguments: Any) -> None:
        if call == "delete_model_version":
            real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, crash)
        with pytest.raises(KeyboardInterrupt):
            clean()
    clean()
    assert versions(state) == set("12456") and logged(state) == 5
    assert not any(fate.goes for fate in list_kept(POLICY).fates)


def test_entries_go_that_nobody_used(state: Path) -> None:
    """Reading one counts as use; a leftover of a maker that was killed goes after a day; one of today stays."""
    store = Store(state / "store")
    for key in ("old", "read"):
        store.keep("variant", (key,), dict, {"made": "here"})
    for record in (state / "store").rglob("record.json"):
        os.utime(record, (OLD, OLD))
    store.find("variant", ("read",), dict)
    for name, at in ((".making-old", OLD), (".making-new", time.time())):
        (state / "store" / "variant" / name).mkdir()
        os.utime(state / "store" / "variant" / name, (at, at))
    clean()
    left = sorted(path.name[:8] for path in (state / "store" / "variant").iterdir())
    assert len(left) == 2 and ".making-"[:8] in left
    assert store.find("variant", ("read",), dict) == {"made": "here"}
    assert store.find("variant", ("old",), dict) is None

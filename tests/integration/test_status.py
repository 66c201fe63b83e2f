"""What runs leave on the source's version in the registry, whatever becomes of them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from databases import lend_mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from prefect.exceptions import Pause

from tasks.registry.mlflow_registry import connect
from tasks.registry.source_status import LONGEST_REASON, digest_job, keep_status, read_status
from validators.errors import InfrastructureError, QuantgateError, SourceError
from validators.job.job import Job
from validators.job.read_job import parse_job


def tags_of(uri: str, name: str, version: str = "1", target: str = "ort-cpu") -> dict[str, str]:
    """The status tags of a version, without their prefix."""
    tags = MlflowClient(uri, uri).get_model_version(name, version).tags
    prefix = f"quantgate.{target}."
    return {key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix)}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry."""
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    lend_mlflow(path)
    return f"sqlite:///{path}"


@pytest.fixture
def registry(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The registry with one version of `m`, which the alias `prod` names."""
    uri = database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    client = MlflowClient(uri, uri)
    with contextlib.suppress(MlflowException):
        client.delete_registered_model("m")
    client.create_registered_model("m")
    client.create_model_version("m", "s3://nowhere", None)
    client.set_registered_model_alias("m", "prod", "1")
    return uri


@pytest.fixture
def job(tiny: Tiny) -> Job:
    """A job on that alias."""
    return parse_job(tiny.job(source="models:/m@prod"), base=Path("/"))


def failure(kind: type[QuantgateError], found: str = "this") -> QuantgateError:
    """An error of quantgate's."""
    return kind(found=found, expected="that", fix="mend it")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (failure(InfrastructureError), {"status": "error", "error": "infrastructure"}),
        (failure(SourceError), {"status": "error", "error": "input"}),
        (ValueError("nobody\nforesaw"), {"status": "error", "error": "infrastructure", "reason": "ValueError: nobody"}),
        (KeyboardInterrupt(), {"status": "error", "error": "infrastructure"}),
        (Pause(), {"status": "awaiting_approval", "error": "", "reason": ""}),
        (failure(SourceError, "x" * 9000), {"reason": "x" * LONGEST_REASON}),
    ],
)
def test_an_error_is_kept_and_raised(registry: str, job: Job, error: BaseException, expected: dict[str, str]) -> None:
    """What quantgate did not foresee is worth another try; what is wrong with the input is not."""

    def fail() -> None:
        with keep_status(job, promote=True) as status:
            running = tags_of(registry, "m")
            assert (running["status"], running["job"]) == ("running", digest_job(job))
            status.run = "the-run"
            raise error

    with pytest.raises(type(error)):
        fail()
    kept = tags_of(registry, "m")
    assert {key: kept[key] for key in expected} == expected
    assert kept["run"] == "the-run"
    told = read_status(MlflowClient(registry, registry).get_model_version("m", "1").tags, "ort-cpu")
    assert (told.status, told.job, told.error) == (kept["status"], digest_job(job), kept["error"])


def test_a_run_forgets_what_the_last_one_said(registry: str, job: Job) -> None:
    """No reason of an old error beside a new status."""
    with pytest.raises(SourceError), keep_status(job, promote=True):
        raise failure(SourceError)
    with keep_status(job, promote=True):
        assert tags_of(registry, "m") | {"job": "", "status": ""} == dict.fromkeys(
            ("status", "reason", "run", "error", "flow_run", "job"), ""
        )


def test_a_registry_that_is_gone_at_the_end_hides_no_result(
    registry: str, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of the run stays the error, and a result stays a result."""

    def fail() -> None:
        with keep_status(job, promote=True):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
            raise failure(SourceError)

    with pytest.raises(SourceError):
        fail()
    with keep_status(job, promote=True) as status:
        result: Any = type("Result", (), {"outcome": "promoted", "reason": ""})
        status.result = result
    assert caplog.text.count("could not be written") == 1 and "no status for models:/m@prod" in caplog.text
    assert tags_of(registry, "m")["status"] == "running"


def test_files_and_trials_leave_nothing(registry: str, job: Job, tiny: Tiny) -> None:
    """A file has no version; a run that promotes nothing is no news."""
    for one, promote in ((job, False), (parse_job(tiny.job(), base=Path("/")), True)):
        with keep_status(one, promote=promote):
            assert tags_of(registry, "m") == {}
    assert tags_of(registry, "m") == {}


def test_a_database_of_a_later_mlflow_is_named(tmp_path: Path) -> None:
    lend_mlflow(tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(InfrastructureError, match="written by another version") as named, connect(uri):
        pass
    assert "mlflow db upgrade" in named.value.fix and "backup" in named.value.fix

"""Where a deployment keeps its state, read from the environment when it is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from validators.errors import InfrastructureError, JobError

_SQLITE = "sqlite:///"


def state_folder() -> Path:
    """The folder of everything that quantgate keeps on this machine: `QUANTGATE_STATE`, or `.quantgate` right here."""
    return Path(os.environ.get("QUANTGATE_STATE", ".quantgate")).resolve()


def store_place() -> str | None:
    """Address of the finished work and locks that machines share: `QUANTGATE_STORE`, or None for the state folder."""
    return os.environ.get("QUANTGATE_STORE", "").rstrip("/") or None


def tracking_uri(state: Path) -> str:
    """The MLflow tracking URI: `MLFLOW_TRACKING_URI`, or a database in the state folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{state / 'mlflow.db'}"


def registry_uri(tracking: str) -> str:
    """The URI of the model registry: `MLFLOW_REGISTRY_URI`, or the tracking URI."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking


def is_remote(uri: str) -> bool:
    """Return whether other machines can reach an MLflow store: it is neither a file nor a server of this machine alone.

    >>> is_remote("http://mlflow:5000"), is_remote("postgresql://db/mlflow"), is_remote("databricks")
    (True, True, True)
    >>> is_remote("http://127.0.0.1:5000"), is_remote("sqlite:////state/mlflow.db"), is_remote("/state/mlruns")
    (False, False, False)
    """
    if uri == "databricks":
        return True
    parts = urlsplit(uri)
    return parts.scheme not in ("", "file", "sqlite") and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def database_file(uri: str) -> Path | None:
    """The file of a tracking database; None for a server. To ask for one that is not there would make it.

    >>> database_file("sqlite:////state/mlflow.db"), database_file("http://mlflow:5000")
    (PosixPath('/state/mlflow.db'), None)
    """
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def pages_address(uri: str) -> str | None:
    """Where people reach MLflow's pages: `QUANTGATE_MLFLOW_PAGES`, or the server at `uri`; None for a database alone.

    A worker in a container knows MLflow by a name that no browser does.

    >>> pages_address("http://mlflow:5000/"), pages_address("sqlite:///mlflow.db")
    ('http://mlflow:5000', None)
    """
    told = os.environ.get("QUANTGATE_MLFLOW_PAGES") or (uri if uri.startswith("http") else "")
    return told.rstrip("/") or None


def artifact_location(uri: str) -> str | None:
    """Where a new experiment keeps its artifacts: beside a database file, which has no place for them; else the server's.

    Left to itself, MLflow writes them into the folder that the process happens to run in.
    """
    return (
        (Path(uri.removeprefix(_SQLITE)).resolve().parent / "mlartifacts").as_uri() if uri.startswith(_SQLITE) else None
    )


def hands_to_workers() -> bool:
    """Whether what must run on the target is handed to workers: `QUANTGATE_DISPATCH=pools`; else this process does it.

    Raises:
        JobError: another value, or no server that workers could share: the embedded one is this process's own.
    """
    told = os.environ.get("QUANTGATE_DISPATCH", "process")
    if told not in ("process", "pools"):
        raise JobError(found=f"QUANTGATE_DISPATCH={told}", expected="process or pools", fix="correct it, or unset it")
    if told == "pools" and not os.environ.get("PREFECT_API_URL"):
        raise JobError(
            found="QUANTGATE_DISPATCH=pools without PREFECT_API_URL",
            expected="the address of the Prefect server that the workers ask for work",
            fix="`quantgate ui` starts one; then set PREFECT_API_URL=http://127.0.0.1:4200/api for the run and its workers",
        )
    return told == "pools"


def check_server(purpose: str) -> None:
    """Nothing, where `PREFECT_API_URL` names a server: the embedded one of a process knows of no other's runs.

    Raises:
        InfrastructureError: it does not; `purpose` says which server is meant.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise InfrastructureError(
            found="no PREFECT_API_URL",
            expected=f"the address of the Prefect server {purpose}",
            fix="`quantgate serve` starts one; then set PREFECT_API_URL=http://127.0.0.1:4200/api",
        )


def worker_wait_seconds() -> float:
    """How long a target may be without a worker before what waits for one is refused: `QUANTGATE_WORKER_WAIT_SECONDS`, or 120.

    Prefect takes a worker for gone after three heartbeats of 30 s; a restart of one should cost nothing.

    Raises:
        JobError: not a number above 0.
    """
    return _seconds("QUANTGATE_WORKER_WAIT_SECONDS", 120)


def patience_seconds() -> float:
    """How long a step tries again while a server does not answer, before it ends: `QUANTGATE_PATIENCE_SECONDS`, or 180.

    MLflow starts in 10 to 30 s; a server that is moved to another machine, with its database, takes a minute or two.

    Raises:
        JobError: not a number above 0.
    """
    return _seconds("QUANTGATE_PATIENCE_SECONDS", 180)


def _seconds(name: str, default: float) -> float:
    told = os.environ.get(name, str(default))
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise JobError(found=f"{name}={told}", expected="seconds above 0", fix="correct it")
    return seconds


def prepare_environment(state: Path) -> None:
    """Set what Prefect and MLflow read once, at import, unless the user set it: embedded state, no telemetry, calm logs.

    Must run before either is imported.

    Raises:
        InfrastructureError: the folder cannot be made.
    """
    defaults = {
        "PREFECT_HOME": str(state / "prefect"),
        # Waits of 2, 4, ... 128 s: a server that is started anew, or moved, costs a run no more than time.
        "PREFECT_CLIENT_MAX_RETRIES": "7",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        # The first start makes the database: 20 s is too short on a busy machine of two cores.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        # A run hands a worker several steps, one after the other: at 10 s each would wait for 5.
        "PREFECT_WORKER_QUERY_SECONDS": "3",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        # What a run says reaches the Prefect UI through this logger; the terminal has progress lines of its own.
        "PREFECT_LOGGING_EXTRA_LOGGERS": "quantgate",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # At INFO the first use of a database prints its migrations.
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        # The registry is tried again by the task that needs it, with a delay; seven attempts within each would take minutes.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    make_state_folder(state)
    # Prefect makes only the last folder of its path, and without it the embedded server never answers.
    _make_folder(Path(os.environ["PREFECT_HOME"]), "Prefect's folder", "PREFECT_HOME")


def make_state_folder(state: Path) -> Path:
    """The state folder, made if it was not there.

    Raises:
        InfrastructureError: it cannot be made.
    """
    return _make_folder(state, "state folder", "QUANTGATE_STATE")


def _make_folder(path: Path, kind: str, variable: str) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            found=f"{kind} {path}: {error.strerror or error}",
            expected="a folder that this user may write into",
            fix=f"set {variable} to one, or mend the rights of this one",
        ) from error
    return path

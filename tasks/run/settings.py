"""Settings of a deployment, read from environment variables at call time."""

from __future__ import annotations

import os
import secrets
import sysconfig
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from validators.errors import InfrastructureError, JobError

_SQLITE = "sqlite:///"


def state_folder() -> Path:
    """Return the folder of all state on this machine: `QUANTGATE_STATE`, or `.quantgate` in the working directory."""
    return Path(os.environ.get("QUANTGATE_STATE", ".quantgate")).resolve()


def beside_the_packages(name: str) -> Path:
    """Return a file or folder that is no module: of the checkout, or of the installed distribution (`data-files`)."""
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").exists():
        root = Path(sysconfig.get_path("data"), "share", "quantgate")
    return root / name


def store_place() -> str | None:
    """Return the address of the store and locks that machines share: `QUANTGATE_STORE`, or None for the state folder."""
    return os.environ.get("QUANTGATE_STORE", "").rstrip("/") or None


def tracking_uri(state: Path) -> str:
    """Return the MLflow tracking URI: `MLFLOW_TRACKING_URI`, or a database in the state folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{state / 'mlflow.db'}"


def registry_uri(tracking: str) -> str:
    """Return the URI of the model registry: `MLFLOW_REGISTRY_URI`, or the tracking URI."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking


def is_remote(uri: str) -> bool:
    """Return True if other machines can reach an MLflow store: it is neither a file nor a server on a loopback address.

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
    """Return the file of a tracking database; None for a server. MLflow would create a missing database when opening it.

    >>> database_file("sqlite:////state/mlflow.db"), database_file("http://mlflow:5000")
    (PosixPath('/state/mlflow.db'), None)
    """
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def written_folders() -> tuple[Path, ...]:
    """Return the folders that every run writes to: the state, that of MLflow's database if it is a file, temporary files."""
    state = state_folder()
    database = database_file(tracking_uri(state))
    return (state, *([database.parent] if database else []), Path(tempfile.gettempdir()))


def pages_address(uri: str) -> str | None:
    """Return the address of MLflow's pages for browsers: `QUANTGATE_MLFLOW_PAGES`, or the server at `uri`; None for a database.

    A worker in a container reaches MLflow by a host name that no browser can resolve.

    >>> pages_address("http://mlflow:5000/"), pages_address("sqlite:///mlflow.db")
    ('http://mlflow:5000', None)
    """
    told = os.environ.get("QUANTGATE_MLFLOW_PAGES") or (uri if uri.startswith("http") else "")
    return told.rstrip("/") or None


def artifact_location(uri: str) -> str | None:
    """Return the artifact URI of a new experiment: a folder beside a database file; None for a server, which has its own.

    By default, MLflow would write them into the working directory of the process.
    """
    database = database_file(uri)
    return (database.resolve().parent / "mlartifacts").as_uri() if database else None


def hands_to_workers() -> bool:
    """Return True if workers run the steps on the target (`QUANTGATE_DISPATCH=pools`); False if this process does.

    Raises:
        JobError: the value is unknown, or there is no server to share with workers; the embedded one serves this process alone.
    """
    told = os.environ.get("QUANTGATE_DISPATCH", "process")
    if told not in ("process", "pools"):
        raise JobError(
            found=f"QUANTGATE_DISPATCH={told}", expected="process or pools", fix="correct or unset QUANTGATE_DISPATCH"
        )
    if told == "pools" and not os.environ.get("PREFECT_API_URL"):
        raise JobError(
            found="QUANTGATE_DISPATCH=pools without PREFECT_API_URL",
            expected="the address of the Prefect server that the workers poll",
            fix="`quantgate ui` starts one; then set PREFECT_API_URL=http://127.0.0.1:4200/api for the run and its workers",
        )
    return told == "pools"


def check_server(purpose: str) -> None:
    """Raise if `PREFECT_API_URL` names no server; the embedded server of a process does not know the runs of others.

    Raises:
        InfrastructureError: it is not set; `purpose` follows "the Prefect server" in the message.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise InfrastructureError(
            found="PREFECT_API_URL is not set",
            expected=f"the address of the Prefect server {purpose}",
            fix="`quantgate serve` starts one; then set PREFECT_API_URL=http://127.0.0.1:4200/api",
        )


def worker_wait_seconds() -> float:
    """Return the seconds to wait for a worker before a candidate is refused: `QUANTGATE_WORKER_WAIT_SECONDS`, or 120.

    Prefect marks a worker offline after three missed heartbeats of 30 s; the restart of a worker should lose nothing.

    Raises:
        JobError: the value is not a number above 0.
    """
    return _seconds("QUANTGATE_WORKER_WAIT_SECONDS", 120)


def patience_seconds() -> float:
    """Return the seconds for which a step retries while a server does not answer: `QUANTGATE_PATIENCE_SECONDS`, or 180.

    MLflow starts in 10 to 30 s; moving a server and its database to another machine takes a minute or two.

    Raises:
        JobError: the value is not a number above 0.
    """
    return _seconds("QUANTGATE_PATIENCE_SECONDS", 180)


def _seconds(name: str, default: float) -> float:
    told = os.environ.get(name, str(default))
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise JobError(found=f"{name}={told}", expected="a number of seconds above 0", fix=f"correct or unset {name}")
    return seconds


def prepare_environment(state: Path) -> None:
    """Set environment variables that Prefect and MLflow read at import: embedded state, no telemetry, fewer log lines.

    Variables that the user set stay. This must run before either library is imported.

    Raises:
        InfrastructureError: the folder cannot be created.
    """
    defaults = {
        "PREFECT_HOME": str(state / "prefect"),
        # Waits of 2, 4, ... 128 s: restarting or moving a server delays a run but does not end it.
        "PREFECT_CLIENT_MAX_RETRIES": "7",
        # The client retries 408, 429, 502 and 503 by itself; a server whose database is away answers 500.
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,504",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        # The first start creates the database: 20 s is too short on a busy machine with two cores.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        # A run sends a worker several steps in turn: at the default of 10 s each would wait 5 s on average.
        "PREFECT_WORKER_QUERY_SECONDS": "3",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        # This logger carries a run's messages to the Prefect UI; the terminal has its own progress lines.
        "PREFECT_LOGGING_EXTRA_LOGGERS": "quantgate",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # At INFO the first use of a database prints its migrations.
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        # Tasks retry registry calls themselves, with a delay; seven HTTP retries within each would take minutes.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        # MLflow imports GitPython, which prints 15 lines where git is not installed, as in the images.
        "GIT_PYTHON_REFRESH": "quiet",
    }
    if (
        not os.environ.get("PREFECT_API_URL")
        and not Path(os.environ.get("PREFECT_HOME", defaults["PREFECT_HOME"]), "profiles.toml").exists()
    ):
        # The server of this process alone: other processes and pages of this machine must not use it.
        password = f"quantgate:{secrets.token_urlsafe(32)}"
        defaults |= {"PREFECT_SERVER_API_AUTH_STRING": password, "PREFECT_API_AUTH_STRING": password}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    make_state_folder(state)
    # Prefect creates only the last folder of its path, and without the folder the embedded server never answers.
    _make_folder(Path(os.environ["PREFECT_HOME"]), "Prefect's folder", "PREFECT_HOME")


def make_state_folder(state: Path) -> Path:
    """Create the state folder, for this user alone, if it does not exist, and return it.

    Raises:
        InfrastructureError: the folder cannot be created.
    """
    return _make_folder(state, "state folder", "QUANTGATE_STATE")


def _make_folder(path: Path, kind: str, variable: str) -> Path:
    try:
        # Databases and logs are for this user alone; whoever shares a folder between users makes it so.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            found=f"{kind} {path}: {error.strerror or error}",
            expected="a folder that this user may write to",
            fix=f"set {variable} to a writable folder, or correct the permissions of this one",
        ) from error
    return path

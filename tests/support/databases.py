"""Empty databases of MLflow and Prefect: made once, by their own migrations, which take 5 to 10 s each, and then copied."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

# Kept from one run of the suite to the next.
KEPT = Path(__file__).resolve().parents[2] / "build" / "empty-databases"


def lend_mlflow(path: Path) -> None:
    """An empty tracking database at `path`, unless there is one."""
    _lend(path, "mlflow")


def lend_prefect(home: Path) -> None:
    """The empty database of a Prefect server whose `PREFECT_HOME` is `home`, unless there is one."""
    _lend(home / "prefect.db", "prefect")


def lend_both(state: Path) -> None:
    """Those that a run makes in a state folder, for a test that is not about how they come to be."""
    lend_mlflow(state / "mlflow.db")
    lend_prefect(state / "prefect")


def _lend(path: Path, kind: str) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_kept(kind), path)


@functools.cache
def _kept(kind: str) -> Path:
    kept = KEPT / f"{kind}-{version(kind)}.db"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
            made = Path(scratch) / f"{kind}.db"
            {"mlflow": _make_mlflow, "prefect": _make_prefect}[kind](made)
            # Of two processes that make it at once, the second replaces the same by the same.
            made.replace(kept)
    return kept


def _make_mlflow(path: Path) -> None:
    uri = f"sqlite:///{path}"
    _run("-c", f"import mlflow; mlflow.MlflowClient({uri!r}, {uri!r}).search_registered_models()")
    with closing(sqlite3.connect(path)) as database, database:
        # Its experiment names the place of its artifacts, which is another wherever the copy lies: MLflow makes it anew.
        database.execute("DELETE FROM experiments")


def _make_prefect(path: Path) -> None:
    _run("-m", "prefect", "server", "database", "upgrade", "--yes", PREFECT_HOME=str(path.parent))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _run(*arguments: str, **extra: str) -> None:
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=kept | quiet | extra, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

"""Report of `quantgate doctor`: the targets that run here, the state folder, the servers, and versions."""

from __future__ import annotations

import os
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from flows.service.describe import Rows, target_rows
from tasks.measure.inventory import take_inventory
from tasks.run.settings import database_file, registry_uri, state_folder, tracking_uri
from tasks.storage.files import delete, existing, find_leftovers, last_written
from validators.errors import EXIT_INFRASTRUCTURE, EXIT_OK, InfrastructureError
from validators.records.answer import CommandAnswer, Table
from validators.redact import redact
from validators.targets import DEFAULT_TARGET, target_names

PACKAGES = ("quantgate", "prefect", "mlflow", "great-expectations", "torch")
ANSWER_SECONDS = 5.0
# Longer than any step works without writing.
IDLE_SECONDS = 3600.0
KEYS = ("target", "here", "why", "mend")


def diagnose() -> CommandAnswer:
    """Return the full report; exit code 0 if at least one target runs."""
    facts: dict[str, str] = {}
    try:
        facts = _machine()
        rows = target_rows()
    except InfrastructureError as error:
        # Without ONNX Runtime no target runs; the report still lists the rest, and the fix.
        rows = [
            ("Target", "Here", "Why", "Fix"),
            *((target, "no", f"{error.found}; expected {error.expected}", error.fix) for target in target_names()),
        ]
    facts |= _surroundings(state_folder())
    runs = any(row[1] == "yes" for row in rows[1:])
    document = {"facts": facts, "targets": _documents(rows), "any_target_runs": runs}
    lines = [f"{name:<11}{value}" for name, value in facts.items()]
    table = Table(rows)
    return CommandAnswer(document, (*lines, "", table), EXIT_OK if runs else EXIT_INFRASTRUCTURE)


def diagnose_lightly() -> CommandAnswer:
    """Return the report without the targets; exit code 0 if the state folder is writable.

    A container's health check runs every few minutes: a session per target would use GPU memory, and cores on which a run
    measures latency.
    """
    state = state_folder()
    facts = _surroundings(state)
    there = existing(state)
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not usable:
        facts["state"] = f"{state} is not writable: set QUANTGATE_STATE, or correct its permissions"
    lines = [f"{name:<11}{value}" for name, value in facts.items()]
    return CommandAnswer({"facts": facts, "state_is_usable": usable}, lines, EXIT_OK if usable else EXIT_INFRASTRUCTURE)


def clean() -> CommandAnswer:
    """Delete what killed processes left behind, if nothing was written to it for `IDLE_SECONDS`; list all of it."""
    rows, found = [("Left behind", "MB", "Idle", "Now")], []
    for path in find_leftovers(state_folder()):
        idle, size = time.time() - last_written(path), sum(one.lstat().st_size for one in (path, *path.rglob("*")))
        is_deleted = idle > IDLE_SECONDS
        if is_deleted:
            delete(path)
        found.append({"path": str(path), "bytes": size, "idle_seconds": round(idle), "deleted": is_deleted})
        now = (
            "deleted"
            if is_deleted
            else f"kept: a process may still use it; idle for less than {IDLE_SECONDS / 60:.0f} min"
        )
        rows.append((str(path), f"{size / 1e6:.1f}", f"{idle / 60:.0f} min", now))
    return CommandAnswer({"leftovers": found}, (Table(rows), *([] if found else ["nothing was left behind"])))


def _surroundings(state: Path) -> dict[str, str]:
    """Return the facts that need no inference session."""
    return {
        "packages": ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES),
        "state": f"{state}{'' if state.is_dir() else ' (does not exist yet: the first run creates it)'}",
        "disk": _disk(state),
        "MLflow": _mlflow(state),
        "Prefect": _prefect(),
    }


def _documents(rows: Rows) -> list[dict[str, Any]]:
    return [dict(zip(KEYS, row, strict=True)) | {"here": row[1] == "yes"} for row in rows[1:]]


def _machine() -> dict[str, str]:
    inventory = take_inventory(DEFAULT_TARGET)
    return {
        "processor": f"{inventory.cpu}, {inventory.cores} cores, {' '.join(inventory.isa) or 'no integer extensions'}",
        "INT8 sums": "exact with weights of 7 bits, which INT8 variants have here"
        if inventory.processor.adds_pairs_in_16_bits
        else "exact with weights of 8 bits",
        "memory": f"{inventory.memory_bytes / 1e9:.1f} GB",
        "platform": f"{inventory.platform}, Python {inventory.python}",
        "runtimes": ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items()),
    }


def _disk(state: Path) -> str:
    usage = shutil.disk_usage(existing(state))
    return f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB"


def _mlflow(state: Path) -> str:
    tracking = tracking_uri(state)
    registry = registry_uri(tracking)
    told = _store(tracking)
    return told if registry == tracking else f"{told}; models in {_store(registry)}"


def _store(address: str) -> str:
    if address.startswith(("http://", "https://")):
        return f"{redact(address)}: {_asked(address)}"
    file = database_file(address)
    if file is not None:
        size = (
            f"{file.stat().st_size / 1e6:.1f} MB" if file.exists() else "does not exist yet: the first run creates it"
        )
        return f"the database {file} ({size}); `quantgate ui` shows it"
    return redact(address)


def _prefect() -> str:
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        return "each command starts its own; `quantgate serve` starts a permanent one"
    return f"{redact(address)}: {_asked(address)}{_open_to_all(address)}"


def _open_to_all(address: str) -> str:
    """Return a warning if a Prefect server answers callers without a password."""
    try:
        answer = httpx.get(f"{address.rstrip('/')}/admin/version", timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL):
        return ""
    if not answer.is_success:
        return ""
    return "; without a password: whoever reaches it can run code on its workers (docs/service.md)"


def _asked(address: str) -> str:
    """Return in words whether a server answers, and what to check if it does not."""
    try:
        answer = httpx.get(f"{address.rstrip('/')}/health", timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"does not answer ({error}): check the address, and that the server runs"
    return "answers" if answer.is_success else f"answers with status {answer.status_code}"

"""What `quantgate doctor` says: which targets run here, where state is kept, whether the servers answer, and versions."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

from flows.service.describe import Rows, target_rows
from tasks.measure.inventory import take_inventory
from tasks.run.settings import database_file, registry_uri, state_folder, tracking_uri
from validators.errors import EXIT_INFRASTRUCTURE, EXIT_OK, InfrastructureError
from validators.records.answer import CommandAnswer, Table
from validators.redact import redact
from validators.targets import target_names

PACKAGES = ("quantgate", "prefect", "mlflow", "great-expectations", "torch")
ANSWER_SECONDS = 5.0
KEYS = ("target", "here", "why", "mend")


def diagnose() -> CommandAnswer:
    """All of it; exit code 0 where at least one target runs."""
    facts: dict[str, str] = {}
    try:
        facts = _machine()
        rows = target_rows()
    except InfrastructureError as error:
        # No target runs without one: what else is here, and how to mend it, is still worth to be said.
        rows = [
            ("Target", "Here", "Why", "To mend it"),
            *((target, "no", f"{error.found}; expected {error.expected}", error.fix) for target in target_names()),
        ]
    facts |= _surroundings(state_folder())
    runs = any(row[1] == "yes" for row in rows[1:])
    document = {"facts": facts, "targets": _documents(rows), "any_target_runs": runs}
    lines = [f"{name:<11}{value}" for name, value in facts.items()]
    table = Table(rows, folded=frozenset({"Why", "To mend it"}))
    return CommandAnswer(document, (*lines, "", table), EXIT_OK if runs else EXIT_INFRASTRUCTURE)


def diagnose_lightly() -> CommandAnswer:
    """Return all but the targets; exit code 0 if the state folder can be written to.

    Every few minutes a container asks for its health: a session for each target would take memory of the GPU, and time of the
    cores on which a run measures.
    """
    state = state_folder()
    facts = _surroundings(state)
    there = _first_folder(state)
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not usable:
        facts["state"] = f"{state} cannot be written to: set QUANTGATE_STATE, or mend its rights"
    lines = [f"{name:<11}{value}" for name, value in facts.items()]
    return CommandAnswer({"facts": facts, "state_is_usable": usable}, lines, EXIT_OK if usable else EXIT_INFRASTRUCTURE)


def _surroundings(state: Path) -> dict[str, str]:
    """Return the facts for which nothing has to be opened or run."""
    return {
        "packages": ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES),
        "state": f"{state}{'' if state.is_dir() else ' (not there yet: the first run makes it)'}",
        "disk": _disk(state),
        "MLflow": _mlflow(state),
        "Prefect": _prefect(),
    }


def _documents(rows: Rows) -> list[dict[str, Any]]:
    return [dict(zip(KEYS, row, strict=True)) | {"here": row[1] == "yes"} for row in rows[1:]]


def _machine() -> dict[str, str]:
    inventory = take_inventory("ort-cpu")
    return {
        "processor": f"{inventory.cpu}, {inventory.cores} cores, {' '.join(inventory.isa) or 'no integer extensions'}",
        "memory": f"{inventory.memory_bytes / 1e9:.1f} GB",
        "platform": f"{inventory.platform}, Python {inventory.python}",
        "runtimes": ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items()),
    }


def _first_folder(state: Path) -> Path:
    """Return the state folder, or the first above it that is there."""
    return next(folder for folder in (state, *state.parents) if folder.exists())


def _disk(state: Path) -> str:
    usage = shutil.disk_usage(_first_folder(state))
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
        size = f"{file.stat().st_size / 1e6:.1f} MB" if file.exists() else "not there yet: the first run makes it"
        return f"the database {file} ({size}); `quantgate ui` shows it"
    return redact(address)


def _prefect() -> str:
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        return "each command starts one of its own; `quantgate serve` one that stays"
    return f"{redact(address)}: {_asked(address)}"


def _asked(address: str) -> str:
    """Whether a server answers, in words, and what to look at if it does not."""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=ANSWER_SECONDS):  # noqa: S310  # the user's own setting
            return "answers"
    except urllib.error.HTTPError as error:
        return f"answers with status {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"does not answer ({reason}): check the address, and that the server runs"

"""Retention of files in the state folder: store entries, reports, logs, and leftovers of killed processes."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.service.retention_policy import Kind, Policy, RetentionDecision, StoredItem, judge_things
from tasks.storage.files import last_written
from tasks.storage.portable import references
from tasks.storage.shared_entries import RECORD_FILE

# Prefix of a folder that is being deleted, so that nobody reads a half-deleted entry.
DELETING = ".deleting-"
# Data were downloaded from S3; a run that needs one downloads it again.
PATTERNS: dict[Kind, str] = {"data": "data/*", "report": "reports/*", "log": "logs/*", "lock": "locks/*.lock"}


def find_things(state: Path) -> list[StoredItem]:
    """Return everything below the state folder that retention covers; names are paths below it."""
    things = list(_store_things(state))
    for kind, pattern in PATTERNS.items():
        for place in sorted(state.glob(pattern)):
            is_leftover = kind == "data" and place.name.startswith(".")
            things.append(
                StoredItem("leftover" if is_leftover else kind, str(place.relative_to(state)), last_written(place))
            )
    return things


def _store_things(state: Path) -> Iterator[StoredItem]:
    """Yield the entries, with the entries that they refer to, and leftovers; there is one store folder per store address."""
    for kind in sorted(state.glob("store*/*")):
        for place in sorted(kind.iterdir()) if kind.is_dir() else ():
            record = place / RECORD_FILE
            name = str(place.relative_to(state))
            if place.name.startswith("."):
                yield StoredItem("leftover", name, last_written(place))
            elif record.is_file():
                named = references(record.read_text(encoding="utf-8"))
                root = kind.parent.name
                refers = frozenset(f"{root}/{other}/{digest}" for other, digest in named)
                yield StoredItem("entry", name, record.stat().st_mtime, refers)


def delete_thing(state: Path, fate: RetentionDecision, policy: Policy) -> str:
    """Delete a file or folder below the state folder; return the reason if it was kept, else an empty text."""
    place = state / fate.name
    if not place.exists():
        return ""
    if fate.kind == "lock":
        return _delete_lock(place)
    if fate.kind == "entry":
        return _delete_entry(place, policy)
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    return ""


def _delete_entry(place: Path, policy: Policy) -> str:
    """Rename an entry, then delete it, or restore it if it was read meanwhile: a read updates the record's time."""
    aside = place.with_name(f"{DELETING}{place.name}")
    place.rename(aside)
    (fate,) = judge_things(
        [StoredItem("entry", place.name, (aside / RECORD_FILE).stat().st_mtime)], policy, time.time()
    )
    if not fate.goes:
        if not place.exists():
            aside.rename(place)
        return "used meanwhile"
    shutil.rmtree(aside)
    return ""


def _delete_lock(place: Path) -> str:
    """Delete a lock file while this process holds the lock: waiters check afterwards that their file still exists."""
    with place.open("a") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        place.unlink(missing_ok=True)
    return ""

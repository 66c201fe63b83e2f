"""Files of the state that grow old: entries of the store, reports, logs, and what a process that was killed left behind."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.service.retention_policy import Fate, Policy, Thing, judge_things
from tasks.storage.files import last_written
from tasks.storage.portable import references
from tasks.storage.shared_entries import RECORD_FILE

# A folder on its way out: under another name, so that nobody takes half of it for whole.
DELETING = ".deleting-"


def find_things(state: Path) -> list[Thing]:
    """Everything below the state folder that retention is about; names are paths below it."""
    return [thing for part in (_store_things, _data, _reports, _logs, _locks) for thing in part(state)]


def _store_things(state: Path) -> Iterator[Thing]:
    """Entries with what they name, and leftovers; a state folder has a store for each place that it was used with."""
    for kind in sorted(state.glob("store*/*")):
        for place in sorted(kind.iterdir()) if kind.is_dir() else ():
            record = place / RECORD_FILE
            name = str(place.relative_to(state))
            if place.name.startswith("."):
                yield Thing("leftover", name, last_written(place))
            elif record.is_file():
                named = references(record.read_text(encoding="utf-8"))
                root = kind.parent.name
                refers = frozenset(f"{root}/{other}/{digest}" for other, digest in named)
                yield Thing("entry", name, record.stat().st_mtime, refers)


def _data(state: Path) -> Iterator[Thing]:
    """Files that were fetched from S3: they are fetched again when they are needed again."""
    for place in sorted(state.glob("data/*")):
        yield Thing(
            "leftover" if place.name.startswith(".") else "data", str(place.relative_to(state)), last_written(place)
        )


def _reports(state: Path) -> Iterator[Thing]:
    for place in sorted(state.glob("reports/*")):
        yield Thing("report", str(place.relative_to(state)), last_written(place))


def _logs(state: Path) -> Iterator[Thing]:
    for place in sorted(state.glob("logs/*")):
        yield Thing("log", str(place.relative_to(state)), place.stat().st_mtime)


def _locks(state: Path) -> Iterator[Thing]:
    for place in sorted(state.glob("locks/*.lock")):
        yield Thing("lock", str(place.relative_to(state)), place.stat().st_mtime)


def delete_thing(state: Path, fate: Fate, policy: Policy) -> str:
    """Delete a file or folder below the state folder, unless it was used since it was listed; why, or nothing."""
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
    """Take an entry out of its place first, and put it back if somebody read it meanwhile: reading a record marks it used."""
    aside = place.with_name(f"{DELETING}{place.name}")
    place.rename(aside)
    (fate,) = judge_things([Thing("entry", place.name, (aside / RECORD_FILE).stat().st_mtime)], policy, time.time())
    if not fate.goes:
        if not place.exists():
            aside.rename(place)
        return "used meanwhile"
    shutil.rmtree(aside)
    return ""


def _delete_lock(place: Path) -> str:
    """Only while it is held by this process: whoever waits for it looks whether it is still there."""
    with place.open("a") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        place.unlink(missing_ok=True)
    return ""

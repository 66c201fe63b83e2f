"""Journal of a promotion, stored at the version that it promotes, and its readers.

The journal is one tag, so that each write is atomic; every machine that sees the registry sees it. Readers treat an unreadable
journal as missing, and ignore unknown fields, which another release may write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

JOURNAL = "quantgate.promotion"
ROLLED_BACK = "quantgate.rolled_back"

# A promotion passes through these phases in order. `interrupted` marks one that ended early and may be resumed, `failed` one
# whose artifact differs from the judged one.
REGISTERED, VERIFIED, MOVING, DONE = "registered", "verified", "moving", "done"
INTERRUPTED, FAILED = "interrupted", "failed"
GOING_ON = frozenset({REGISTERED, VERIFIED, MOVING})

Tags = Mapping[str, str]


@dataclass(frozen=True)
class Journal:
    """The phase of a promotion; `previous` is the version that the alias pointed to before, `at` the time (ISO 8601, UTC)."""

    phase: str
    previous: str | None = None
    flow_run: str | None = None
    at: str = ""
    reason: str = ""


@dataclass(frozen=True)
class RolledBack:
    """Mark of a version that lost its alias in a rollback.

    `to` is the version that the alias moved to, 0 if it was removed. `request` distinguishes a repeated request from a new one.
    """

    to: int
    at: str = ""
    reason: str = ""
    request: str = ""


def now() -> str:
    """Return the current time for a record: ISO 8601, UTC, to the second.

    >>> now().endswith("+00:00")
    True
    """
    return datetime.now(UTC).isoformat(timespec="seconds")


def tag_of(record: Journal | RolledBack) -> str:
    """Return the value of the tag, a JSON object without empty fields.

    >>> tag_of(Journal("moving", previous="3"))
    '{"phase": "moving", "previous": "3"}'
    """
    return json.dumps({key: value for key, value in asdict(record).items() if value not in (None, "")})


def read_journal(tags: Tags) -> Journal | None:
    """Return the journal of a version; None if it is missing or unreadable.

    >>> read_journal({"quantgate.promotion": '{"phase": "done", "previous": "3", "of another release": 1}'}).previous
    '3'
    >>> read_journal({"quantgate.promotion": "done"}), read_journal({}), read_journal({"quantgate.promotion": "[" * 5000})
    (None, None, None)
    """
    kept = _fields(tags.get(JOURNAL), Journal)
    return Journal(**kept) if all(isinstance(value, str) for value in kept.values()) and "phase" in kept else None


def read_rolled_back(tags: Tags) -> RolledBack | None:
    """Return the rollback mark of a version; None without the tag.

    An unreadable tag still counts as a mark: editing it must not make a variant promotable again.

    >>> read_rolled_back({"quantgate.rolled_back": '{"to": 2, "reason": "slow"}'})
    RolledBack(to=2, at='', reason='slow', request='')
    >>> read_rolled_back({"quantgate.rolled_back": "by hand"})
    RolledBack(to=0, at='', reason='by hand', request='')
    """
    if ROLLED_BACK not in tags:
        return None
    kept = _fields(tags[ROLLED_BACK], RolledBack)
    to = kept.pop("to", None)
    if type(to) is not int or not all(isinstance(value, str) for value in kept.values()):
        return RolledBack(0, reason=tags[ROLLED_BACK])
    return RolledBack(to, **kept)


def predecessors(version: str, versions: Mapping[str, Tags]) -> list[str]:
    """Return the versions that were champion before `version`, latest first; `versions` maps each version of a target to tags.

    Each version's journal names its predecessor. A version without a journal follows the next lower one, because releases
    without a journal promoted in order. Versions that were rolled back, or whose promotion did not finish, are omitted.

    >>> done = lambda previous: {"quantgate.promotion": tag_of(Journal("done", previous=previous))}
    >>> versions = {"1": {}, "2": done("1"), "3": done("2") | {"quantgate.rolled_back": '{"to": 2}'}, "4": done("3")}
    >>> predecessors("4", versions), predecessors("1", versions)
    (['2', '1'], [])
    """
    found: list[str] = []
    seen: set[str] = set()
    before = _before(version, versions)
    while before is not None and before not in seen | {version}:
        seen.add(before)
        if before in versions and was_champion(versions[before]) and ROLLED_BACK not in versions[before]:
            found.append(before)
        before = _before(before, versions)
    return found


def was_champion(tags: Tags) -> bool:
    """Return True if the alias ever pointed to the version, also if it was rolled back later.

    >>> was_champion({"quantgate.promotion": '{"phase": "done"}'}), was_champion({"quantgate.promotion": '{"phase": "failed"}'})
    (True, False)
    """
    journal = read_journal(tags)
    return journal is None or journal.phase == DONE


def _before(version: str, versions: Mapping[str, Tags]) -> str | None:
    journal = read_journal(versions.get(version, {}))
    if journal is not None:
        return journal.previous
    # An edited journal may contain any version.
    lower = [int(other) for other in versions if int(other) < int(version)] if version.isdecimal() else []
    return str(max(lower)) if lower else None


def _fields(text: str | None, record: type[Journal] | type[RolledBack]) -> dict[str, Any]:
    try:
        read = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    names = {field.name for field in fields(record)}
    return {key: value for key, value in read.items() if key in names} if isinstance(read, dict) else {}

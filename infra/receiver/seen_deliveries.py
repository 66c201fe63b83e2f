"""The deliveries that Prefect has, in a small file: a receiver that starts anew refuses the same replays."""

from __future__ import annotations

import sqlite3
from pathlib import Path

# Far beyond the window of the timestamp, so that a clock that is set back lets nothing in again.
KEPT_SECONDS = 7 * 24 * 3600


class SeenDeliveries:
    """Delivery ids with the second they were taken in; one receiver writes a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        # What was answered with 200 must be here after a loss of power, too.
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS seen (delivery TEXT PRIMARY KEY, taken REAL NOT NULL)")
        self._database.execute("CREATE INDEX IF NOT EXISTS by_time ON seen (taken)")

    def __contains__(self, delivery: str) -> bool:
        found = self._database.execute("SELECT 1 FROM seen WHERE delivery = ?", (delivery,))
        return found.fetchone() is not None

    def add(self, delivery: str, now: float) -> None:
        """Keep a delivery, and forget those of last week; `now` in seconds since 1970."""
        self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (delivery, now))
        self._database.execute("DELETE FROM seen WHERE taken < ?", (now - KEPT_SECONDS,))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

"""What processes that were killed left half made in a store."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

# No maker works on one entry for so long.
OLD_SECONDS = 86_400.0


def remove_leftovers(root: Path, older_than_seconds: float = OLD_SECONDS) -> int:
    """Remove folders of entries that nobody has written to for so long, and say how many; finished entries are not touched."""
    removed = 0
    for folder in root.glob("*/.making-*"):
        if time.time() - _last_written(folder) > older_than_seconds:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _last_written(folder: Path) -> float:
    """When the folder, or anything in it, was last written (seconds of the clock); now for what is going away."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return time.time()

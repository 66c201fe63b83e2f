"""Records as portable text: placeholders stand for folders whose paths differ between machines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"\{store\}/([a-z][a-z0-9-]*)/([0-9a-f]{64})(?![0-9a-f])")


def pack(text: str, places: Mapping[str, Path]) -> str:
    """Return the JSON with `{name}` for each folder in it, in the order of `places`.

    A text that already contains such a placeholder is preserved: its brace becomes a JSON escape.

    >>> pack('["/s/store/variant/x", "/s/engines", "{state}"]', {"store": Path("/s/store"), "state": Path("/s")})
    '["{store}/variant/x", "{state}/engines", "\\\\u007bstate}"]'
    """
    for name in places:
        text = text.replace(f"{{{name}}}", f"\\u007b{name}}}")
    for name, folder in places.items():
        text = text.replace(_escaped(folder), f"{{{name}}}")
    return text


def unpack(text: str, places: Mapping[str, Path]) -> str:
    """Return the JSON that was packed, with this machine's folders."""
    for name, folder in places.items():
        text = text.replace(f"{{{name}}}", _escaped(folder))
    return text


def references(text: str) -> set[tuple[str, str]]:
    """Return the store entries that a packed text names, as (kind, digest)."""
    return set(_REFERENCE.findall(text))


def without_places(value: Any, places: Mapping[str, Path]) -> Any:
    """Return the value with `{name}` for each folder in its texts, so that keys are equal on all machines."""
    if isinstance(value, dict):
        return {key: without_places(one, places) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(one, places) for one in value]
    if isinstance(value, str | Path):
        text = str(value)
        for name, folder in places.items():
            text = text.replace(str(folder), f"{{{name}}}")
        return text
    return value


def _escaped(folder: Path) -> str:
    # As JSON strings, since a path may hold characters that JSON escapes.
    return json.dumps(str(folder))[1:-1]

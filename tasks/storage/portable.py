"""Records as text that says the same on another machine: places stand for the folders that each machine has its own of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"\{store\}/([a-z][a-z0-9-]*)/([0-9a-f]{64})(?![0-9a-f])")


def pack(text: str, places: Mapping[str, Path]) -> str:
    """JSON with `{name}` for each folder in it, the first of `places` first.

    A text that has such a name in it already stays what it is: its brace is written as an escape of JSON's.

    >>> pack('["/s/store/variant/x", "/s/engines", "{state}"]', {"store": Path("/s/store"), "state": Path("/s")})
    '["{store}/variant/x", "{state}/engines", "\\\\u007bstate}"]'
    """
    for name in places:
        text = text.replace(f"{{{name}}}", f"\\u007b{name}}}")
    for name, folder in places.items():
        text = text.replace(_escaped(folder), f"{{{name}}}")
    return text


def unpack(text: str, places: Mapping[str, Path]) -> str:
    """The JSON that `pack` was given, with this machine's folders."""
    for name, folder in places.items():
        text = text.replace(f"{{{name}}}", _escaped(folder))
    return text


def references(text: str) -> set[tuple[str, str]]:
    """The entries of a store that a packed text names, as (kind, digest)."""
    return set(_REFERENCE.findall(text))


def without_places(value: Any, places: Mapping[str, Path]) -> Any:
    """The same value with `{name}` for each folder in its texts: keys of one thing are to be equal on two machines."""
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

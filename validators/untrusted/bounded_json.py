"""Bounded JSON of a file that others wrote: a few megabytes of brackets become gigabytes of objects."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from validators.untrusted.paths import read_regular_file

# The graph of a large exported program has a few megabytes and 100,000 lists and objects, each of which takes up to 250 bytes.
MOST_BYTES = 64 << 20
MOST_PARTS = 2_000_000


def load_json(content: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, nested too deeply, has a number of more than 4300 digits, is longer than 64 MiB, or has more
            than 2,000,000 lists and objects.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes of JSON")
    if content.count(b"[") + content.count(b"{") > MOST_PARTS:
        raise ValueError(f"more than {MOST_PARTS} lists and objects")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """Return the value of a JSON file, which is an object, or a list for `kind=list`.

    Raises:
        OSError: the file is missing, not a regular file, or longer than 64 MiB.
        ValueError: `load_json` refuses its content, or the value is of another type.
    """
    found = load_json(read_regular_file(path, MOST_BYTES))
    if not isinstance(found, kind):
        raise ValueError(f"found a {type(found).__name__}, expected a {kind.__name__}")
    return found


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member of an archive, whatever size the archive declares for it.

    Raises:
        ValueError: it has more than 64 MiB when unpacked.
        Exception: zipfile raises several classes for a missing, damaged or encrypted member.
    """
    with archive.open(name) as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{name} has more than {MOST_BYTES} bytes when unpacked")
    return content

"""Content digests, which decide whether two artifacts, files or samples are the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, as 64 hexadecimal characters."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_text(text: str) -> str:
    """Return the sha256 of a text, encoded in UTF-8.

    >>> digest_text("")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(text.encode()).hexdigest()


def weights_of(path: Path) -> Path:
    """Return where the weights of a model lie that are not in its file: `<name>.data` of ONNX, `<stem>.bin` of OpenVINO's XML.

    >>> weights_of(Path("model.onnx")).name, weights_of(Path("model.xml")).name
    ('model.onnx.data', 'model.bin')
    """
    return path.with_suffix(".bin") if path.suffix == ".xml" else path.with_name(f"{path.name}.data")


def digest_model(path: Path) -> str:
    """Return the sha256 of a model: of its file or, if it has weights in a file beside it (`weights_of`), of both files."""
    beside = weights_of(path)
    return digest_values(digest_file(path), digest_file(beside)) if beside.exists() else digest_file(path)


def digest_values(*values: Any) -> str:
    """Return the sha256 of JSON-like values; equal values give equal digests in any order of their keys.

    >>> digest_values({"a": 1, "b": 2}) == digest_values({"b": 2, "a": 1})
    True
    """
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_samples(arrays: dict[str, NDArray[Any]]) -> list[str]:
    """Return one sha256 per sample, over its row in all `arrays` (each of shape `(n, ...)`)."""
    rows = len(next(iter(arrays.values())))
    ordered = [np.ascontiguousarray(arrays[name]) for name in sorted(arrays)]
    return [hashlib.sha256(b"".join(_row_bytes(array[row]) for array in ordered)).hexdigest() for row in range(rows)]


def _row_bytes(row: NDArray[Any]) -> bytes:
    # The width of text depends on the longest text of the file, hence on other samples.
    return repr(row.tolist()).encode() if row.dtype.kind == "U" else row.tobytes()

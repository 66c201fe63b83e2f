"""Application of the advice in an error, as its reader would: settings of the job, and conversions of arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

# Keys of the job in advice: "add `KEY: VALUE` to `data`", "set `KEY: VALUE`", "add to the job `KEY: VALUE`".
_SETTING = re.compile(r"(?:add|set|and|add to the job) `([a-z_]+: [^`]+)`")
# Keys below `data`.
_OF_DATA = {"columns", "groups", "ignore", "label", "slices"}
Change = Callable[[NDArray[Any]], NDArray[Any]]
# Conversions of the arrays that an error names.
_CONVERSIONS: dict[str, Callable[[re.Match[str]], Change]] = {
    r"^convert the (?:array|labels) with \.astype\('(\w+)'\)": lambda told: lambda array: array.astype(told[1]),
    r"\.squeeze\((\d)\)": lambda told: lambda array: array.squeeze(int(told[1])),
    r"\.transpose\(([\d, ]+)\)": lambda told: lambda array: array.transpose([int(n) for n in told[1].split(",")]),
    r"numpy\.argmax\(label, axis=1\)": lambda _: lambda array: array.argmax(axis=1),
    r"label\[:, 0\]": lambda _: lambda array: array[:, 0],
    r"^subtract 1": lambda _: lambda array: array - 1,
}


def settings_of(fix: str) -> dict[str, Any]:
    """The keys of the job in an advice, read as YAML; `data` holds those that belong there."""
    found: dict[str, Any] = {}
    for line in _SETTING.findall(fix):
        for key, value in yaml.safe_load(line).items():
            (found.setdefault("data", {}) if key in _OF_DATA else found)[key] = value
    return found


def apply_advice(found: str, fix: str, folder: Path) -> bool:
    """Change the job, or the arrays in its archives, as the advice says; False if it is for a person or another program."""
    settings = settings_of(fix)
    if settings:
        job = yaml.safe_load((folder / "job.yaml").read_text())
        job["data"] |= settings.pop("data", {})
        (folder / "job.yaml").write_text(yaml.safe_dump(job | settings))
        return True
    rename = re.search(r"^rename '([^']+)' to '([^'\\]+)'", fix)
    made = next((make(told) for pattern, make in _CONVERSIONS.items() if (told := re.search(pattern, fix))), None)
    path = folder / f"{found.partition(' ')[0]}.npz"
    named = re.search(r"\.npz: '?(\w+)'? ", found)
    if (
        not path.name.startswith(("calibration", "evaluation"))
        or path.name not in found
        or not (rename or (made and named))
    ):
        return False
    with np.load(path) as file:
        arrays = dict(file)
    if rename:
        arrays[rename[2]] = arrays.pop(rename[1])
    elif made and named:
        arrays[named[1]] = made(arrays[named[1]])
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's own keyword
    return True

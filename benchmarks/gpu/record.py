"""The one file of a check: written after every figure, gone on with, merged by key."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from tasks.storage.files import write_whole
from validators.errors import DataError

SCHEMA = 1
# Figures by key; each is a dict, which has `refused` with kind and reason where it could not be had.
SECTIONS = ("ceilings", "models", "artifacts", "cells")
REFUSED = "refused"


class Results:
    """The figures of one machine in one JSON file."""

    def __init__(
        self,
        path: Path,
        inventory: dict[str, Any],
        *,
        rehearsal: bool,
        check: str = "gpu",
        earlier: Path | None = None,
    ) -> None:
        """Go on with the file if it is there, else with the figures of `earlier`, which stays as it is.

        `check` is the check that the figures are of, `gpu` or `gpu-first`.

        Raises:
            DataError: it holds figures of another machine.
        """
        self.path = path
        fresh = {"schema": SCHEMA, "check": check, "rehearsal": rehearsal, "inventory": inventory, "parts": []}
        self.figures: dict[str, Any] = fresh | {section: {} for section in SECTIONS}
        if found := path if path.exists() else earlier:
            known = read(found)
            same_machine(known, self.figures)
            self.figures |= {key: known[key] for key in (*SECTIONS, "parts")}

    def has(self, section: str, key: str) -> bool:
        """Whether the figure is there; one that failed for reasons outside the model is worth another try."""
        found = self.figures[section].get(key)
        return found is not None and found.get(REFUSED, {}).get("kind") != "infrastructure"

    def put(self, section: str, key: str, figure: dict[str, Any]) -> None:
        """Add a figure, and write the file."""
        self.figures[section][key] = figure
        self.write()

    def write(self) -> None:
        save(self.path, self.figures)


def save(path: Path, figures: dict[str, Any]) -> None:
    """Write a file whole: a process that is killed leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as partial:
        partial.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """The figures of a file.

    Raises:
        DataError: it is no file of a check.
    """
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        known = figures["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            found=f"{path}, which cannot be read as results: {error!r}",
            expected="a JSON file that the GPU check wrote",
            fix="name the right file, or remove it and start anew",
        ) from error
    if not known:
        raise DataError(
            found=f"results of schema {figures['schema']}", expected=str(SCHEMA), fix="read them with their own version"
        )
    result: dict[str, Any] = figures
    return result


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Refuse to mix figures of two devices, or of a rehearsal and a GPU.

    Raises:
        DataError: they differ.
    """
    for name in ("check", "rehearsal", "device"):
        found = [figures["inventory"][name] if name == "device" else figures[name] for figures in (one, other)]
        if found[0] != found[1]:
            raise DataError(
                found=f"{name} {found[0]} and {found[1]} in one file of results",
                expected="figures of one check on one kind of GPU",
                fix="name another file with --out",
            )


def merge(paths: list[Path]) -> dict[str, Any]:
    """The figures of several files: by key the last one that was measured, a refusal only where nothing was measured.

    Raises:
        DataError: a file is no file of a check, or is of another machine.
    """
    merged = read(paths[0])
    for path in paths[1:]:
        other = read(path)
        same_machine(merged, other)
        for section in SECTIONS:
            for key, figure in other[section].items():
                if key not in merged[section] or REFUSED not in figure or REFUSED in merged[section][key]:
                    merged[section][key] = figure
        merged["parts"] += [part for part in other["parts"] if part not in merged["parts"]]
    return merged


def results_path(folder: Path, inventory: dict[str, Any], *, rehearsal: bool, check: str = "gpu") -> Path:
    """`<check>_<name>_cc<cc>_<date>.json`: the newest file of this GPU in the folder, or one of today.

    >>> gpu = {"name": "NVIDIA H200", "compute_capability": "9.0"}
    >>> results_path(Path("absent"), {"gpu": gpu}, rehearsal=False).name.rpartition("_")[0]
    'gpu_nvidia-h200_cc9.0'
    """
    gpu = inventory.get("gpu")
    stem = (
        f"{check}_{slug(gpu['name'])}_cc{gpu['compute_capability']}" if gpu and not rehearsal else f"{check}_rehearsal"
    )
    return max(folder.glob(f"{stem}_*.json"), default=folder / f"{stem}_{time.strftime('%Y-%m-%d')}.json")


def slug(text: str) -> str:
    """Small letters, digits and dashes.

    >>> slug("NVIDIA GeForce RTX 4090")
    'nvidia-geforce-rtx-4090'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")

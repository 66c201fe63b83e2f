"""Environments that see a few of the packages that are installed here."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def linked(folder: Path, names: Iterable[str]) -> Path:
    """Make an environment with these distributions and what they require; return its Python."""
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for name in _closure(names):
        for file in metadata.files(name) or ():
            top = file.parts[0]
            source = Path(str(file.locate())).resolve().parents[len(file.parts) - 1] / top
            if top not in ("..", "__pycache__") and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


def _closure(names: Iterable[str]) -> set[str]:
    left, found = list(names), set[str]()
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        wanted = [Requirement(text) for text in metadata.requires(name) or ()]
        left += [one.name for one in wanted if not one.marker or one.marker.evaluate({"extra": ""})]
    return found

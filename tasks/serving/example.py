"""Python example that loads a version's artifact with its runtime alone, under the approved settings, and runs one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.serving.exporter import exports_of

# Folder of the artifact's files, beside the README.
FOLDER = "variant"


@dataclass(frozen=True)
class ExampleProgram:
    """The lines of a program that opens a version, and the expressions for its outputs' names and for its answer to `feed`.

    One without an answer is whole: it asks the model itself.
    """

    lines: list[str]
    names: str = "[one.name for one in session.get_outputs()]"
    answered: str = "session.run(names, feed)"


def example(manifest: Mapping[str, Any], request: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the lines of a program that runs in the README's folder and defines `session`, `feed` and `outputs`.

    `request` holds the shape of each input by name.
    """
    needed = manifest.get("saturates_without")
    checked = _sums(needed) if needed else []
    opened: ExampleProgram = exports_of(manifest).program(manifest)
    if not opened.answered:
        return [*checked, *opened.lines]
    feed = [
        f"    {name!r}: np.zeros({shape!r}, dtype={manifest['inputs'][name]!r}),  # your samples, along axis 0"
        for name, shape in request.items()
    ]
    return [
        *checked,
        *opened.lines,
        "feed = {",
        *feed,
        "}",
        f"names = {opened.names}",
        f"outputs = dict(zip(names, {opened.answered}))",
        "for name, array in outputs.items():",
        "    print(name, array.dtype, array.shape)",
    ]


def _sums(needed: Sequence[str]) -> list[str]:
    """Return the lines that stop on a processor on which sums of the version's INT8 products saturate."""
    return [
        "from pathlib import Path",
        "",
        "# Sums of its INT8 products saturate on an x86 processor without these, which gives other answers.",
        f"needed = {{{', '.join(map(repr, needed))}}}",
        'cpuinfo = Path("/proc/cpuinfo")',
        "flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()",
        'assert "avx2" not in flags or flags & needed, "a processor on which the version is not what was approved"',
        "",
    ]

"""The command of who serves a variant without MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import prepared, target_option
from validators.errors import JobError
from validators.records.answer import CommandAnswer


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The source, or the model of its variants.")],
    target: Annotated[str, target_option("Of which target.")],
    triton: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A Triton model repository.")] = None,
    to: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="A new folder: files, README.")] = None,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="By default the champion.")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="By default the largest measured.")] = None,
) -> CommandAnswer:
    """Write a champion to a folder, for Triton or as files.

    A folder that quantgate wrote, and nobody changed since, is replaced; any other is refused: exit code 2.

    Example: quantgate export fraud --target ort-cpu --triton model-repository
    """
    prepared()
    from tasks.champion.export import export_triton, export_version

    if triton is not None and to is None:
        done = export_triton(model, target, triton, version, max_batch)
    elif to is not None and triton is None and max_batch is None:
        done = export_version(model, target, to, version)
    else:
        raise JobError(
            found="both --triton and --out" if triton and to else "--max-batch with --out" if to else "no folder",
            expected="--triton FOLDER, with --max-batch if need be, or --out FOLDER",
            fix="name one of them",
        )
    lines = [f"{done.candidate}, {done.uri}, is in {done.folder}", *(f"  {name}" for name in done.files)]
    return CommandAnswer(done, (*lines, *(f"not carried over: {note}" for note in done.notes)))

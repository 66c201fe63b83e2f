"""The command of who serves a variant without MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.console import fail, out
from tasks.settings import prepare_environment, state_folder
from validators.errors import JobError, QuantgateError
from validators.recipe import Target


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The source, or the model that holds its variants.")],
    target: Annotated[Target, typer.Option(help="Of which target the champion is written.")],
    triton: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A model repository of Triton Inference Server: one more model there."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="A new folder: the files, manifest and README.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="VERSION", help="Of which version; by default the champion.")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="Triton's max_batch_size; by default the largest that was measured.")
    ] = None,
) -> None:
    """Write the champion of a model to a folder, for Triton Inference Server or for who runs the file itself.

    A folder that quantgate wrote, and nobody changed since, is replaced; any other is refused. Exit code 2: that, or no such
    model or version; 1: infrastructure.

    Example: quantgate export fraud --target ort-cpu --triton model-repository
    """
    prepare_environment(state_folder())
    from tasks.export_version import export_triton, export_version

    try:
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
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    lines = [f"{done.candidate}, {done.uri}, is in {done.folder}", *(f"  {name}" for name in done.files)]
    lines += [f"not carried over: {note}" for note in done.notes]
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)

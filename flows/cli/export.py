"""Command that exports a variant for serving without MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import prepared, target_option
from validators.errors import JobError
from validators.records.answer import CommandAnswer


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Source model, or its variants' model.")],
    target: Annotated[str, target_option("Target of the champion.")],
    triton: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Triton model repository.")] = None,
    ovms: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for OpenVINO Model Server.")] = None,
    genai: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for onnxruntime-genai.")] = None,
    gguf: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for llama.cpp.")] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="New folder for the files and a README.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: the champion.")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: the largest measured.")] = None,
) -> CommandAnswer:
    """Write a champion for a server or another program.

    Only a folder that quantgate wrote, unchanged, is replaced; else exit code 2.

    Example: quantgate export fraud --target ort-cpu --triton model-repository
    """
    prepared()
    from tasks.champion.export import export_genai, export_gguf, export_model_server, export_triton, export_version

    formats = {"--triton": triton, "--ovms": ovms, "--genai": genai, "--gguf": gguf, "--out": to}
    given = [name for name, folder in formats.items() if folder is not None]
    if len(given) != 1 or (max_batch is not None and triton is None):
        raise JobError(
            found=" and ".join(given) if len(given) > 1 else f"--max-batch with {given[0]}" if given else "no folder",
            expected="--triton FOLDER (optionally with --max-batch), or one of --ovms, --genai, --gguf and --out FOLDER",
            fix="pass one of them",
        )
    if triton is not None:
        done = export_triton(model, target, triton, version, max_batch)
    elif ovms is not None:
        done = export_model_server(model, target, ovms, version)
    elif genai is not None:
        done = export_genai(model, target, genai, version)
    elif gguf is not None:
        done = export_gguf(model, target, gguf, version)
    elif to is not None:
        done = export_version(model, target, to, version)
    lines = [f"exported {done.candidate} ({done.uri}) to {done.folder}", *(f"  {name}" for name in done.files)]
    return CommandAnswer(done, (*lines, *(f"not carried over: {note}" for note in done.notes)))

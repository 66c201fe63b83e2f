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
    genai: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for the engine's GenAI library.")] = None,
    gguf: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for llama.cpp.")] = None,
    vllm: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for vLLM.")] = None,
    tensorrt_llm: Annotated[
        Path | None, typer.Option("--tensorrt-llm", metavar="FOLDER", help="Folder for TensorRT-LLM, never executed.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="New folder for the files and a README.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: the champion.")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: the largest measured.")] = None,
) -> CommandAnswer:
    """Write a champion for a server or another program.

    Example: quantgate export fraud --target ort-cpu --triton model-repository
    """
    prepared()
    from tasks.champion.export import export_version

    folders = {
        "--triton": triton,
        "--ovms": ovms,
        "--genai": genai,
        "--gguf": gguf,
        "--vllm": vllm,
        "--tensorrt-llm": tensorrt_llm,
        "--out": to,
    }
    given = [(name, folder) for name, folder in folders.items() if folder is not None]
    if len(given) != 1 or (max_batch is not None and triton is None):
        names = " and ".join(name for name, _ in given)
        *others, last = (name for name in folders if name != "--triton")
        raise JobError(
            found=names if len(given) > 1 else f"--max-batch with {names}" if given else "no folder",
            expected=f"--triton FOLDER (optionally with --max-batch), or one of {', '.join(others)} and {last} FOLDER",
            fix="pass one of them",
        )
    ((name, folder),) = given
    done = export_version(name, model, target, folder, version, max_batch)
    lines = [f"exported {done.candidate} ({done.uri}) to {done.folder}", *(f"  {name}" for name in done.files)]
    return CommandAnswer(done, (*lines, *(f"not carried over: {note}" for note in done.notes)))

"""quantgate on an NVIDIA GPU: what each candidate gives there, beside the GPU's own limits; one JSON file, one table.

    python -m benchmarks.gpu bundle FOLDER            # where the demos' assets are: three models, packed small
    python -m benchmarks.gpu wheels FOLDER            # where there is a network: what the machine with the GPU may lack
    python -m benchmarks.gpu join FOLDER              # put together what was carried in parts
    make gpu-first                                          # on the machine with the GPU: no bundle, PyTorch alone; `first`
    make gpu-full BUNDLE=FOLDER WHEELS=FOLDER               # there, too: `torch`, `run`, the tests of the device
    python -m benchmarks.gpu torch FOLDER                   # the target torch-cuda with the trained models, PyTorch alone
    python -m benchmarks.gpu run FOLDER --only ort-cuda --models text --seconds 500
    python -m benchmarks.gpu run FOLDER --provider cpu                      # a rehearsal: every step, no GPU
    python -m benchmarks.gpu merge A.json B.json --into benchmarks/results
    python -m benchmarks.gpu table RESULTS.json

`first`, `torch` and `run` write their file after every figure and go on where they stopped: what is there is not measured
again, but for what failed for reasons outside the model. They end within `--seconds` unless a single figure takes longer.
See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
# The modules beside this one, and quantgate, which need not be installed where only a check is run.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from validators.errors import QuantgateError

RESULTS = HERE / "results"
WORK = HERE.parent / ".quantgate" / "gpu-check"
MODELS = ("text", "image", "language")
FIRST_MODELS = ("encoder", "decoder", "encoder-wide", "cnn")
PARTS = ("ceilings", "ort-cuda", "tensorrt", "pytorch")


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if all is measured or refused for good, 3 if the time did not reach for all."""
    # Measuring processes are started by path and import quantgate as well.
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, (HERE, HERE.parent)), os.environ.get("PYTHONPATH", "")])
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except QuantgateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return code


def _bundle(options: argparse.Namespace) -> int:
    from gpu.models import write
    from gpu.parts import split

    for name in options.models:
        path = write(name, options.state, options.folder)
        size = _part_bytes(options)
        for part in split(path, size) if size else [path]:
            print(f"{part}  {part.stat().st_size / 1e6:.1f} MB")
    return 0


def _wheels(options: argparse.Namespace) -> int:
    from gpu.wheels import download

    for path in download(options.folder, options.python, _part_bytes(options)):
        print(f"{path.name}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _part_bytes(options: argparse.Namespace) -> int:
    from gpu.parts import part_bytes

    return part_bytes() if options.part_mb is None else int(options.part_mb * 1_000_000)


def _join(options: argparse.Namespace) -> int:
    from gpu.parts import join

    for path in join(options.folder):
        print(path)
    return 0


def _torch(options: argparse.Namespace) -> int:
    from gpu.inventory import describe_by_torch
    from gpu.torch_cuda import run_torch

    return _measured(options, _results(options, describe_by_torch, "gpu"), run_torch)


def _first(options: argparse.Namespace) -> int:
    from gpu.first import run_first
    from gpu.first_table import render_first
    from gpu.inventory import describe_by_torch
    from gpu.record import read

    results = _results(options, describe_by_torch, "gpu-first")
    code = _measured(options, results, run_first)
    told = render_first(read(results.path))
    results.path.with_suffix(".md").write_text(f"{told}\n", encoding="utf-8")
    print(f"\n{told}")
    return code


def _run(options: argparse.Namespace) -> int:
    from gpu.inventory import describe_machine
    from gpu.run import run_check

    return _measured(options, _results(options, describe_machine, "gpu"), run_check)


def _measured(options: argparse.Namespace, results: Any, run: Callable[..., int]) -> int:
    """Run what was asked for, and return the exit code."""
    from gpu.session import Options

    given = vars(options)
    known = {field.name: given[field.name] for field in fields(Options) if field.name in given}
    wanted = Options(**known, rehearsal=options.provider == "cpu")
    left = run(wanted, results, lambda line: print(line, flush=True))
    print(f"{results.path}: {f'{left} figures left, run the same again' if left else 'complete'}")
    return 3 if left else 0


def _results(options: argparse.Namespace, describe: Callable[..., dict[str, Any]], check: str) -> Any:
    """Open the file that figures go to: that of this device in the folder `--out`, begun from the one of the repository."""
    from gpu.record import Results, results_path

    rehearsal = options.provider == "cpu"
    inventory = describe(rehearsal=rehearsal)
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else options.work if rehearsal else RESULTS
    path, known = options.out or folder, None
    if path.suffix != ".json":
        path, known = (results_path(at, inventory, rehearsal=rehearsal, check=check) for at in (path, RESULTS))
    earlier = known if known and known.exists() else None
    return Results(path, inventory, rehearsal=rehearsal, check=check, earlier=earlier)


def _merge(options: argparse.Namespace) -> int:
    from gpu.record import merge, results_path, save

    figures = merge(options.files)
    path = results_path(options.into, figures["inventory"], rehearsal=figures["rehearsal"], check=figures["check"])
    save(path, figures)
    print(path)
    return 0


def _table(options: argparse.Namespace) -> int:
    from gpu.first_table import render_first
    from gpu.record import read
    from gpu.table import refuse_rehearsal, render

    figures = read(options.file)
    refuse_rehearsal(figures, allowed=options.rehearsal)
    print((render_first if figures["check"] == "gpu-first" else render)(figures))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _some_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        unknown = set(_names(text)) - set(known)
        if unknown or not _names(text):
            raise argparse.ArgumentTypeError(f"found {text!r}; expected some of {', '.join(known)}")
        return _names(text)

    return read


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, _names(text)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    bundle = _command(commands, "bundle", _bundle)
    bundle.add_argument("folder", type=Path)
    bundle.add_argument("--models", type=_some_of(MODELS), default=MODELS)
    bundle.add_argument("--state", type=Path, default=HERE.parent / ".quantgate", help="has the demos' assets")
    _part_arguments(bundle)
    wheels = _command(commands, "wheels", _wheels)
    wheels.add_argument("folder", type=Path)
    wheels.add_argument("--python", default="3.12")
    _part_arguments(wheels)
    _command(commands, "join", _join).add_argument("folder", type=Path)
    merge = _command(commands, "merge", _merge)
    merge.add_argument("files", type=Path, nargs="+")
    merge.add_argument("--into", type=Path, default=RESULTS)
    table = _command(commands, "table", _table)
    table.add_argument("file", type=Path)
    table.add_argument("--rehearsal", action="store_true", help="allow a file without a figure of a GPU")
    first = _command(commands, "first", _first)
    first.add_argument("--models", type=_some_of(FIRST_MODELS), default=FIRST_MODELS)
    _shared_arguments(first, seconds=560.0, block_seconds=0.05)
    _run_arguments(_command(commands, "run", _run))
    _run_arguments(_command(commands, "torch", _torch))
    return parser


def _run_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument("bundle", type=Path, help="the folder that `bundle` wrote")
    run.add_argument("--only", dest="parts", type=_some_of(PARTS), default=PARTS, help=f"of {', '.join(PARTS)}")
    run.add_argument("--models", type=_some_of(MODELS), default=MODELS)
    run.add_argument("--launches", type=int, default=3)
    _shared_arguments(run, seconds=540.0, block_seconds=0.12)


def _shared_arguments(run: argparse.ArgumentParser, *, seconds: float, block_seconds: float) -> None:
    run.add_argument("--out", type=Path, help="a folder for the results, or their file; $OUT if it is set")
    run.add_argument("--forms", type=_names, default=(), help="of torch-cuda, such as bf16,fp8-amax-pc")
    run.add_argument("--batches", type=_sizes, default=(), help="such as 1,8 in place of the usual ones")
    run.add_argument("--seconds", type=float, default=seconds)
    run.add_argument("--block-seconds", type=float, default=block_seconds)
    run.add_argument("--again", action="store_true", help="measure what is there as well")
    run.add_argument("--provider", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses")
    run.add_argument("--work", type=Path, default=WORK, help="where programs, packages and candidates are kept")


def _part_arguments(command: argparse.ArgumentParser) -> None:
    told = "cut larger files; 0 for none; so large that one is carried with this tree in 64 MiB"
    command.add_argument("--part-mb", type=float, help=told)


def _command(commands: Any, name: str, function: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name)
    parser.set_defaults(command=function)
    return parser


if __name__ == "__main__":
    sys.exit(main())

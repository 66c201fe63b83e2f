"""quantgate on an NVIDIA GPU: what each candidate gives there, beside the GPU's own limits; one JSON file, one table.

    python -m benchmarks.gpu bundle FOLDER            # where the demos' assets are: three models, packed small
    python -m benchmarks.gpu wheels FOLDER            # where there is a network: what the machine with the GPU may lack
    python -m benchmarks.gpu join FOLDER              # put together what was carried in parts
    make gpu-check BUNDLE=FOLDER WHEELS=FOLDER              # on the machine with the GPU: `torch`, an environment, then `run`
    python -m benchmarks.gpu first --out FOLDER             # first contact: no bundle, PyTorch alone; `make gpu-first`
    python -m benchmarks.gpu torch FOLDER                   # the target torch-cuda with the trained models, PyTorch alone
    python -m benchmarks.gpu run FOLDER --only ort-cuda --models text --seconds 500
    python -m benchmarks.gpu run FOLDER --provider cpu                      # a rehearsal: every step, no GPU
    python -m benchmarks.gpu merge A.json B.json --into benchmarks/results
    python -m benchmarks.gpu table RESULTS.json

`run` writes its file after every figure and goes on where it stopped: what is there is not measured again, but for what failed
for reasons outside the model. It ends within `--seconds` unless a single figure takes longer. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
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
PART_MB = 56


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
        for part in split(path, options.part_mb * 1_000_000) if options.part_mb else [path]:
            print(f"{part}  {part.stat().st_size / 1e6:.1f} MB")
    return 0


def _wheels(options: argparse.Namespace) -> int:
    from gpu.wheels import download

    for path in download(options.folder, options.python, options.part_mb * 1_000_000, lean=options.lean):
        print(f"{path.name}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _join(options: argparse.Namespace) -> int:
    from gpu.parts import join

    for path in join(options.folder):
        print(path)
    return 0


def _torch(options: argparse.Namespace) -> int:
    from gpu.inventory import describe_by_torch
    from gpu.torch_cuda import run_torch

    return _measure(options, describe_by_torch, run_torch)


def _first(options: argparse.Namespace) -> int:
    from gpu.first import run_first
    from gpu.first_table import render_first
    from gpu.inventory import describe_by_torch
    from gpu.record import Results, results_path
    from gpu.session import Options

    rehearsal = options.provider == "cpu"
    inventory = describe_by_torch(rehearsal=rehearsal)
    out = results_path(options.out, inventory, rehearsal=rehearsal, check="gpu-first")
    known = results_path(RESULTS, inventory, rehearsal=rehearsal, check="gpu-first")
    results = Results(out, inventory, rehearsal=rehearsal, earlier=known if known.exists() else None)
    wanted = Options(
        work=options.work,
        models=options.models,
        batches=options.batches,
        seconds=options.seconds,
        block_seconds=options.block_seconds,
        again=options.again,
        rehearsal=rehearsal,
    )
    left = run_first(wanted, results, lambda line: print(line, flush=True))
    told = render_first(results.figures)
    out.with_suffix(".md").write_text(f"{told}\n", encoding="utf-8")
    print(f"\n{told}\n\n{out}: {f'{left} figures left, run the same again' if left else 'complete'}")
    return 3 if left else 0


def _run(options: argparse.Namespace) -> int:
    from gpu.inventory import describe_machine
    from gpu.run import run_check

    return _measure(options, describe_machine, run_check)


def _measure(options: argparse.Namespace, describe: Callable[..., dict[str, Any]], run: Callable[..., int]) -> int:
    from gpu.record import Results, results_path
    from gpu.session import Options

    rehearsal = options.provider == "cpu"
    inventory = describe(rehearsal=rehearsal)
    given = options.results or (options.work if rehearsal else RESULTS)
    path = given if given.suffix == ".json" else results_path(given, inventory, rehearsal=rehearsal)
    wanted = Options(
        bundle=options.bundle,
        work=options.work,
        parts=options.only,
        models=options.models,
        batches=options.batches,
        seconds=options.seconds,
        launches=options.launches,
        block_seconds=options.block_seconds,
        again=options.again,
        rehearsal=rehearsal,
    )
    left = run(wanted, Results(path, inventory, rehearsal=rehearsal), lambda line: print(line, flush=True))
    print(f"{path}: {f'{left} figures left, run the same again' if left else 'complete'}")
    return 3 if left else 0


def _merge(options: argparse.Namespace) -> int:
    from gpu.record import merge, results_path, save

    figures = merge(options.files)
    path = results_path(options.into, figures["inventory"], rehearsal=figures["rehearsal"])
    save(path, figures)
    print(path)
    return 0


def _table(options: argparse.Namespace) -> int:
    from gpu.record import read
    from gpu.table import render

    print(render(read(options.file), rehearsal=options.rehearsal))
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
    bundle.add_argument("--part-mb", type=int, default=PART_MB, help="cut larger files; 0 for none")
    wheels = _command(commands, "wheels", _wheels)
    wheels.add_argument("folder", type=Path)
    wheels.add_argument("--python", default="3.12")
    wheels.add_argument("--part-mb", type=int, default=PART_MB)
    wheels.add_argument("--lean", action="store_true", help="without NumPy, SciPy and ONNX")
    _command(commands, "join", _join).add_argument("folder", type=Path)
    merge = _command(commands, "merge", _merge)
    merge.add_argument("files", type=Path, nargs="+")
    merge.add_argument("--into", type=Path, default=RESULTS)
    table = _command(commands, "table", _table)
    table.add_argument("file", type=Path)
    table.add_argument("--rehearsal", action="store_true", help="allow a file without a figure of a GPU")
    first = _command(commands, "first", _first)
    default = Path(os.environ["OUT"]) if os.environ.get("OUT") else RESULTS
    first.add_argument("--out", type=Path, default=default, help="where the results go: $OUT if it is set")
    first.add_argument("--models", type=_some_of(FIRST_MODELS), default=FIRST_MODELS)
    first.add_argument("--batches", type=_sizes, default=(), help="such as 1,8 in place of 1,8,32,128")
    first.add_argument("--seconds", type=float, default=560.0)
    first.add_argument("--block-seconds", type=float, default=0.08)
    first.add_argument("--again", action="store_true", help="measure what is there as well")
    first.add_argument("--provider", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses")
    first.add_argument("--work", type=Path, default=WORK, help="where programs and packages are kept")
    _run_arguments(_command(commands, "run", _run))
    _run_arguments(_command(commands, "torch", _torch))
    return parser


def _run_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument("bundle", type=Path, help="the folder that `bundle` wrote")
    run.add_argument("--only", type=_some_of(PARTS), default=PARTS, help=f"of {', '.join(PARTS)}")
    run.add_argument("--models", type=_some_of(MODELS), default=MODELS)
    run.add_argument("--batches", type=_sizes, default=(), help="such as 1,8 in place of each model's own")
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--launches", type=int, default=3)
    run.add_argument("--block-seconds", type=float, default=0.12)
    run.add_argument("--again", action="store_true", help="measure what is there as well")
    run.add_argument("--provider", choices=("gpu", "cpu"), default="gpu", help="cpu rehearses")
    run.add_argument("--results", type=Path, help="a file, or the folder that it goes to")
    run.add_argument("--work", type=Path, default=WORK, help="where candidates are kept")


def _command(commands: Any, name: str, function: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name)
    parser.set_defaults(command=function)
    return parser


if __name__ == "__main__":
    sys.exit(main())

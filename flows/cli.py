"""The command line: `quantgate run`, `validate`, `demo` and their siblings; further commands are in the modules of its end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flows import champion_commands as champions
from flows import export_commands as exports
from flows import service_commands as service
from flows.console import err, fail, out, print_table, show_result, write_result
from flows.progress import show_progress
from tasks.clock import Clock
from tasks.embedded_server import on_server, start_server
from tasks.settings import prepare_environment, state_folder
from validators.errors import (
    EXIT_INFRASTRUCTURE,
    EXIT_NO_VARIANT,
    EXIT_OK,
    EXIT_REFUSED,
    InfrastructureError,
    JobError,
    QuantgateError,
)
from validators.job import Job
from validators.read_job import read_job
from validators.redact import redact
from validators.result import Result
from validators.s3_uris import S3Uri

EXIT_CODES = {
    "promoted": EXIT_OK,
    "winner": EXIT_OK,
    "accepted": EXIT_OK,
    "no_variant": EXIT_NO_VARIANT,
    "rejected": EXIT_NO_VARIANT,
    "refused": EXIT_REFUSED,
    "error": EXIT_INFRASTRUCTURE,
}

app = typer.Typer(
    name="quantgate",
    help="Quantize a registered model, judge every variant on the hardware it will run on, promote the best that passes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file (YAML); examples/text.yaml is one.")]
ResultFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result document (JSON) here.")]


def main() -> None:
    """The entry point of the console script."""
    app()


@app.command()
def run(
    job: JobFile,
    result: ResultFile = None,
    promote: Annotated[bool, typer.Option(help="Register the winner and move the alias.")] = True,
) -> None:
    """Run a job: quantize, judge, promote.

    Exit code 0: promoted (a winner, with --no-promote); 3: no variant wins; 4: calibration data refused; 2: bad job or
    input; 1: infrastructure.

    Example: quantgate run examples/text.yaml --result result.json
    """
    raise typer.Exit(run_job(job, result, promote=promote))


@app.command()
def validate(job: JobFile, result: ResultFile = None) -> None:
    """Judge the calibration data of a job, and nothing else: the same checks that `run` starts with.

    Exit code 0: accepted, with warnings or without; 4: refused; 2: bad job or input; 1: infrastructure.

    Example: quantgate validate examples/text.yaml
    """
    raise typer.Exit(validate_job(job, result))


@app.command()
def suggest_calibration(
    job: JobFile,
    pool: Annotated[Path, typer.Option("--from", metavar="POOL", help="Samples to pick from (.npz or .parquet).")],
    size: Annotated[int, typer.Option(min=2, help="How many samples to pick.")],
    path: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write them; the job's calibration file by default."),
    ] = None,
) -> None:
    """Pick a calibration set from a pool: each label in its share, and near to all that the pool (or the traffic) holds.

    Samples of the evaluation data, and what is nearly the same as one, are left out.

    Example: quantgate suggest-calibration job.yaml --from pool.npz --size 128
    """
    raise typer.Exit(suggest(job, pool, size, path))


@app.command()
def candidates(job: JobFile) -> None:
    """Show the candidates that a job would try, with what their names mean.

    Example: quantgate candidates examples/text.yaml
    """
    from flows.describe import candidate_rows

    try:
        rows = candidate_rows(read_job(job))
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    print_table(rows)


@app.command()
def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, quantized or not.")],
    target: Annotated[str, typer.Option(help="Where it will run.")] = "tensorrt",
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write the findings (JSON) here.")] = None,
) -> None:
    """Say what a runtime would refuse of a quantized model, silently compute in float, or do slower than it could.

    Exit code 0: nothing, or merely slow; 3: something fails, is wrong or runs in float; 2: no ONNX file, or no such target.

    Example: quantgate lint model.onnx --target tensorrt
    """
    from flows.lint import lint_model

    try:
        code = lint_model(model, target, json)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    raise typer.Exit(code)


@app.command()
def doctor() -> None:
    """Say which targets this machine can run, and what is missing for the others.

    Example: quantgate doctor
    """
    from flows.describe import target_rows

    try:
        facts, rows = target_rows()
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    for line in facts:
        out.print(line, highlight=False, markup=False)
    print_table(rows)


@app.command()
def demo(
    image: Annotated[bool, typer.Option("--image", help="The image demo in place of the text demo.")] = False,
    result: ResultFile = None,
) -> None:
    """Build a real model from public assets, register it, and run the main job on it.

    Example: quantgate demo
    """
    state = state_folder()
    prepare_environment(state)
    try:
        with show_progress(err):
            from flows.demo import prepare_demo

            job = prepare_demo(state, image=image)
    except QuantgateError as error:
        raise typer.Exit(fail(error, result)) from error
    raise typer.Exit(run_job(job, result, promote=True))


def run_job(path: Path, result_path: Path | None, *, promote: bool) -> int:
    """Run a job file, print what it came to, write the result document; return the exit code."""

    def load() -> Callable[[Job], Any]:
        from flows.quantize import quantize

        return partial(quantize, promote=promote, return_state=True)

    return _follow(path, result_path, load)


def validate_job(path: Path, result_path: Path | None) -> int:
    """Judge the calibration data of a job file, print and write what it came to; return the exit code."""

    def load() -> Callable[[Job], Any]:
        from flows.quantize import validate

        return partial(validate, return_state=True)

    return _follow(path, result_path, load)


def _follow(path: Path, result_path: Path | None, load: Callable[[], Callable[[Job], Any]]) -> int:
    """Run the flow that `load` imports on a job file to its result document, whatever comes of it; return the exit code."""
    started = time.monotonic()
    clock = Clock()
    job: Job | None = None
    try:
        if result_path is not None and not result_path.resolve().parent.is_dir():
            raise _no_folder(result_path)
        job = read_job(path)
        prepare_environment(state_folder())
        start_server()
        with show_progress(err):
            flow = load()
            with on_server():
                result = _result_of(flow(job))
    except QuantgateError as error:
        return fail(error, result_path, job, clock)
    except Exception as error:
        return fail(_unexpected(error), result_path, job, clock)
    seconds = result.seconds
    total = time.monotonic() - started
    # The command's own start, and Prefect's, belong to what the user waits for.
    overhead = seconds.overhead + total - seconds.total
    seconds = seconds.model_copy(update={"total": round(total, 3), "overhead": round(overhead, 3)})
    result = result.model_copy(update={"seconds": seconds})
    write_result(result, result_path)
    show_result(result)
    return EXIT_CODES[result.outcome]


def _local_target(place: Path | S3Uri) -> Path:
    """Where a calibration set is written if nothing else is said.

    Raises:
        JobError: the job names a place on S3.
    """
    if isinstance(place, S3Uri):
        raise JobError(
            found=f"`data.calibration` at {place}",
            expected="a file to write the calibration set to",
            fix="give one with --out, look at it, and upload it",
        )
    return place


def _result_of(state: Any) -> Result:
    """The document in the state that a flow ended in, failed or not; what a flow raised is raised here."""
    found = state.result(raise_on_failure=False)
    if isinstance(found, BaseException):
        raise found
    return cast(Result, found)


def suggest(path: Path, pool: Path, size: int, target: Path | None) -> int:
    """Pick a calibration set for a job file, print what was picked; return the exit code."""
    try:
        job = read_job(path)
        prepare_environment(state_folder())
        start_server()
        with show_progress(err):
            from flows.quantize import suggest_calibration as pick

            with on_server():
                picked = pick(job, pool, size, target or _local_target(job.data.calibration))
    except QuantgateError as error:
        return fail(error)
    except Exception as error:
        return fail(_unexpected(error))
    lines = [
        f"wrote {len(picked.rows)} samples of {pool.name} to {picked.path}",
        f"covers {picked.coverage:.1%}; a random draw of as many {picked.random_coverage:.1%}",
        *(f"left out: {count} {reason}" for reason, count in picked.left_out.items() if count),
    ]
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    return EXIT_OK


def _unexpected(error: Exception) -> QuantgateError:
    """A fault that nobody foresaw: its traceback goes to a file, since it helps only who mends quantgate."""
    log = state_folder() / "logs" / "last-error.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(redact("".join(traceback.format_exception(error))), encoding="utf-8")
    return InfrastructureError(
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
        expected="a run to its end",
        fix=f"run again: finished work is kept; if it stays, report it with {log}",
    )


def _no_folder(path: Path) -> QuantgateError:
    from validators.errors import JobError

    return JobError(
        found=f"--result {path}: no such folder", expected="a folder that exists", fix=f"mkdir -p {path.parent}"
    )


for command in (
    service.ui,
    service.serve,
    service.deploy,
    service.worker,
    service.webhook,
    champions.approvals,
    champions.approve,
    champions.reject,
    champions.rollback,
    champions.watch,
    champions.retention,
    exports.export,
):
    app.command()(command)

if __name__ == "__main__":
    main()

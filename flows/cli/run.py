"""Commands that take a job file: run, validate, demo, candidates, suggest-calibration."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from flows.cli.console import ended, err, interrupted, prepared, tell_error, unexpected
from flows.cli.progress import show_progress
from flows.cli.results import Files, result_parts, write_files
from tasks.run.progress_events import stage
from tasks.run.settings import state_folder
from tasks.run.signals import signals_kept
from tasks.service.embedded_server import on_server, start_server
from validators.errors import (
    EXIT_INFRASTRUCTURE,
    EXIT_NO_VARIANT,
    EXIT_OK,
    EXIT_REFUSED,
    JobError,
    QuantgateError,
)
from validators.records.answer import CommandAnswer, Table
from validators.untrusted.s3_uris import S3Uri

if TYPE_CHECKING:
    from tasks.run.clock import Clock
    from validators.job.job import Job
    from validators.records.result import Result

log = logging.getLogger("quantgate")
# The stage before the first step.
START = "start Prefect, load the libraries"

EXIT_CODES = {
    "promoted": EXIT_OK,
    "winner": EXIT_OK,
    "accepted": EXIT_OK,
    "no_variant": EXIT_NO_VARIANT,
    "rejected": EXIT_NO_VARIANT,
    "refused": EXIT_REFUSED,
    "error": EXIT_INFRASTRUCTURE,
}
JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file (YAML).")]
JobOrModel = Annotated[
    str, typer.Argument(metavar="JOB", help="The job file (YAML); or a model, models:/NAME/VERSION or an ONNX file.")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as gates.max_drop=0.01.")
]
Calibration = Annotated[str | None, typer.Option(metavar="FILE", help="The calibration data.")]
Evaluation = Annotated[str | None, typer.Option(metavar="FILE", help="The evaluation data.")]
Metric = Annotated[str | None, typer.Option(metavar="METRIC", help="The metric.")]
SavedJob = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the job here.")]
ResultFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result (JSON) here.")]
JUnitFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML here, for CI.")]
SummaryFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write Markdown here, for CI.")]

ReplaceDevice = Annotated[bool, typer.Option("--replace-device", help="Ignore the champion's device.")]


def run(
    job: JobOrModel,
    calibration: Calibration = None,
    evaluation: Evaluation = None,
    metric: Metric = None,
    changes: Changes = None,
    save_job: SavedJob = None,
    result: ResultFile = None,
    junit: JUnitFile = None,
    summary: SummaryFile = None,
    promote: Annotated[bool, typer.Option(help="Register and promote the winner.")] = True,
    replace_device: ReplaceDevice = False,
) -> CommandAnswer:
    """Run a job: quantize, judge, promote.

    Exit code 0: promoted, or a winner; 3: none wins; 4: calibration data refused; 2: bad job or input;
    1: infrastructure; 130: Ctrl-C, run again to resume.

    Example: quantgate run examples/text.yaml --result result.json
    """
    files: Files = {"--result": result, "--junit": junit, "--summary": summary}
    given = {"data.calibration": calibration, "data.evaluation": evaluation, "metric": metric}
    return _follow(
        lambda: job_of(job, given, changes or (), save_job),
        files,
        partial(_quantize, promote=promote, replace_device=replace_device),
    )


def validate(
    job: JobOrModel,
    calibration: Calibration = None,
    evaluation: Evaluation = None,
    metric: Metric = None,
    changes: Changes = None,
    save_job: SavedJob = None,
    result: ResultFile = None,
) -> CommandAnswer:
    """Judge only the calibration data of a job.

    Runs the checks that `run` starts with. Exit code 0: accepted, with warnings or without; 4: refused; 2: bad job or
    input; 1: infrastructure.

    Example: quantgate validate examples/text.yaml
    """

    def load() -> Callable[[Job], Any]:
        from flows.quantize import validate as flow

        return partial(flow, return_state=True)

    given = {"data.calibration": calibration, "data.evaluation": evaluation, "metric": metric}
    return _follow(lambda: job_of(job, given, changes or (), save_job), {"--result": result}, load)


def demo(
    image: Annotated[bool, typer.Option("--image", help="Run the image demo instead of the text demo.")] = False,
    llm: Annotated[
        bool, typer.Option("--llm", help="Run the language demo, a decoder; it needs the extra `genai`.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Try every default candidate: ten minutes instead of three.")
    ] = False,
    result: ResultFile = None,
) -> CommandAnswer:
    """Build and register a real model, and run a job on it.

    The model and its data are public, and are fetched once. Exit codes are those of `run`.

    Example: quantgate demo
    """

    def prepare() -> Job:
        if image and llm:
            raise JobError(found="--image with --llm", expected="one demo", fix="leave one of them out")
        prepared()
        with show_progress(err):
            from flows.cli.demo import prepare_demo
            from validators.job.read_job import read_job

            kind: Literal["text", "image", "llm"] = "llm" if llm else "image" if image else "text"
            return read_job(prepare_demo(state_folder(), kind, every=every))

    return _follow(prepare, {"--result": result}, partial(_quantize, promote=True))


def candidates(job: JobFile, changes: Changes = None) -> CommandAnswer:
    """Show the candidates of a job in words.

    Example: quantgate candidates examples/text.yaml
    """
    from flows.service.describe import candidate_rows
    from validators.job.read_job import read_job

    rows = candidate_rows(read_job(job, changes or ()))
    document = [dict(zip(("candidate", "what_it_is", "here"), row, strict=True)) for row in rows[1:]]
    return CommandAnswer(document, (Table(rows),))


def suggest_calibration(
    job: JobFile,
    pool: Annotated[
        Path, typer.Option("--from", metavar="POOL", help="File of samples: .npz, .parquet, .csv or .arrow.")
    ],
    size: Annotated[int, typer.Option(min=2, metavar="N", help="How many samples to pick.")],
    path: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write; the job's calibration file by default."),
    ] = None,
) -> CommandAnswer:
    """Pick a calibration set from a pool of samples.

    Keeps the share of each label, and covers the pool (or the traffic) closely. Leaves out evaluation samples and their
    near duplicates.

    Example: quantgate suggest-calibration job.yaml --from pool.npz --size 128
    """
    from validators.job.read_job import read_job

    read = read_job(job)
    target = path or _local_target(read.data.calibration)
    prepared()
    start_server()
    with show_progress(err):
        from flows.quantize import suggest_calibration as pick

        with on_server():
            picked = pick(read, pool, size, target)
    lines = [
        f"wrote {len(picked.rows)} samples of {pool.name} to {picked.path}",
        f"covers {picked.coverage:.1%}; a random draw of the same size covers {picked.random_coverage:.1%}",
        *(f"left out: {count} {reason}" for reason, count in picked.left_out.items() if count),
    ]
    return CommandAnswer(asdict(picked) | {"rows": [int(row) for row in picked.rows]}, lines)


def follow_job(job: Job, result_path: Path | None, *, replace_device: bool) -> CommandAnswer:
    """Run a job with promotion, and return its answer whatever the outcome."""
    return _follow(
        lambda: job, {"--result": result_path}, partial(_quantize, promote=True, replace_device=replace_device)
    )


def job_of(
    given: str, options: Mapping[str, str | None], changes: Sequence[str] = (), saved_to: Path | None = None
) -> Job:
    """Return the job of a file, or a job for a model, with the keys that `options` give and `changes` as `KEY=VALUE`.

    Paths in `options` are relative to the present folder, those in `changes` to the job file's. The job is written to
    `saved_to`, with absolute paths.

    Raises:
        JobError: as `read_job`; or `saved_to` is there already, or its folder is not.
    """
    from validators.job.read_job import changed, parse_job, read_job

    def value_of(key: str, value: str) -> str:
        return json.dumps(str(Path(value).absolute()) if key != "metric" and not value.startswith("s3://") else value)

    changes = [*(f"{key}={value_of(key, value)}" for key, value in options.items() if value is not None), *changes]
    if given.startswith("models:/") or given.endswith(".onnx"):
        keys = {change.partition("=")[0] for change in changes}
        missing = (
            [] if "data" in keys else [name for name in ("calibration", "evaluation") if f"data.{name}" not in keys]
        )
        if missing:
            raise JobError(
                found=f"the model {given} without data",
                expected="calibration and evaluation data, or a job file",
                fix=f"give {' and '.join(f'--{name} FILE' for name in missing)}, or write a job: `quantgate init {given}`",
            )
        job = parse_job(changed({"source": given}, changes), base=Path.cwd(), origin="the job of the command line")
    else:
        job = read_job(Path(given), changes)
    if saved_to is not None:
        try:
            with saved_to.open("x", encoding="utf-8") as file:
                yaml.safe_dump(job.model_dump(mode="json", exclude_defaults=True), file, sort_keys=False)
        except OSError as error:
            raise JobError(
                found=f"--save-job {saved_to}: {error.strerror}",
                expected="a new file in a folder that exists",
                fix="choose another name",
            ) from error
    return job


def _quantize(*, promote: bool, replace_device: bool = False) -> Callable[[Job], Any]:
    from flows.quantize import quantize

    return partial(quantize, promote=promote, replace_device=replace_device, return_state=True)


def _follow(load_job: Callable[[], Job], files: Files, load: Callable[[], Callable[[Job], Any]]) -> CommandAnswer:
    """Run the flow that `load` imports on a job; write the files and return a result document even after an error."""
    from tasks.run.clock import Clock

    clock = Clock()
    job: Job | None = None
    try:
        with signals_kept():
            check_folders(files.items())
            job = load_job()
            # The time that a demo needs to build its model is not part of the run.
            started = time.monotonic()
            with show_progress(err, job), contextlib.ExitStack() as kept:
                # Seconds before the first step of the flow can say so.
                log.info("%s for %s: starting Prefect and loading the libraries", job.source, job.target)
                with stage(START, lambda: START):
                    prepared()
                    start_server()
                    from tasks.run.user_functions import check_places

                    check_places(job)
                    flow = load()
                    # The first step needs it, and the server is not ready yet.
                    import mlflow  # noqa: F401  # for its side effect, to be loaded

                    kept.enter_context(on_server())
                result: Result = ended(flow(job)).result(raise_on_failure=False)
    except (Exception, KeyboardInterrupt) as error:
        return failed(error, files, job, clock)
    write_files(result, files)
    beside = time.monotonic() - started - result.seconds.total
    return CommandAnswer(
        result,
        [*result_parts(result), f"           and {beside:.1f} to start, to write the report and to record it"],
        EXIT_CODES[result.outcome],
    )


def failed(raised: Exception | KeyboardInterrupt, files: Files, job: Job | None, clock: Clock) -> CommandAnswer:
    """Write the files and return the result document for an error, Ctrl-C or SIGTERM."""
    error = (
        interrupted()
        if isinstance(raised, KeyboardInterrupt)
        else raised
        if isinstance(raised, QuantgateError)
        else unexpected(raised)
    )
    tell_error(error)
    from tasks.records.result_document import conclude_error

    result = conclude_error(job, error, clock)
    write_files(result, files)
    return CommandAnswer(result, (), error.exit_code)


def check_folders(files: Iterable[tuple[str, Path | None]]) -> None:
    """Check that the folders of files to write exist.

    Raises:
        JobError: one does not.
    """
    for option, path in files:
        if path is not None and not path.resolve().parent.is_dir():
            raise JobError(
                found=f"{option} {path}: no such folder", expected="a folder that exists", fix=f"mkdir -p {path.parent}"
            )


def _local_target(path: Path | S3Uri | None) -> Path:
    """Return the job's calibration file, where the set is written by default.

    Raises:
        JobError: the job's calibration data is on S3, or it names none.
    """
    if not isinstance(path, Path):
        raise JobError(
            found=f"`data.calibration` at {path}" if path else "a job without `data.calibration`",
            expected="a file to write the calibration set to",
            fix="name a file with --out, review it, and upload it",
        )
    return path

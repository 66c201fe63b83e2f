"""Commands that inspect a file, this machine, a registered model or recorded runs."""

from __future__ import annotations

import os
import shlex
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import prepared, target_option
from flows.cli.run import Calibration, Evaluation, Metric, ReplaceDevice, ResultFile, follow_job
from tasks.run.settings import database_file, state_folder, tracking_uri
from validators.errors import InfrastructureError, JobError
from validators.records.answer import CommandAnswer
from validators.targets import BUILT_IN, DEFAULT_TARGET

if TYPE_CHECKING:
    from mlflow import MlflowClient


def known_runs(incomplete: str) -> list[str]:
    """Return completions of a RUN: runs with a report in the state folder. A query to MLflow would take seconds."""
    folder = state_folder() / "reports"
    names = ["last", *sorted(path.name for path in folder.glob("*") if path.is_dir())]
    return [name for name in names if name.startswith(incomplete)]


RecordedRun = Annotated[
    str,
    typer.Argument(metavar="RUN", help="MLflow run id, a prefix of it, or `last`.", autocompletion=known_runs),
]

PageFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="File to write; in the reports of the state folder by default."),
]
# The class of devices whose engines take any source, which compete in the job that `init` writes.
_PROCESSORS = next(name for name, facts in BUILT_IN.items() if DEFAULT_TARGET in facts.engines)
# MLflow's own registry in a folder where a model was logged without a server.
MLFLOW_FILE = Path("mlflow.db")
# A builder refuses what others compute in another way.
_STRICTEST = next(name for name, facts in BUILT_IN.items() if facts.builds_engines)
OpenPage = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, quantized or not.")],
    target: Annotated[str, target_option("Where it will run; `quantgate doctor` lists targets.")] = _STRICTEST,
    rules_only: Annotated[bool, typer.Option("--rules-only", help="Open no runtime: reads the graph alone.")] = False,
) -> CommandAnswer:
    """Find what a runtime would refuse in a quantized model.

    Also finds what it would silently compute in float, or run slower than possible. Where the runtime is installed, the
    findings are what it does with the file; the last line says so. Exit code 0: nothing, or merely slow; 3: something fails,
    is wrong or runs in float; 2: no ONNX file, or no rules for the target.

    Example: quantgate lint model.onnx --target tensorrt
    """
    from flows.cli.lint import lint_model

    return lint_model(model, target, rules_only=rules_only)


def doctor(
    light: Annotated[bool, typer.Option("--light", help="Skip the targets: opens no session.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Delete what killed processes left behind.")] = False,
) -> CommandAnswer:
    """Show which targets run here, and how to fix the others.

    Also shows the state folder, disk space, versions, and whether the servers that the environment names answer. Exit
    code 0: at least one target runs; 1: none. With `--light`, 0: the state folder is writable. With `--clean`, only lists and
    deletes unfinished files of the state folder and temporary files, if nothing was written to them for an hour.

    Example: quantgate doctor
    """
    from flows.cli import doctor as report

    if clean:
        return report.clean()
    return report.diagnose_lightly() if light else report.diagnose()


def status(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Source model, or the model that holds its variants.")
    ] = None,
) -> CommandAnswer:
    """Show champions, runs under way, and the last runs.

    Covers one model, or all models of the registry.

    Example: quantgate status
    """
    prepared()
    from flows.cli.status import status_parts
    from tasks.service.overview import survey

    found = survey(model)
    return CommandAnswer(found, status_parts(found, model))


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="MLflow run id, a prefix of it, or `last`.", autocompletion=known_runs),
    ] = None,
    path: PageFile = None,
    open_: OpenPage = False,
) -> CommandAnswer:
    """Fetch the report of a run, or list all runs.

    The page is one file that needs no network; its path is printed. Exit code 2: no such run, or one without a report.

    Example: quantgate report last --open
    """
    prepared()
    from tasks.records.run_lookup import fetch_report, find_recorded
    from tasks.records.run_pages import list_runs

    found: Any
    with registry() as client:
        if run is None:
            page = (path or state_folder() / "reports" / "index.html").resolve()
            found = {"runs": list_runs(client, page)}
        else:
            recorded = find_recorded(client, run)
            page = (path or state_folder() / "reports" / recorded.id / "report.html").resolve()
            fetch_report(client, recorded, page)
            found = {"run": recorded}
    if open_:
        _open(page)
    return CommandAnswer(found | {"report": page}, (str(page),))


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="MLflow run ids, prefixes of them, or `last`.", autocompletion=known_runs
        ),
    ],
    path: PageFile = None,
    open_: OpenPage = False,
) -> CommandAnswer:
    """Compare recorded runs on one page.

    The runs may be of one model over time, of several models, or on several targets. Exit code 2: no such run, or one
    without a result.

    Example: quantgate compare 3f2a last --open
    """
    prepared()
    from tasks.records.run_pages import compare_runs

    page = (path or state_folder() / "reports" / "comparison.html").resolve()
    with registry() as client:
        compared = compare_runs(client, runs, page)
    if open_:
        _open(page)
    return CommandAnswer({"runs": compared, "report": page}, (str(page),))


def _open(page: Path) -> None:
    if not webbrowser.open(page.as_uri()):
        raise InfrastructureError(
            found=f"no browser could be started for {page}",
            expected="a browser on this machine",
            fix=f"open {page.as_uri()} in a browser",
        )


def promote(run: RecordedRun, result: ResultFile = None, replace_device: ReplaceDevice = False) -> CommandAnswer:
    """Promote the winner of a run with --no-promote.

    Runs the recorded job again with promotion. Finished work comes from the store; all gates are judged again, and the
    winner is compared with the present champion. Exit codes are those of `run`; also 2: the run named no winner, or was
    made on another device.

    Example: quantgate promote last
    """
    prepared()
    from tasks.champion.promotable import check_promotable
    from tasks.records.run_lookup import find_recorded, recorded_job

    with registry() as client:
        found = find_recorded(client, run)
        check_promotable(found)
        job = recorded_job(client, found)
    answer = follow_job(job, result, replace_device=replace_device)
    chosen = getattr(answer.document, "chosen", None)
    if chosen not in (None, found.chosen):
        note = f"note:      run {found.id[:8]} chose {found.chosen}; measured again, {chosen} is better"
        return replace(answer, parts=(*answer.parts, note))
    return answer


@contextmanager
def registry() -> Iterator[MlflowClient]:
    """Yield a client of the tracking server, or of the existing database in the state folder.

    Raises:
        JobError: the database does not exist; a query would create it.
    """
    from tasks.registry.mlflow_registry import connect

    uri = tracking_uri(state_folder())
    database = database_file(uri)
    if database is not None and not database.exists():
        here = "here it may be: export MLFLOW_TRACKING_URI=sqlite:///mlflow.db; or " if MLFLOW_FILE.exists() else ""
        raise JobError(
            found=f"no registry and no recorded runs: {database} does not exist",
            expected="a state folder in which a job ran, or a tracking server",
            fix=f"{here}set QUANTGATE_STATE or MLFLOW_TRACKING_URI, or run a job first: `quantgate run JOB`",
        )
    with connect(uri) as client:
        yield client


def init(
    uri: Annotated[
        str, typer.Argument(metavar="MODEL", help="models:/NAME/VERSION, models:/NAME@ALIAS, or an ONNX file.")
    ],
    path: Annotated[Path, typer.Option("--out", metavar="FILE", help="The job file to write.")] = Path("job.yaml"),
    target: Annotated[str, target_option("Where the variants will run.")] = _PROCESSORS,
    calibration: Calibration = None,
    evaluation: Evaluation = None,
    metric: Metric = None,
) -> CommandAnswer:
    """Write a commented job file for a model.

    The file lists the model's inputs and candidates, and suggests a metric. Data files or folders that are not given are
    looked for beside the job and the model: calibration.* or train.*; evaluation.*, test.* or valid*.*. For folders of
    pictures it writes prepare.py too, which reads them. Nothing is overwritten. Exit code 2: no such version or data, the
    file already exists, or the target does not take the model.

    Example: quantgate init models:/fraud/3 --out fraud.yaml
    """
    _check_new(path)
    prepared()
    from flows.cli.init import READ, job_skeleton, picture_reader
    from tasks.engines.catalog import absent_engines, check_takes_source, without_unsuited_engines
    from tasks.evidence.flavors import WITH_PROGRAM
    from tasks.evidence.model_facts import check_uri, describe_file, describe_model
    from tasks.measure.inventory import take_inventory
    from validators.job.read_job import parse_job
    from validators.samples.feeds import unchecked_feeds
    from validators.samples.guess_inputs import guess_inputs, look_at_data
    from validators.targets import facts_of
    from validators.untrusted.bounded_yaml import load_yaml
    from validators.untrusted.operator_allowlist import line_to_allow

    folders = {path.parent: None}
    if uri.endswith(".onnx"):
        facts = describe_file(Path(uri))
        folders[Path(uri).parent] = None
        # A job's paths are relative to its own folder.
        facts = replace(facts, uri=os.path.relpath(uri, path.parent))
    else:
        check_uri(uri)
        with registry() as client:
            facts = describe_model(client, uri, generates=facts_of(target).generates)
    inventory = take_inventory(target)
    inventory = replace(inventory, absent=absent_engines(inventory))
    inventory = without_unsuited_engines(inventory, has_program=facts.flavor in WITH_PROGRAM)
    check_takes_source(inventory, has_program=facts.flavor in WITH_PROGRAM)
    given = {"calibration": calibration, "evaluation": evaluation}
    feeds = unchecked_feeds(guess_inputs(facts.inputs, facts.outputs), facts.inputs)
    data = look_at_data(
        {role: place for role, place in given.items() if place is not None}, folders, path.parent, feeds
    )
    text = job_skeleton(facts, target, str(path), inventory.absent, data, metric)
    # A metric that does not exist, for example, is reported before anything is written.
    parse_job(load_yaml(text), base=path.parent, origin="the job")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _check_new(path)
        raise
    reader = path.with_name(f"{READ.partition(':')[0]}.py")
    module = picture_reader(facts.inputs, data.classes) if data.pictures and not reader.exists() else None
    if module:
        reader.write_text(module, encoding="utf-8")
    make = "" if given.keys() <= data.files.keys() else "make the data files that are missing, "
    lines = (
        f"wrote {path}: {facts.flavor}, inputs {', '.join(map(str, facts.inputs)) or 'unknown'}",
        *(f"found {role} data: {path.parent / data.files[role]}" for role in sorted(data.found)),
        *([f"wrote {reader}: it reads the pictures; review it as well"] if module else []),
        *([f"to allow it: {line_to_allow(READ, reader.parent)}"] if data.pictures else []),
        *(f"check {role} data: {fault}" for role, fault in data.faults.items()),
        f"next: {make}review the lines marked CHECK, then run `quantgate validate {path}`",
    )
    return CommandAnswer({"job": path, "model": facts}, lines)


def _check_new(path: Path) -> None:
    if path.exists():
        raise JobError(
            found=f"--out {path}: the file already exists",
            expected="a new file: nothing is overwritten",
            fix="choose another file with --out, or move this one",
        )
    if not path.resolve().parent.is_dir():
        raise JobError(
            found=f"--out {path}: no such folder",
            expected="a folder that exists",
            fix=f"mkdir -p {shlex.quote(str(path.parent))}",
        )

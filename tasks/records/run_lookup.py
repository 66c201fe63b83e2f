"""Look-up of recorded runs in MLflow: by id or prefix, the latest ones, and their recorded artifacts.

Functions that take a client raise ServiceDown if the tracking server does not answer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tasks.registry.mlflow_registry import pages, registry_call
from tasks.registry.mlflow_runs import EXPERIMENT, FLOW_RUN
from tasks.storage.files import write_whole
from validators.errors import JobError
from validators.job.job import Job
from validators.job.read_job import read_job
from validators.records.artifact_paths import JOB, REPORT, RESULT
from validators.records.result import Result
from validators.untrusted.paths import read_regular_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

LAST = "last"
# MLflow's filters accept no list of values for a tag, so kinds are filtered here.
_OURS, _KINDS = "tags.`quantgate.kind` != 'candidate'", ("run", "validation")
_ID = re.compile(r"[0-9a-f]{1,32}")
_PAGE = 100
# Bytes of an artifact, and values of a result: one with six candidates has 60 kB and 1,700 values.
_LARGEST, _MOST_VALUES = 64 << 20, 500_000


@dataclass(frozen=True)
class Recorded:
    """A run recorded in MLflow.

    `status` is MLflow's, such as FINISHED. `outcome` is empty before there is one. Times are UTC.
    """

    id: str
    kind: str
    source: str
    target: str
    status: str
    outcome: str
    reason: str
    chosen: str
    device: str
    flow_run: str
    started: str
    ended: str


def latest(client: MlflowClient, count: int, wanted: Callable[[Recorded], bool] = lambda _: True) -> list[Recorded]:
    """Return the latest `count` runs that `wanted` accepts, newest first."""
    found: list[Recorded] = []
    for run in _search(client, _OURS):
        if wanted(run):
            found.append(run)
        if len(found) == count:
            break
    return found


def find_recorded(client: MlflowClient, name: str) -> Recorded:
    """Return the run with this id or unique id prefix, or for `last` the latest finished run.

    Raises:
        JobError: no run matches, or several do.
    """
    if name == LAST:
        ended = latest(client, 1, lambda run: run.status == "FINISHED")
        if not ended:
            raise _unknown("no finished run")
        return ended[0]
    if not _ID.fullmatch(name):
        raise _unknown(f"RUN {name!r}")
    found = list(_search(client, f"{_OURS} AND attributes.run_id LIKE '{name}%'"))
    if len(found) != 1:
        several = f"{len(found)} runs whose id begins with {name!r}: {', '.join(run.id for run in found[:5])}"
        raise _unknown(several if found else f"no run {name!r}")
    return found[0]


def fetch_report(client: MlflowClient, run: Recorded, path: Path) -> None:
    """Write the report of a run to a file, atomically.

    Raises:
        JobError: the run has no report, or the file cannot be written.
    """
    write_page(path, _artifact(client, run, REPORT, _unfinished(run, "report")))


def write_page(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        JobError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise JobError(
            found=f"{path}: {error.strerror}", expected="a file that can be written", fix="give another path with --out"
        ) from error


def recorded_result(client: MlflowClient, run: Recorded) -> Result:
    """Return the result document of a run.

    Raises:
        JobError: the run has none, or this version of quantgate cannot read it.
    """
    text = _artifact(client, run, RESULT, _unfinished(run, "result"))
    try:
        # Each value that does not fit becomes an error of 500 bytes.
        if text.count(b",") > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values")
        return Result.model_validate_json(text)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
    except ValueError as error:
        reason = str(error)
    raise JobError(
        found=f"run {run.id} has an unreadable result: {reason}",
        expected="a result written by this version of quantgate",
        fix="run its job again: finished work is kept",
    )


def recorded_job(client: MlflowClient, run: Recorded) -> Job:
    """Return the job of a run, with its candidates and its source version resolved.

    Raises:
        JobError: none was recorded, or this version of quantgate cannot read it.
    """
    missing = JobError(
        found=f"run {run.id} has no artifact {JOB}",
        expected="a finished run of a version of quantgate that records its job",
        fix="run its job again, with promotion: finished work is kept",
    )
    text = _artifact(client, run, JOB, missing)
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        path = Path(folder, JOB)
        path.write_bytes(text)
        return read_job(path)


def _search(client: MlflowClient, condition: str) -> Iterator[Recorded]:
    """Yield the runs that match an MLflow filter, newest first, without candidates' runs and foreign ones."""
    experiment = registry_call(client.get_experiment_by_name, EXPERIMENT)
    if experiment is None:
        return
    for run in pages(
        client.search_runs,
        experiment_ids=[experiment.experiment_id],
        filter_string=condition,
        max_results=_PAGE,
        order_by=["attributes.start_time DESC"],
    ):
        if run.data.tags.get("quantgate.kind") in _KINDS:
            yield _recorded(run)


def _artifact(client: MlflowClient, run: Recorded, path: str, missing: JobError) -> bytes:
    """Return the content of an artifact; raise `missing` if there is none."""
    folder = str(Path(path).parent) if "/" in path else None
    listed: Any = registry_call(client.list_artifacts, run.id, folder)
    if path not in {one.path for one in listed}:
        raise missing
    with tempfile.TemporaryDirectory(prefix="quantgate-") as place:
        downloaded = Path(registry_call(client.download_artifacts, run.id, path, place))
        try:
            return read_regular_file(downloaded, _LARGEST)
        except OSError as error:
            raise JobError(
                found=f"run {run.id} has an unreadable result: {path} has {error.strerror}",
                expected="an artifact that quantgate wrote",
                fix="run its job again: finished work is kept",
            ) from error


def _recorded(run: Any) -> Recorded:
    tags, params = run.data.tags, run.data.params
    return Recorded(
        id=str(run.info.run_id),
        kind=tags.get("quantgate.kind", ""),
        source=params.get("source", ""),
        target=params.get("target", ""),
        status=str(run.info.status),
        outcome=tags.get("quantgate.outcome", ""),
        reason=tags.get("mlflow.note.content", ""),
        chosen=tags.get("quantgate.chosen", ""),
        device=tags.get("quantgate.device", ""),
        flow_run=tags.get(FLOW_RUN, ""),
        started=_time(run.info.start_time),
        ended=_time(run.info.end_time),
    )


def _time(milliseconds: int | None) -> str:
    """Format milliseconds since the epoch as UTC; "" for none.

    >>> _time(0), _time(None)
    ('', '')
    >>> _time(1763805600000)
    '2025-11-22 10:00'
    """
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}" if milliseconds else ""


def _unfinished(run: Recorded, lacks: str) -> JobError:
    return JobError(
        found=f"run {run.id}, {run.status.lower()}{f', {run.outcome}' if run.outcome else ''}, has no {lacks}",
        expected="a run that has finished, or waits for an approval",
        fix="`quantgate status` lists the runs; run the job of an interrupted run again to resume it",
    )


def _unknown(found: str) -> JobError:
    return JobError(
        found=found,
        expected=f"the id of a recorded run, a unique prefix of it, or `{LAST}`",
        fix="`quantgate status` lists the runs",
    )

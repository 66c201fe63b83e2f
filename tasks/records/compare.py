"""Comparison page of several recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.records.run_lookup import Recorded, find_recorded, recorded_job, recorded_result, write_page
from tasks.reporting.comparison import ComparedRun, render_comparison
from validators.errors import JobError
from validators.redact import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient


def compare_runs(client: MlflowClient, names: Sequence[str], path: Path) -> list[Recorded]:
    """Write the page that compares runs, given by id, id prefix or `last`, in the given order; return the runs.

    Raises:
        JobError: there are fewer than two runs, one is missing or has no result, or the file cannot be written.
        ServiceDown: the tracking server does not answer.
    """
    runs = [find_recorded(client, name) for name in names]
    if len({run.id for run in runs}) < 2:
        raise JobError(
            found=f"{len(names)} names of the same run" if len(names) > 1 else "only one run",
            expected="two or more runs",
            fix="`quantgate status` lists the runs; `quantgate report RUN` is the page of one",
        )
    compared = [_compared(client, run) for run in dict.fromkeys(runs)]
    write_page(path, redact(render_comparison(compared)).encode())
    return list(dict.fromkeys(runs))


def _compared(client: MlflowClient, run: Recorded) -> ComparedRun:
    result = recorded_result(client, run)
    with suppress(JobError):  # a run without a recorded job can still be compared otherwise
        return ComparedRun(run.id, run.started, result, recorded_job(client, run))
    return ComparedRun(run.id, run.started, result)

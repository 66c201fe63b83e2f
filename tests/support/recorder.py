"""Records runs in MLflow by the steps of a real run: `python tests/support/recorder.py FOLDER`.

One run for each line of standard input. Prints `recorded` and the id of the parent run when its record is closed; MLflow prints
to the same stream. The candidates are those of `report_data`, with every kind of file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tasks.run.settings import prepare_environment, state_folder

# Before MLflow and Prefect are imported, which read it then.
prepare_environment(state_folder())

import numpy as np  # noqa: E402  # after what must come first
from prefect import flow  # noqa: E402  # after what must come first
from report_data import BARE, JOB, TRIALS, with_samples  # noqa: E402  # after what must come first

from tasks.records.run_record import close_run, record_trials, recorded  # noqa: E402  # after what must come first
from tasks.run.context import start_run  # noqa: E402  # after what must come first
from tasks.service.embedded_server import on_server, start_server  # noqa: E402  # after what must come first
from validators.records.run import Trial  # noqa: E402  # after what must come first

CANDIDATES = 4


def some_trials(folder: Path) -> tuple[Trial, ...]:
    """Judged trials whose files exist."""
    scores = folder / "scores.npy"
    np.save(scores, np.ones((10, 1)))
    measured = [trial for trial in TRIALS if trial.accuracy][:CANDIDATES]
    found = [
        replace(trial, accuracy=replace(trial.accuracy, scores_path=scores)) for trial in measured if trial.accuracy
    ]
    return with_samples(found, folder)


@flow(name="record")
def record(folder: Path) -> str:
    """One run: opened, its candidates recorded, closed."""
    run = start_run(JOB)
    page = folder / "report" / "report.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text("<p>a report</p>")
    with recorded(run, "run") as run_id:
        record_trials(run, run_id, some_trials(folder))
        close_run(run, run_id, BARE, page)
    return run_id


if __name__ == "__main__":
    start_server()
    print("ready", flush=True)
    for _ in sys.stdin:
        with on_server():
            print("recorded", record(Path(sys.argv[1])), flush=True)

"""Judge a job's candidates by the steps of a run, without a flow: `python judge_steps.py JOB.yaml PAGE.html`.

The last line of its output is the outcome.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.evidence.load_data import load_data
from tasks.evidence.resolve_source import resolve_source
from tasks.evidence.target_inventory import take_target_inventory
from tasks.ptq.graph.edits import model_bytes
from tasks.records.result_document import Findings, conclude
from tasks.reporting.page import render_page
from tasks.run.context import start_run
from tasks.run.loaded_run import with_inputs
from tasks.trials.confirm import confirm_winner
from tasks.trials.gather import try_step
from tasks.trials.judge import judge_trials
from tasks.trials.make_candidate import make_candidates
from tasks.trials.measure_baseline import measure_baseline
from tasks.trials.measure_latency import measure_latency
from tasks.trials.measure_saturation import measure_saturation
from validators.job.read_job import read_job


def main(job: Path, page: Path) -> None:
    """Judge, and write the report page."""
    run = start_run(read_job(job))
    source = resolve_source(run)
    run = with_inputs(run, source, load_data(run, source), take_target_inventory(run))
    run.clock.begin_budget()
    baseline = measure_baseline(run)
    made = measure_saturation(run, make_candidates(run, baseline, run.job.candidate_names))
    timed = tuple(try_step(trial.candidate, measure_latency, run, trial) for trial in made)
    confirmed = confirm_winner(run, baseline, judge_trials(run, baseline, timed))
    findings = Findings(
        source=source,
        inventory=run.inventory,
        baseline=baseline,
        baseline_bytes=model_bytes(source.onnx_path),
        trials=confirmed.trials,
        best=confirmed.winner,
    )
    result = conclude(run.job, findings, run.clock)
    page.write_text(render_page(result, run.job, confirmed.trials), encoding="utf-8")
    print(result.outcome)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""The steps of a run that judge one file beside another, in call order: without Prefect, a registry, and any promotion."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

from tasks.engines.catalog import without_unsuited_engines
from tasks.evidence.load_data import load_data
from tasks.evidence.resolve_source import resolve_source
from tasks.evidence.target_inventory import take_target_inventory
from tasks.ptq.graph.edits import model_bytes
from tasks.records.result_document import Findings, conclude
from tasks.records.write_report import write_report
from tasks.reporting.page import About
from tasks.run.context import Run, log, start_run
from tasks.run.exclusive_run import turn_of
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.run.log_redaction import shielded
from tasks.run.spare_threads import count_spare_threads
from tasks.trials.confirm import confirm_winner
from tasks.trials.gather import try_step
from tasks.trials.inspect_variant import measure_saturation
from tasks.trials.judge import judge_trials
from tasks.trials.make_candidate import make_candidates
from tasks.trials.measure_baseline import measure_baseline
from tasks.trials.measure_latency import measure_latency
from validators.digests import digest_values
from validators.job.job import Job
from validators.records.result import Result


@shielded
def judge(job: Job, evidence: Path | None = None) -> Result:
    """Judge the candidates of a job on a file, write the report, and the evidence to `evidence`; return the result.

    Raises:
        JobError: the job, or the signing key, is wrong.
        SourceError: the baseline is no float ONNX file that runs.
        DataError: the data does not fit.
    """
    run = start_run(job, timed_threads=count_spare_threads(job))
    with turn_of(run), run.footprint.measured():
        run.clock.begin_budget()
        loaded = gather_here(run)
        findings = _judged(loaded)
        findings = replace(findings, footprint=run.footprint.read())
        if evidence is not None:
            _seal(loaded, findings, evidence)
        result = conclude(job, findings, run.clock)
        name = f"judge-{digest_values(loaded.source.digest, job.model_dump(mode='json'))[:12]}"
        about = About(facts=[("quantgate", metadata.version("quantgate"), "")])
        page = write_report(loaded, run.state / "reports" / name, findings, result, about)
        log.info("report: %s", page)
        return result.model_copy(update={"report": str(page)})


def gather_here(run: Run) -> LoadedRun:
    """Return the run with its source, the inventory of this machine, and the samples."""
    source = resolve_source(run)
    inventory = without_unsuited_engines(take_target_inventory(run), has_program=source.program is not None)
    return with_inputs(run, source, load_data(run, source), inventory)


def _judged(run: LoadedRun) -> Findings:
    baseline = measure_baseline(run)
    made = measure_saturation(run, make_candidates(run, baseline, run.job.candidate_names))
    timed = tuple(try_step(trial.candidate, measure_latency, run, trial) for trial in made)
    confirmed = confirm_winner(run, baseline, judge_trials(run, baseline, timed))
    return Findings(
        source=run.source,
        inventory=run.inventory,
        baseline=baseline,
        baseline_bytes=model_bytes(run.source.onnx_path),
        copies=run.evidence.copies,
        trials=confirmed.trials,
        best=confirmed.winner,
    )


def _seal(run: LoadedRun, findings: Findings, path: Path) -> None:
    """Write the evidence, which `quantgate verify` reads, to a file."""
    from tasks.champion.seal_evidence import make_bundle

    made, told = make_bundle(run, "", findings, promotes=False)
    path.write_bytes(made.read_bytes())
    log.info("evidence: %s, %s", path, told)

"""The flow of a run, with its steps in call order, and flows for its first steps alone.

The steps are in `tasks/`; nothing is computed here.
"""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from threadpoolctl import threadpool_limits

from tasks.champion.ask_approval import check_approval, sign_off
from tasks.champion.bundle.statement import signer_here
from tasks.champion.compare_champion import judge_device, look_up_champion, warn_of_device
from tasks.champion.seal_evidence import seal_evidence
from tasks.engines.catalog import without_unsuited_engines
from tasks.evidence.judge_calibration import judge_calibration_data
from tasks.evidence.load_data import load_data
from tasks.evidence.resolve_source import resolve_source
from tasks.evidence.suggest_calibration import Suggestion, suggest_calibration_data
from tasks.measure.inventory import usable_cores
from tasks.ptq.graph.edits import model_bytes
from tasks.records.publish_report import publish_report
from tasks.records.result_document import Findings, conclude, conclude_validation
from tasks.records.run_record import close_run, record_evidence, record_trials, recorded
from tasks.registry.mlflow_registry import warn_of_local_locks
from tasks.registry.source_status import SourceOutcome, keep_status
from tasks.run.context import Run, log, start_run
from tasks.run.exclusive_run import turn_of
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.run.log_redaction import shielded
from tasks.run.progress_events import LEAVE_OUT, stage
from tasks.run.settings import hands_to_workers
from tasks.run.spare_threads import count_spare_threads
from tasks.trials.confirm import ConfirmedTrials, confirmations_left
from tasks.trials.gather import merge_copies, try_step
from tasks.trials.inspect_variant import measure_saturation
from tasks.trials.judge import judge_trials
from tasks.trials.make_candidate import make_candidates
from tasks.trials.measure_latency import measure_latency
from tasks.trials.race import Raced, race, resume
from tasks.workers.dispatch import at_target, inventory_of_target, try_candidates
from tasks.workers.steps import BASELINE, BESIDE_FP16, CHAMPION, CONFIRMATION, OWN_STEP, PROMOTION, RECOVERY
from validators.errors import ChampionMoved, JobError
from validators.gates.approval import Approval
from validators.gates.catalog import required_gates
from validators.gates.champion import champion_gates
from validators.job.job import Job
from validators.records.measurements import Accuracy
from validators.records.result import Result
from validators.records.run import Trial

# Two candidates at a time, with half of the threads each: quantizers compute on one core.
CANDIDATES_AT_A_TIME = 2


@flow(
    name="quantize",
    flow_run_name="{job.source} for {job.target}",
    task_runner=ThreadPoolTaskRunner(max_workers=CANDIDATES_AT_A_TIME),  # type: ignore[arg-type]  # invariant in its future
)
@shielded
def quantize(job: Job, promote: bool = True, replace_device: bool = False) -> State[Result]:
    """Make quantized versions of a registered model, judge them on this machine, promote the best that passes.

    Args:
        job: Source, target, data, candidates and gates. Paths are those of the machine that runs it.
        promote: Register the winner and move the champion's alias; if off, the winner is named and nothing is registered.
        replace_device: Promote even if the present champion was approved on a device of another class.
    """
    with keep_status(job, promote=promote) as status:
        run = start_run(job, timed_threads=count_spare_threads(job))
        signer_here()  # before hours are spent on evidence that cannot be signed
        if promote:
            check_approval(run)
            warn_of_local_locks(run.state)
        with turn_of(run), run.footprint.measured():
            run.clock.begin_budget()
            status.result = quantized(run, status, promote=promote, replace_device=replace_device)
    return state_of(status.result)


def quantized(run: Run, status: SourceOutcome, *, promote: bool, replace_device: bool) -> Result:
    """Do all steps of a run and return its result."""
    job = run.job
    run = gather_inputs(run)
    with recorded(run, "run") as record:
        status.run = record
        findings = judge_evidence(run, record)
        if findings.calibration is None or findings.calibration.outcome != "refused":
            findings = judge_candidates(run, findings, promote=promote, replace_device=replace_device, record=record)
            record_trials(run, record, findings.trials, run.evidence.evaluation.file, findings.champion)
        if not findings.sealed:
            seal_evidence(run, record, findings)
        findings = replace(findings, footprint=run.footprint.read())
        result = conclude(job, findings, run.clock)
        page = publish_report(run, record, findings, result)
        # The figures of the page, with its path.
        result = result.model_copy(update={"report": str(page)})
        close_run(run, record, result, page)
    return result


@flow(name="validate", flow_run_name="{job.source}: calibration data")
@shielded
def validate(job: Job) -> State[Result]:
    """Judge only the calibration data of a job: steps 1 to 3 and the report.

    Args:
        job: Only its source and its data are used.
    """
    if job.data.calibration is None:
        raise JobError(
            found="a job without `data.calibration`",
            expected="calibration data, which is all that this judges",
            fix="name it, or run the job: files of other tools need none",
        )
    run = gather_inputs(start_run(job))
    with recorded(run, "validation") as record:
        findings = judge_evidence(run, record)
        result = conclude_validation(job, findings, run.clock)
        page = publish_report(run, record, findings, result)
        result = result.model_copy(update={"report": str(page)})
        close_run(run, record, result, page)
    return state_of(result)


@flow(name="suggest calibration", flow_run_name="{job.source}: {size} of {pool}")
@shielded
def suggest_calibration(job: Job, pool: Path, size: int, target: Path) -> Suggestion:
    """Pick a calibration set of `size` samples from a pool and write it to `target`."""
    run = start_run(job)
    return suggest_calibration_data(run, resolve_source(run), pool, size, target)


def gather_inputs(run: Run) -> LoadedRun:
    """Return the run with its source, the inventory of the target, and the samples: steps 1 to 3, first half."""
    source = resolve_source(run)
    inventory = without_unsuited_engines(inventory_of_target(run), has_program=source.program is not None)
    for left_out in inventory.absent:
        with stage(LEAVE_OUT, partial(str, left_out.engine)):
            (log.info if left_out.for_source else log.warning)("target %s: %s", run.job.target, left_out)
    return with_inputs(run, source, load_data(run, source), inventory)


def judge_evidence(run: LoadedRun, record: str) -> Findings:
    """Judge the calibration data before any candidate is built: step 3, second half."""
    calibration = judge_calibration_data(run)
    record_evidence(run, record, calibration)
    return Findings(source=run.source, inventory=run.inventory, calibration=calibration)


def judge_candidates(
    run: LoadedRun, findings: Findings, *, promote: bool, replace_device: bool, record: str
) -> Findings:
    """Try, judge and recover the candidates beside the baseline; confirm and promote the best: steps 4 to 8."""
    champion = look_up_champion(run, before_run=True)
    if promote and not replace_device:
        warn_of_device(run.inventory, champion)
    baseline = at_target(BASELINE, run)

    raced = tried(run, baseline)
    trials = judge_trials(run, baseline, raced.trials)
    recovered = at_target(RECOVERY, run, baseline, trials)
    trials = merge_copies(trials + recovered.trials)
    findings = replace(
        findings,
        baseline=baseline,
        baseline_bytes=model_bytes(run.source.onnx_path),
        copies=run.evidence.copies,
        trials=trials,
        recovery=recovered.recovery,
        champion_before=champion,
    )

    confirmation = confirmed(run, baseline, record, trials)
    while confirmation.winner is None and raced.behind and confirmations_left(run.job, confirmation.trials):
        raced = resumed(run, baseline, replace(raced, trials=confirmation.trials))
        confirmation = confirmed(run, baseline, record, raced.trials)
    findings = replace(findings, trials=confirmation.trials)
    if confirmation.winner is None:
        return findings
    follow = partial(challenge, run, promote=promote, replace_device=replace_device, record=record)
    try:
        return follow(findings, confirmation.winner)
    except ChampionMoved as moved:
        log.info("%s: comparing the winner with the new champion", moved.found)
    findings = replace(findings, champion_before=look_up_champion(run))
    return follow(findings, confirmation.winner)


def confirmed(run: LoadedRun, baseline: Accuracy, record: str, trials: tuple[Trial, ...]) -> ConfirmedTrials:
    """Run the job's own step on passing trials, and confirm the best: step 7, first half."""
    trials = at_target(OWN_STEP, run, record, trials)
    return at_target(CONFIRMATION, run, baseline, trials)


def challenge(
    run: LoadedRun, findings: Findings, winner: Trial, *, promote: bool, replace_device: bool, record: str
) -> Findings:
    """Compare the winner with the champion; promote it if it passes and is approved: steps 7, second half, and 8.

    Raises:
        ChampionMoved: the champion changed before the winner could replace it.
    """
    assert findings.baseline is not None
    champion = findings.champion_before
    if promote:
        winner = judge_device(run.inventory, winner, champion, replace_device=replace_device)
        if winner.outcome != "passed":
            return replace(findings, best=winner)
    best = at_target(CHAMPION, run, findings.baseline, winner, champion)
    findings = replace(findings, best=best)
    if best.outcome != "passed" or not promote or run.job.source_is_file:
        return findings
    assert best.variant is not None
    said = sign_off(run, record, findings)
    findings = replace(findings, sign_off=said)
    if said is not None and said.decision == "rejected":
        return findings
    required = required_gates(run.job, best.candidate) | champion_gates(best.variant.identity, champion)
    bundle = seal_evidence(run, record, findings, promotes=True)
    approval = Approval(best, run.inventory.device_key, required, sign_off=said, evidence=bundle)
    champion = at_target(PROMOTION, run, approval, champion, record)
    return replace(findings, champion=champion, sealed=True)


def tried(run: LoadedRun, baseline: Accuracy) -> Raced:
    """Make, check and time the candidates, in this process or on the workers of their targets: step 5."""
    # Quantizers side by side wait for each other's threads in BLAS: with two each, two on two cores took 1.6 times as long.
    with threadpool_limits(max(1, usable_cores() // CANDIDATES_AT_A_TIME), "blas"):
        if hands_to_workers():
            if run.job.search == "race":
                log.info(
                    "every candidate is measured in full, as with search: all: workers try candidates independently"
                )
            raced = Raced(merge_copies(try_candidates(run, baseline)))
        elif run.job.search == "race":
            raced = race(run, baseline)
        else:
            names = run.job.candidates_without(run.inventory.absent)
            raced = Raced(merge_copies(make_candidates(run, baseline, names)))
    trials = measure_saturation(run, raced.trials)
    if not hands_to_workers() and run.job.search == "all":
        # One after the other: nothing else of the run computes meanwhile.
        trials = tuple(try_step(trial.candidate, measure_latency, run, trial) for trial in trials)
    return replace(raced, trials=at_target(BESIDE_FP16, run, trials))


def resumed(run: LoadedRun, baseline: Accuracy, raced: Raced) -> Raced:
    """Race on with those that were stopped behind a leader who did not win: step 5 again, for them alone."""
    again = resume(run, baseline, raced)
    trials = at_target(BESIDE_FP16, run, again.trials)
    behind = tuple(trial for trial in trials if trial.candidate in raced.behind)
    judged = {trial.candidate: trial for trial in judge_trials(run, baseline, behind)}
    return replace(again, trials=tuple(judged.get(trial.candidate, trial) for trial in trials))


def state_of(result: Result) -> State[Result]:
    """Return the state that the Prefect UI shows, named after the outcome; only an error is a failure."""
    make = Failed if result.outcome == "error" else Completed
    return make(name=result.outcome.title().replace("_", ""), message=result.reason, data=result)

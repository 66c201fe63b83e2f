"""Result document, from the records of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from tasks.records.candidate_result import conclude_candidate, finite
from tasks.run.clock import Clock
from validators.errors import QuantgateError
from validators.job.job import Job
from validators.plain_text import plain
from validators.records.measurements import Accuracy
from validators.records.result import (
    BaselineResult,
    CalibrationResult,
    ErrorResult,
    FootprintResult,
    Result,
    RunOutcome,
)
from validators.records.run import CalibrationVerdict, Champion, Inventory, Source, Trial
from validators.records.verdicts import Recovery, SignOff
from validators.redact import redact
from validators.samples.words import count as counted

# Begins the reason of every run that judged its candidates and has no winner.
NONE_WINS = "no variant wins: "


@dataclass(frozen=True)
class Findings:
    """Findings of a run so far; a run that ends early leaves the rest at the defaults."""

    source: Source | None = None
    inventory: Inventory | None = None
    calibration: CalibrationVerdict | None = None
    baseline: Accuracy | None = None
    baseline_bytes: int = 0
    copies: int = 0
    trials: tuple[Trial, ...] = ()
    recovery: Recovery | None = None
    best: Trial | None = None
    champion_before: Champion | None = None
    sign_off: SignOff | None = None
    champion: Champion | None = None
    footprint: FootprintResult | None = None
    sealed: bool = False


def conclude(job: Job, findings: Findings, clock: Clock) -> Result:
    """Return the result of a finished run; an error if nothing won and a candidate could not be tried or timed."""
    outcome, reason = _outcome(job, findings)
    won = findings.best is not None and findings.best.outcome == "passed"
    untried, untimed = _tell_untried(findings.trials), _tell_untimed(findings)
    is_undecided = outcome == "no_variant" and (untried or untimed)
    told = (untried, untimed, reason.removeprefix(NONE_WINS)) if is_undecided else (reason, untried, untimed)
    document = _document(job, findings, clock, outcome, "; ".join(filter(None, told)))
    if is_undecided:
        # The outcome `no_variant` would judge candidates that were never tried, and they would not be tried again.
        error = ErrorResult(
            kind="InfrastructureError",
            found="; ".join(filter(None, (untried, untimed))),
            expected="every candidate tried and timed",
            fix="correct the causes, and run again: finished work is kept"
            if untried
            else _repeat_timing(job, findings),
        )
        return document.model_copy(update={"outcome": "error", "error": error})
    return document.model_copy(update={"chosen": findings.best.candidate if findings.best and won else None})


def conclude_awaiting(job: Job, findings: Findings, clock: Clock, until: str) -> Result:
    """Return the result of a run whose winner waits for an approval; `until` is its end in words."""
    assert findings.best is not None
    reason = f"{_tell_gain(job, findings, findings.best)}; it waits for an approval until {until}"
    return _document(job, findings, clock, "awaiting_approval", reason).model_copy(
        update={"chosen": findings.best.candidate}
    )


def conclude_validation(job: Job, findings: Findings, clock: Clock) -> Result:
    """Return the result of a run that only judged the calibration data."""
    assert findings.calibration is not None
    outcome: RunOutcome = "refused" if findings.calibration.outcome == "refused" else "accepted"
    return _document(job, findings, clock, outcome, _tell_calibration(findings.calibration))


def conclude_error(job: Job | None, error: QuantgateError, clock: Clock) -> Result:
    """Return the result of a run that an error ended."""
    document = _document(job, Findings(), clock, "error", error.found)
    detail = ErrorResult(kind=type(error).__name__, found=error.found, expected=error.expected, fix=error.fix)
    return document.model_copy(update={"error": detail})


def _outcome(job: Job, findings: Findings) -> tuple[RunOutcome, str]:
    calibration, best = findings.calibration, findings.best
    if calibration is not None and calibration.outcome == "refused":
        return "refused", _tell_calibration(calibration)
    if best is None:
        return "no_variant", _why_none(findings.trials) + _tell_confirmation(findings.trials) + _tell_recovery(findings)
    if best.outcome != "passed":
        verdict = best.verdicts[-1]
        assert findings.champion_before is not None
        return "no_variant", (
            f"{NONE_WINS}{best.candidate} passes every gate, but the present champion stays "
            f"({findings.champion_before}): {verdict.reason}"
        )
    gain = _tell_gain(job, findings, best)
    if findings.sign_off and findings.sign_off.decision == "rejected":
        return "rejected", f"{gain}; {findings.sign_off}"
    if findings.champion is None:
        why = "variants of a file are not promoted" if job.source_is_file else "promotion was not requested"
        return "winner", f"{gain}; {why}"
    stays = findings.champion_before is not None and findings.champion_before.version == findings.champion.version
    said = f"; {findings.sign_off}" if findings.sign_off else ""
    return "promoted", (
        f"{gain}, and {'stays' if stays else 'is now'} the champion, version {findings.champion.version}{said}"
    )


def _tell_gain(job: Job, findings: Findings, best: Trial) -> str:
    """Describe the winner's gain, with the confirmed figures if it was confirmed."""
    confirmed, latency = best.confirmed, best.final_latency
    assert findings.inventory and latency and best.accuracy
    engine = job.baseline_on(findings.inventory)
    value = confirmed.value if confirmed else best.accuracy.value
    gain = (
        f"{best.candidate} is {latency.speedup.value:.2f}x as fast as the baseline in {engine} "
        f"(p50, batch {latency.batch_size}), {best.accuracy.metric} {value:.4g}"
    )
    if confirmed is None:
        return gain
    return (
        f"{gain} where the baseline has {confirmed.baseline_value:.4g}, on {confirmed.n} samples that did not choose it"
    )


def _tell_confirmation(trials: tuple[Trial, ...]) -> str:
    """List the candidates that passed only on the samples that chose them."""
    told = [
        f"{trial.candidate} was not confirmed: "
        + ", ".join(f"{verdict.gate}: {verdict.reason}" for verdict in trial.against)
        for trial in trials
        if (trial.confirmed or trial.draws) and trial.outcome != "passed"
    ]
    return "".join(f"; {line}" for line in told)


def _tell_copies(copies: int) -> str:
    """Return the number of evaluation samples that are copies, and how they count; empty without any."""
    told = f"{copies} of the evaluation samples repeat others: gates count each with its copies once"
    return told if copies else ""


def _tell_calibration(calibration: CalibrationVerdict) -> str:
    """Describe the verdict on the calibration data, with the checks that decided it."""
    if not calibration.failed:
        return f"the calibration data was accepted: {len(calibration.checks)} checks passed"
    refused = calibration.outcome == "refused"
    told = [check for check in calibration.failed if check.severity == "critical" or not refused]
    return f"the calibration data was {'refused' if refused else 'accepted with warnings'}: " + "; ".join(
        f"{check.name}: found {check.found}, expected {check.expected}; {check.fix}" for check in told
    )


def _why_none(trials: tuple[Trial, ...]) -> str:
    """Describe how many candidates ended with each outcome, and at which gates."""
    if not trials:
        return f"{NONE_WINS}the job has no candidates"
    tried = tuple(trial for trial in trials if not trial.is_copy)
    stopped = [f"{trial.candidate}: {trial.refusal.reason}" for trial in tried if trial.refusal and trial.is_stopped]
    ways = {way: sum(trial.outcome == way for trial in tried) for way in ("failed", "inconclusive", "refused")}
    ways |= {"refused": ways["refused"] - len(stopped), "stopped": len(stopped)}
    gates = Counter(verdict.gate for trial in trials for verdict in trial.against)
    counts = ", ".join(f"{count} {way}" for way, count in ways.items() if count)
    where = ", ".join(f"{gate} ({counted(count, 'candidate')})" for gate, count in gates.most_common())
    refusals = sorted({trial.refusal.kind for trial in tried if trial.refusal and not trial.is_stopped})
    copies = len(trials) - len(tried)
    return (
        f"{NONE_WINS}of {counted(len(tried), 'candidate')} {counts}"
        + (f"; {counted(copies, 'further candidate')} made the same artifact as another" if copies else "")
        + (f"; gates not passed: {where}" if where else "")
        + (f"; first of the stopped: {stopped[0]}" if stopped else "")
        + (f"; refusals: {', '.join(refusals)}" if refusals else "")
    )


def _tell_untried(trials: tuple[Trial, ...]) -> str:
    """Describe how many candidates the infrastructure kept from being tried, with the first reason; "" if none."""
    untried = [trial for trial in trials if trial.refusal and trial.refusal.kind == "infrastructure"]
    if not untried:
        return ""
    first = untried[0]
    assert first.refusal is not None
    return (
        f"{len(untried)} of {len(trials)} candidates could not be tried (infrastructure): "
        f"{first.candidate}: {first.refusal.reason}"
    )


def _untimed(findings: Findings) -> list[Trial]:
    """Return the candidates that nothing but other load on the machine kept from a verdict, the best among them."""
    trials = {trial.candidate: trial for trial in findings.trials}
    if findings.best:
        trials[findings.best.candidate] = findings.best
    return [trial for trial in trials.values() if trial.against and all(one.disturbed for one in trial.against)]


def _tell_untimed(findings: Findings) -> str:
    """Describe how many candidates could not be timed on a busy machine, with the first reason; "" if none."""
    untimed = _untimed(findings)
    if not untimed:
        return ""
    reason = next(verdict.reason for verdict in untimed[0].verdicts if verdict.disturbed)
    told = f"the machine was too busy to time {counted(len(untimed), 'candidate')}"
    return f"speed not judged: {told}: {untimed[0].candidate}: {reason}"


def _repeat_timing(job: Job, findings: Findings) -> str:
    seconds = max(10, round(len(_untimed(findings)) * job.measurement.expected_seconds, -1))
    return (
        f"run the same command again once the machine is quiet: only timing is repeated, about {seconds:.0f} s; "
        f"while it is busy, a run waits for up to {job.measurement.patience_seconds:.0f} s more (measurement.patience_seconds)"
    )


def _tell_recovery(findings: Findings) -> str:
    """Describe why recovery did not give a winner."""
    recovery = findings.recovery
    if recovery is None or recovery.passes:
        return ""
    if recovery.recovered is None:
        return (
            f"; recovery of {recovery.candidate} did not pass within {recovery.attempts} of at most "
            f"{recovery.allowed} attempts"
        )
    other = sum(bool(part.form) for part in recovery.parts)
    trial = next(trial for trial in findings.trials if trial.candidate == recovery.recovered)
    against = ", ".join(verdict.gate for verdict in trial.against)
    why = f"does not pass {against}" if against else "could not be measured"
    if trial.is_copy and trial.refusal:
        why = f"is {trial.refusal.reason}"
    return (
        f"; {recovery.candidate} with {other} parts in other forms ({recovery.recovered}) passes in accuracy and {why}"
    )


def _document(job: Job | None, findings: Findings, clock: Clock, outcome: RunOutcome, reason: str) -> Result:
    inventory, calibration = findings.inventory, findings.calibration
    trials = tuple(
        findings.best if findings.best and trial.candidate == findings.best.candidate else trial
        for trial in findings.trials
    )
    return Result(
        outcome=outcome,
        reason=redact(plain(reason)),
        source=findings.source,
        target=job.target if job else None,
        inventory={key: value for key, value in asdict(inventory).items() if key != "absent"} if inventory else None,
        absent_engines=list(inventory.absent) if inventory else [],
        calibration=CalibrationResult(
            outcome=calibration.outcome,
            failed_checks=list(calibration.failed),
            passed_checks=[check for check in calibration.checks if check.passed],
            figures=calibration.figures,
            page=str(calibration.page),
        )
        if calibration
        else None,
        baseline=_baseline(job, findings, trials),
        candidates=[conclude_candidate(trial, job.measurement.price_per_hour if job else None) for trial in trials],
        recovery=findings.recovery,
        sign_off=findings.sign_off,
        champion=findings.champion,
        footprint=findings.footprint,
        seconds=clock.seconds(),
    )


def _baseline(job: Job | None, findings: Findings, trials: tuple[Trial, ...]) -> BaselineResult | None:
    """Return the baseline's entry. Its latency is the median over the candidates, beside each of which it was measured."""
    if job is None or findings.inventory is None or findings.baseline is None:
        return None
    p50 = sorted(trial.latency.baseline_p50_ms for trial in trials if trial.latency)
    p95 = sorted(trial.latency.baseline_p95_ms for trial in trials if trial.latency and trial.latency.baseline_p95_ms)
    return BaselineResult(
        engine=job.baseline_on(findings.inventory),
        metric=findings.baseline.metric,
        value=finite(findings.baseline.value),
        latency_p50_ms=p50[len(p50) // 2] if p50 else None,
        latency_p95_ms=p95[len(p95) // 2] if p95 else None,
        size_bytes=findings.baseline_bytes,
        decoder=findings.source.decoder if findings.source else None,
        warning="; ".join(filter(None, (findings.baseline.warning, _tell_copies(findings.copies)))) or None,
        copies=findings.copies,
    )

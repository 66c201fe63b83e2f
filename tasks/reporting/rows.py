"""Verdict table, shared by the HTML report, the Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from tasks.reporting import formats
from tasks.reporting.tables import Cell, Column, ReportTable, drop_cell, speedup_cell
from validators.gates.verdict_rules import two_digits, would_tell
from validators.processors import VNNI, Processor
from validators.records.result import CandidateResult, Result
from validators.records.run import CandidateOutcome, Trial
from validators.records.verdicts import Verdict

RowOutcome = CandidateOutcome | Literal["baseline", "stopped"]
# Columns of pages alone: a terminal has 80 to 200 characters.
P95, MEMORY, WHY = "p95 ms", "Memory MB", "Why"

FLOATS = ("fp32", "fp16", "bf16")
# From this share of kernel time on, what is not in low precision explains a speed.
NOTABLE_TIME = 0.2
_TOO_SLOW = (("speedup", "fail"), ("speedup_fp16", "fail"))


def metric_of(result: Result) -> str:
    """Return the metric of a run; `accuracy` for a run that ended before its baseline, since nothing shows it then."""
    return result.baseline.metric if result.baseline else "accuracy"


def metric_heading(result: Result) -> str:
    """Return the heading of values of the metric: its own name."""
    metric = metric_of(result)
    # The name of a user's function keeps its spelling.
    return metric if ":" in metric else metric.capitalize()


def verdict_table(result: Result, trials: Iterable[Trial] = (), *, has_links: bool = False) -> ReportTable:
    """Return the verdict table: the baseline first, if any, then the candidates in the order of the result.

    `trials` adds the baseline's peak memory, which the result document omits. With `has_links` a name leads to its details.
    """
    metric, baseline = metric_of(result), result.baseline
    rows = [
        _candidate_row(candidate, result, f"candidate-{place}" if has_links else "")
        for place, candidate in enumerate(result.candidates, start=1)
    ]
    kinds = [
        f"{row[1]}{' chosen' * (one.name == result.chosen)}" for row, one in zip(rows, result.candidates, strict=True)
    ]
    if baseline is not None:
        memory = [trial.latency.baseline_peak_memory_mb for trial in trials if trial.latency]
        first: list[Cell | str] = [
            "baseline",
            "baseline",
            formats.metric_value(baseline.value, metric),
            formats.NO_VALUE,
            formats.speedup(1.0) if baseline.latency_p50_ms is not None else formats.NO_VALUE,
            formats.milliseconds(baseline.latency_p50_ms),
            formats.milliseconds(baseline.latency_p95_ms),
            formats.megabytes(baseline.size_bytes),
            formats.significant(median(memory) if memory else None),
            formats.NO_VALUE,
            f"the source at its own precision, in {baseline.engine}",
        ]
        rows, kinds = [first, *rows], ["baseline", *kinds]
    columns = [
        Column("Candidate", "name"),
        Column("Outcome", "pill"),
        Column(metric_heading(result)),
        *map(Column, ("Drop", "Speedup", "p50 ms", P95, "Size MB", MEMORY, "Coverage %")),
        Column(WHY, "text"),
    ]
    return ReportTable("verdicts sortable", "verdict table", columns, rows, kinds)


def failing(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts that keep a candidate from passing, failed ones before inconclusive ones."""
    return tuple(sorted((v for v in verdicts if v.outcome != "pass"), key=lambda verdict: verdict.outcome != "fail"))


def shown_outcome(candidate: CandidateResult) -> RowOutcome:
    """Return the outcome for people: `stopped` for a candidate that a race stopped, instead of `refused`."""
    return "stopped" if candidate.refusal and candidate.refusal.kind == "stopped" else candidate.outcome


def why(candidate: CandidateResult, metric: str, isa: Sequence[str] = ()) -> str:
    """Return the reason for a candidate's outcome: the refusal, or the gates that failed or were inconclusive.

    `isa` has the instruction sets of the processor, which explain a speed that is too low.
    """
    if candidate.refusal is not None:
        kind = "" if candidate.refusal.kind == "stopped" else f"{candidate.refusal.kind}: "
        return f"{kind}{candidate.refusal.reason}"
    against = failing(candidate.verdicts)
    if not against:
        count = len(candidate.verdicts)
        return f"all {count} gates hold" if candidate.outcome == "passed" and count else ""
    slow = why_slow(candidate, isa)
    return "; ".join(
        _against(verdict, metric) + (f" ({slow})" if slow and (verdict.gate, verdict.outcome) in _TOO_SLOW else "")
        for verdict in against
    )


def why_slow(candidate: CandidateResult, isa: Sequence[str]) -> str:
    """Return what processor and kernels say about the speed of a candidate in low precision; empty if they say nothing."""
    # The name alone: the package of its target need not be here.
    precision = candidate.name.partition("@")[0].partition("-")[0]
    if precision in FLOATS:
        return ""
    told = ["no VNNI on this processor"] if precision == "int8" and Processor(tuple(isa)).saturates(VNNI) else []
    rest = 0.0 if candidate.coverage_time is None else 1 - candidate.coverage_time
    if rest >= NOTABLE_TIME:
        told.append(f"{rest:.0%} of kernel time not in low precision")
    return "; ".join(told)


def _against(verdict: Verdict, metric: str) -> str:
    """Summarize a failing verdict; it is short, because the same row shows value and interval."""
    gate = verdict.gate.replace("_", " ")
    if verdict.low is None and verdict.high is None and verdict.reason:
        # Only the first clause: the candidate's details show the rest, such as the nodes that ran in float.
        return f"{gate}{' not judged' if verdict.disturbed else ''}: {verdict.reason.partition(';')[0]}"
    side = "above" if verdict.direction == "at_most" else "below"
    bound = formats.gate_value(verdict, verdict.bound, metric)
    if verdict.outcome == "inconclusive":
        needed = f"about {two_digits(verdict.samples_needed):,}" if verdict.samples_needed else "more"
        return f"{gate} may be {side} {bound}: {needed} {would_tell(verdict.counted)}"
    return f"{gate} {side} {bound}"


def _candidate_row(candidate: CandidateResult, result: Result, link: str) -> list[Cell | str]:
    metric = metric_of(result)
    marks = {
        "chosen": candidate.name == result.chosen,
        candidate.proof: candidate.proof != "measured",
        "disturbed": any(latency.disturbance for latency in candidate.latencies),
        "from store": candidate.cached,
    }
    return [
        Cell(candidate.name, ", ".join(mark for mark, holds in marks.items() if holds), link),
        shown_outcome(candidate),
        formats.metric_value(candidate.metric_value, metric),
        drop_cell(candidate.metric_drop, metric),
        speedup_cell(candidate.speedup_p50),
        formats.milliseconds(candidate.latency_p50_ms),
        formats.milliseconds(candidate.latency_p95_ms),
        formats.megabytes(candidate.size_bytes),
        formats.significant(candidate.peak_memory_mb),
        formats.percent(candidate.coverage_macs),
        why(candidate, metric, (result.inventory or {}).get("isa", ())),
    ]

"""Verdict table as rows of text, shared by the HTML report, the Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tasks.reporting import formats
from validators.gates.verdict_rules import two_digits, would_tell
from validators.records.result import CandidateResult, Result
from validators.records.run import CandidateOutcome, Trial
from validators.records.verdicts import Verdict

RowOutcome = CandidateOutcome | Literal["baseline", "stopped"]

# Attribute of `Row` and heading, in the order of the table.
COLUMNS: tuple[tuple[str, str], ...] = (
    ("name", "Candidate"),
    ("outcome", "Outcome"),
    ("metric", "Metric"),
    ("drop", "Drop"),
    ("speedup", "Speedup"),
    ("p50_ms", "p50 ms"),
    ("p95_ms", "p95 ms"),
    ("size_mb", "Size MB"),
    ("peak_memory_mb", "Memory MB"),
    ("coverage_percent", "Coverage %"),
    ("reason", "Why"),
)


@dataclass(frozen=True)
class Row:
    """One row of the verdict table, every cell as text in the unit of its heading.

    `drop_upper` and `speedup_lower` are the bounds that gates judge, empty if there is none. `marks` are words such as
    `chosen`, `simulated`, `aot-checked`, `disturbed` and `from store`.
    """

    name: str
    outcome: RowOutcome
    metric: str
    drop: str
    drop_upper: str
    speedup: str
    speedup_lower: str
    p50_ms: str
    p95_ms: str
    size_mb: str
    peak_memory_mb: str
    coverage_percent: str
    reason: str
    marks: tuple[str, ...] = ()

    def cell(self, column: str) -> str:
        """Return the text of a column in one line, with marks after the name and the bound after drop and speedup."""
        text = str(getattr(self, column))
        if column == "name" and self.marks:
            return f"{text} ({', '.join(self.marks)})"
        bound = {"drop": self.drop_upper, "speedup": self.speedup_lower}.get(column, "")
        return f"{text} ({bound})" if bound else text


def metric_of(result: Result) -> str:
    """Return the metric of a run; `accuracy` for a run that ended before its baseline, since nothing shows it then."""
    return result.baseline.metric if result.baseline else "accuracy"


def headings(result: Result) -> dict[str, str]:
    """Return headings by column, with the metric's own name as its heading."""
    metric = metric_of(result)
    # The name of a user's function keeps its spelling.
    heading = metric if ":" in metric else metric.capitalize()
    return {column: heading if column == "metric" else text for column, text in COLUMNS}


def verdict_rows(result: Result, trials: Iterable[Trial] = ()) -> tuple[Row, ...]:
    """Return the verdict table: the baseline first, if any, then the candidates in the order of the result.

    `trials` adds the baseline's peak memory, which the result document omits.
    """
    rows = [_candidate_row(candidate, result) for candidate in result.candidates]
    baseline = result.baseline
    if baseline is None:
        return tuple(rows)
    memory = [trial.latency.baseline_peak_memory_mb for trial in trials if trial.latency]
    first = Row(
        name="baseline",
        outcome="baseline",
        metric=formats.metric_value(baseline.value, baseline.metric),
        drop=formats.NO_VALUE,
        drop_upper="",
        speedup=formats.speedup(1.0) if baseline.latency_p50_ms is not None else formats.NO_VALUE,
        speedup_lower="",
        p50_ms=formats.milliseconds(baseline.latency_p50_ms),
        p95_ms=formats.milliseconds(baseline.latency_p95_ms),
        size_mb=formats.megabytes(baseline.size_bytes),
        peak_memory_mb=formats.significant(median(memory) if memory else None),
        coverage_percent=formats.NO_VALUE,
        reason=f"the source at its own precision, in {baseline.engine}",
    )
    return first, *rows


def failing(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts that keep a candidate from passing, failed ones before inconclusive ones."""
    return tuple(sorted((v for v in verdicts if v.outcome != "pass"), key=lambda verdict: verdict.outcome != "fail"))


def shown_outcome(candidate: CandidateResult) -> RowOutcome:
    """Return the outcome for people: `stopped` for a candidate that a race stopped, instead of `refused`."""
    return "stopped" if candidate.refusal and candidate.refusal.kind == "stopped" else candidate.outcome


def why(candidate: CandidateResult, metric: str) -> str:
    """Return the reason for a candidate's outcome: the refusal, or the gates that failed or were inconclusive."""
    if candidate.refusal is not None:
        kind = "" if candidate.refusal.kind == "stopped" else f"{candidate.refusal.kind}: "
        return f"{kind}{candidate.refusal.reason}"
    against = failing(candidate.verdicts)
    if not against:
        count = len(candidate.verdicts)
        return f"all {count} gates hold" if candidate.outcome == "passed" and count else ""
    return "; ".join(_against(verdict, metric) for verdict in against)


def _against(verdict: Verdict, metric: str) -> str:
    """Summarize a failing verdict; it is short, because the same row shows value and interval."""
    gate = verdict.gate.replace("_", " ")
    if verdict.low is None and verdict.high is None and verdict.reason:
        # Only the first clause: the candidate's details show the rest, such as the nodes that ran in float.
        return f"{gate}: {verdict.reason.partition(';')[0]}"
    side = "above" if verdict.direction == "at_most" else "below"
    bound = formats.gate_value(verdict, verdict.bound, metric)
    if verdict.outcome == "inconclusive":
        needed = f"about {two_digits(verdict.samples_needed):,}" if verdict.samples_needed else "more"
        return f"{gate} may be {side} {bound}: {needed} {would_tell(verdict.counted)}"
    return f"{gate} {side} {bound}"


def _candidate_row(candidate: CandidateResult, result: Result) -> Row:
    metric = metric_of(result)
    drop, ratio = candidate.metric_drop, candidate.speedup_p50
    marks = {
        "chosen": candidate.name == result.chosen,
        candidate.proof: candidate.proof != "measured",
        "disturbed": any(latency.disturbance for latency in candidate.latencies),
        "from store": candidate.cached,
    }
    return Row(
        name=candidate.name,
        outcome=shown_outcome(candidate),
        metric=formats.metric_value(candidate.metric_value, metric),
        drop=formats.metric_drop(drop.value if drop else None, metric),
        drop_upper=f"≤ {formats.metric_drop(drop.high, metric)}" if drop and drop.high is not None else "",
        speedup=formats.speedup(ratio.value if ratio else None),
        speedup_lower=f"≥ {formats.speedup(ratio.low)}" if ratio and ratio.low is not None else "",
        p50_ms=formats.milliseconds(candidate.latency_p50_ms),
        p95_ms=formats.milliseconds(candidate.latency_p95_ms),
        size_mb=formats.megabytes(candidate.size_bytes),
        peak_memory_mb=formats.significant(candidate.peak_memory_mb),
        coverage_percent=formats.percent(candidate.coverage_macs),
        reason=why(candidate, metric),
        marks=tuple(mark for mark, holds in marks.items() if holds),
    )

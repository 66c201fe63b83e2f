"""Results of the confirmation as rows of text, shared by the HTML report and the Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.reporting import formats
from tasks.reporting.rows import metric_of
from validators.records.result import CandidateResult, Result
from validators.records.run import CandidateOutcome

# Attribute of `ConfirmedRow` and heading, in the order of the table.
CONFIRMED_COLUMNS: tuple[tuple[str, str], ...] = (
    ("name", "Candidate"),
    ("outcome", "Outcome"),
    ("samples", "Samples"),
    ("baseline", "Baseline"),
    ("metric", "Metric"),
    ("drop", "Drop"),
    ("chosen_drop", "When chosen"),
    ("speedup", "Speedup"),
    ("chosen_speedup", "When chosen"),
)


@dataclass(frozen=True)
class ConfirmedRow:
    """A candidate's results on the confirmation samples, beside those on the selection samples."""

    name: str
    outcome: CandidateOutcome
    samples: str
    baseline: str
    metric: str
    drop: str
    drop_upper: str
    chosen_drop: str
    speedup: str
    speedup_lower: str
    chosen_speedup: str


def confirmed_rows(result: Result) -> tuple[ConfirmedRow, ...]:
    """Return a row for each candidate that was judged again, in the order of the result."""
    return tuple(_row(candidate, metric_of(result)) for candidate in result.candidates if candidate.confirmed)


def tell_confirmation(result: Result) -> str:
    """Return one sentence on how the winner was confirmed; empty if no candidate was judged again."""
    tried = [candidate for candidate in result.candidates if candidate.confirmed]
    if not tried:
        return ""
    confirmed = tried[0].confirmed
    assert confirmed is not None
    count = "One candidate was" if len(tried) == 1 else f"{len(tried)} candidates were, best first,"
    return (
        f"{count} judged again on {confirmed.n} evaluation samples that had no say in the choice and, if passed there, timed "
        f"anew; each bound holds with {100 * confirmed.confidence:.3g} % confidence, so that all that may be tried share the "
        "error of one."
    )


def _row(candidate: CandidateResult, metric: str) -> ConfirmedRow:
    confirmed = candidate.confirmed
    assert confirmed is not None
    drop, speedup = confirmed.metric_drop, confirmed.speedup_p50
    before, ratio = candidate.metric_drop, candidate.speedup_p50
    return ConfirmedRow(
        name=candidate.name,
        outcome=candidate.outcome,
        samples=str(confirmed.n),
        baseline=formats.metric_value(confirmed.baseline_value, metric),
        metric=formats.metric_value(confirmed.metric_value, metric),
        drop=formats.metric_drop(drop.value if drop else None, metric),
        drop_upper=f"≤ {formats.metric_drop(drop.high, metric)}" if drop and drop.high is not None else "",
        chosen_drop=formats.metric_drop(before.value if before else None, metric),
        speedup=formats.speedup(speedup.value if speedup else None),
        speedup_lower=f"≥ {formats.speedup(speedup.low)}" if speedup and speedup.low is not None else "",
        chosen_speedup=formats.speedup(ratio.value if ratio else None),
    )

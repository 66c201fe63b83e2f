"""Entry of one candidate in the result document, from its trial."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from validators.records.latencies import Latency, cost_of_million
from validators.records.measurements import Coverage, Draws, Estimate, SliceDrop
from validators.records.result import CandidateResult, ConfirmedResult, CostResult, SliceResult
from validators.records.run import Trial


def conclude_candidate(trial: Trial, price_per_hour: float | None = None) -> CandidateResult:
    """Return the entry of a judged candidate in the result document; with a price, it has the cost of its requests."""
    latency = trial.latency
    assert trial.outcome is not None, f"{trial.candidate} was not judged"
    return CandidateResult(
        name=trial.candidate,
        outcome=trial.outcome,
        refusal=trial.refusal,
        proof=trial.variant.proof if trial.variant else "measured",
        metric_value=finite(trial.accuracy.value) if trial.accuracy else None,
        metric_drop=_finite_estimate(trial.drop),
        flips=trial.flips,
        slices=_slices(trial.slices),
        sqnr_db=_finite_estimate(trial.accuracy.sqnr) if trial.accuracy else None,
        agreement=_finite_estimate(trial.agreement.mean) if trial.agreement else None,
        speedup_p50=latency.speedup if latency else None,
        speedup_fp16=trial.beside_fp16.speedup if trial.beside_fp16 else None,
        latency_p50_ms=latency.p50_ms if latency else None,
        latency_p95_ms=latency.p95_ms if latency else None,
        cost=_cost(latency, price_per_hour) if latency and price_per_hour else None,
        size_bytes=trial.variant.size_bytes if trial.variant else None,
        peak_memory_mb=latency.peak_memory_mb if latency else None,
        coverage_macs=trial.coverage.share if trial.coverage else None,
        **_times(trial.coverage),
        saturation_max=trial.saturation.worst.share if trial.saturation and trial.saturation.worst else None,
        changes=trial.variant.changes if trial.variant else {},
        verdicts=[
            replace(verdict, value=finite(verdict.value), low=finite(verdict.low), high=finite(verdict.high))
            for verdict in trial.verdicts
        ],
        latencies=list(trial.latencies),
        decoder=trial.variant.decoder if trial.variant else None,
        confirmed=_confirmed(trial),
        draws=_draws(trial.draws),
        copies=list(trial.copies),
        cached=trial.cached,
    )


def _cost(latency: Latency, price_per_hour: float) -> CostResult | None:
    if latency.request_ms is None or latency.baseline_request_ms is None:
        return None
    return CostResult(
        per_million=cost_of_million(latency.request_ms, price_per_hour),
        baseline_per_million=cost_of_million(latency.baseline_request_ms, price_per_hour),
    )


def _confirmed(trial: Trial) -> ConfirmedResult | None:
    if trial.confirmed is None:
        return None
    confirmed = trial.confirmed
    return ConfirmedResult(
        n=confirmed.n,
        confidence=confirmed.confidence,
        baseline_value=finite(confirmed.baseline_value),
        metric_value=finite(confirmed.value),
        metric_drop=_finite_estimate(confirmed.drop),
        slices=_slices(confirmed.slices),
        speedup_p50=confirmed.latency.speedup if confirmed.latency else None,
        latency_p50_ms=confirmed.latency.p50_ms if confirmed.latency else None,
    )


def _draws(draws: Draws | None) -> Draws | None:
    """Return the draws if all of their drops are finite; the verdict's reason names others."""
    if draws is None or not all(map(math.isfinite, (draws.drop, *draws.drops, draws.spread.value))):
        return None
    return replace(draws, spread=Estimate(draws.spread.value, finite(draws.spread.low), finite(draws.spread.high)))


def _slices(slices: tuple[SliceDrop, ...]) -> list[SliceResult]:
    """Return the slices, worst first: by the upper bound or, without one, by the value."""

    def upper(found: SliceDrop) -> float:
        bound = found.drop.value if found.drop.high is None else found.drop.high
        return math.inf if math.isnan(bound) else bound

    return [
        SliceResult(column=one.column, group=one.group, n=one.n, metric_drop=_finite_estimate(one.drop))
        for one in sorted(slices, key=upper, reverse=True)
    ]


def _finite_estimate(estimate: Estimate | None) -> Estimate | None:
    if estimate is None or not math.isfinite(estimate.value):
        return None
    return Estimate(estimate.value, finite(estimate.low), finite(estimate.high))


def _times(coverage: Coverage | None) -> dict[str, Any]:
    """Return the fields about time in kernels; empty if the runtime reports no times."""
    if coverage is None or coverage.time_share is None:
        return {}
    return {
        "coverage_time": coverage.time_share,
        "unfused": [kernel.name for kernel in coverage.unfused],
        "inserted": coverage.inserted_counts,
    }


def finite(value: float | None) -> float | None:
    """Return a finite value unchanged, else None: JSON has neither NaN nor Inf, and the verdict's reason explains it."""
    return value if value is not None and math.isfinite(value) else None

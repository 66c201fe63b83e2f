"""Gates on what a variant costs: time, memory, bytes."""

from __future__ import annotations

from validators.gates import bounded
from validators.job_gates import Gates
from validators.measurements import Latency
from validators.recipe import Target
from validators.records import Variant
from validators.verdicts import Verdict


def judge_speedup(latency: Latency, gates: Gates, target: Target) -> Verdict | None:
    """The speed gate on the ratio of p50 latencies at the first batch size."""
    bound = gates.speedup_bound(target)
    if bound is None:
        return None
    return bounded(
        "speedup",
        latency.speedup,
        bound,
        "at_least",
        gates.confidence,
        latency.pairs,
        "paired blocks, Student interval of log ratios",
        lambda value: f"{value:.3f}x",
    )


def judge_size(variant: Variant, baseline_bytes: int, gates: Gates) -> Verdict | None:
    """The size gate on bytes on disk."""
    if gates.max_size_ratio is None:
        return None
    ratio = variant.size_bytes / baseline_bytes
    passed = ratio <= gates.max_size_ratio
    return Verdict(
        gate="size_ratio",
        outcome="pass" if passed else "fail",
        value=ratio,
        bound=gates.max_size_ratio,
        direction="at_most",
        reason="" if passed else f"{ratio:.2f} of the baseline's bytes",
    )

"""Gates on latency, load time, energy, cost, memory and size of a variant, and on what the job's own step logged of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from validators.gates.verdict_rules import BLOCKS, LAUNCHES, REQUESTS, bounded, judge_exact
from validators.job.job_gates import Gates, LoggedGate
from validators.plain_text import figure
from validators.records.latencies import Latency, cost_of_million
from validators.records.measurements import Estimate
from validators.records.run import Variant
from validators.records.verdicts import Outcome, Verdict

TailGate = Literal["p95_ratio", "p95_ms", "p99_ratio", "p99_ms"]


def judge_speedup(latency: Latency, gates: Gates, target: str) -> Verdict | None:
    """Judge the ratio of p50 latencies at the first operating point; None if the job sets no bound."""
    return _judge_ratio("speedup", latency, gates.speedup_bound(target), gates.confidence)


def judge_speedup_fp16(latency: Latency, gates: Gates) -> Verdict | None:
    """Judge the p50 latency against the float16 model on a GPU, where INT8 slower than float16 is useless."""
    return _judge_ratio("speedup_fp16", latency, gates.min_speedup_fp16, gates.confidence)


def _judge_ratio(gate: str, latency: Latency, bound: float | None, confidence: float) -> Verdict | None:
    if bound is None:
        return None
    if latency.disturbance:
        return disturbed(gate, latency.disturbance, bound, "at_least", latency.speedup.value)
    return bounded(
        gate,
        latency.speedup,
        bound,
        "at_least",
        confidence,
        latency.pairs,
        f"paired blocks of {latency.launches} launches, Student interval of log ratios",
        lambda value: f"{value:.3f}x",
        counted=BLOCKS,
    )


def judge_tail(gate: TailGate, latency: Latency, gates: Gates) -> Verdict | None:
    """Judge a high percentile, in milliseconds or as a ratio to the baseline's in the same launches; None without a bound."""
    percentile, unit = gate.split("_")
    bound = getattr(gates, f"max_{gate}")
    if bound is None:
        return None
    tail = latency.p95 if percentile == "p95" else latency.p99
    if tail is None:
        return unmeasured(gate, "no percentile was measured", bound, "at_most", None)
    found, requests = tail.ms, tail.requests
    if unit == "ratio":
        found, requests = tail.ratio, min(tail.requests, tail.baseline_requests)
    if found is None and not latency.disturbance:
        count = math.ceil(tail.needed * latency.launches / latency.pairs)
        reason = f"a launch has {requests} requests, {percentile} needs {tail.needed}: set `measurement.block_count: {count}`"
        verdict = unmeasured(gate, reason, bound, "at_most", None)
        return replace(verdict, n=requests, samples_needed=tail.needed, counted=REQUESTS)
    method = f"{percentile} of launches of {requests} requests and more, Student interval of logarithms"
    show = "{:.3f}x".format if unit == "ratio" else "{:.3g} ms".format
    return _judge_launches(gate, latency, found, bound, gates.confidence, method, show)


def _judge_launches(
    gate: str,
    latency: Latency,
    found: Estimate | None,
    bound: float,
    confidence: float,
    method: str,
    show: Callable[[float], str],
) -> Verdict:
    """Judge a figure that must be small, with an interval over launches; None if a disturbed measurement gave no figure."""
    if found is None or latency.disturbance:
        return disturbed(gate, latency.disturbance, bound, "at_most", found.value if found else None)
    if found.low is None:
        return unmeasured(gate, "one launch alone gives no interval", bound, "at_most", found.value)
    return bounded(gate, found, bound, "at_most", confidence, latency.launches, method, show, counted=LAUNCHES)


def judge_ratio(gate: str, figure: str, latency: Latency, gates: Gates, why_missing: str) -> Verdict | None:
    """Judge one of `Latency.ratios`; None if the job sets no bound.

    A figure that other processes do not disturb has bounds in a disturbed comparison too, and is judged as far as it went.
    """
    bound, ratio = getattr(gates, f"max_{gate}"), latency.ratios.get(figure)
    if bound is None:
        return None
    if ratio is None:
        return unmeasured(gate, why_missing, bound, "at_most", None)
    if ratio.low is not None:
        latency = replace(latency, disturbance="")
    method = "ratio of each launch, Student interval of logarithms"
    return _judge_launches(gate, latency, ratio, bound, gates.confidence, method, "{:.3f}x".format)


def why_no_energy(latency: Latency) -> str:
    """Return why a comparison has no ratio of energies."""
    if latency.energy_mj is None or latency.baseline_energy_mj is None:
        return "the device reports no energy; counters of processors (RAPL) are readable by root, absent in virtual machines"
    return "the energy counter stood still in a launch: raise `measurement.block_seconds`"


def judge_cost(latency: Latency, gates: Gates, price_per_hour: float | None) -> Verdict | None:
    """Judge the cost of a million requests; None if the job sets no bound."""
    bound = gates.max_cost_per_million
    if bound is None or price_per_hour is None:
        return None
    if latency.request_ms is None:
        return unmeasured("cost_per_million", "no time per request was measured", bound, "at_most", None)
    cost = cost_of_million(latency.request_ms, price_per_hour)
    method = f"mean time per request at {price_per_hour:g} an hour, Student interval of logarithms over launches"
    return _judge_launches("cost_per_million", latency, cost, bound, gates.confidence, method, figure)


def judge_compilation(variant: Variant, gates: Gates) -> Verdict | None:
    """Judge the seconds that the compilation of the artifact took; 0 for an artifact that is not compiled."""
    bound = gates.max_compile_seconds
    if bound is None:
        return None
    if variant.engine is not None:
        return unmeasured("compile_seconds", "the building of engines is not timed", bound, "at_most", None)
    seconds = variant.compile_seconds or 0.0
    method = "one compilation with an empty cache"
    return judge_exact("compile_seconds", seconds, bound, f"compiled in {seconds:.1f} s", method=method)


def judge_size(variant: Variant, baseline_bytes: int, gates: Gates) -> Verdict | None:
    """Judge the bytes on disk, as a ratio to the baseline's."""
    if gates.max_size_ratio is None:
        return None
    # A thousandth counts as nothing: names of nodes alone make the same weights a few hundred bytes larger.
    ratio = round(variant.size_bytes / baseline_bytes, 3)
    return judge_exact("size_ratio", ratio, gates.max_size_ratio, f"{ratio:.2f} of the baseline's bytes")


def disturbed(
    gate: str, reason: str, bound: float, direction: Literal["at_most", "at_least"], value: float | None
) -> Verdict:
    """Return an inconclusive verdict for a measurement on a machine that was too busy, with the reason."""
    return replace(unmeasured(gate, reason, bound, direction, value), disturbed=True)


def unmeasured(
    gate: str, reason: str, bound: float, direction: Literal["at_most", "at_least"], value: float | None
) -> Verdict:
    """Return an inconclusive verdict for a timing measurement that is missing, with the reason."""
    return Verdict(
        gate=gate, outcome="inconclusive", value=value, bound=bound, direction=direction, method="none", reason=reason
    )


def judge_logged(logged: Mapping[str, float], gates: Gates, *, problem: str = "") -> tuple[Verdict, ...]:
    """Judge each bound on a logged metric. `logged` holds the last value of each key, `problem` says why the step failed.

    A missing metric, or NaN, is inconclusive.
    """
    return tuple(_judge_one(gate, logged.get(gate.metric), problem) for gate in gates.logged)


def _judge_one(gate: LoggedGate, value: float | None, problem: str) -> Verdict:
    bound = gate.at_most if gate.at_most is not None else gate.at_least
    assert bound is not None  # `LoggedGate` requires one of the two
    known = value is not None and not math.isnan(value)
    outcome: Outcome = "inconclusive"
    reason = problem or f"the step logged no metric {gate.metric!r}"
    if value is not None and known:
        within = value <= bound if gate.at_most is not None else value >= bound
        outcome = "pass" if within else "fail"
        reason = "" if within else f"{value:.6g} against {bound:.6g}"
    elif value is not None:
        reason = f"the step logged NaN as {gate.metric!r}"
    return Verdict(
        gate=f"logged.{gate.metric}",
        outcome=outcome,
        value=value,
        bound=bound,
        direction="at_most" if gate.at_most is not None else "at_least",
        method="logged by the job's own step",
        reason=reason,
        evidence=f"metric {gate.metric}",
    )

"""Measurements of a candidate besides its latency, as labelled text."""

from __future__ import annotations

from collections.abc import Callable

from tasks.reporting import formats
from validators.records.latencies import Conditions, Latency
from validators.records.measurements import Estimate
from validators.records.result import CostResult

Facts = list[tuple[str, str]]


def measured_facts(latency: Latency, beside_fp16: Latency | None = None, cost: CostResult | None = None) -> Facts:
    """Return labelled facts at one operating point, with the baseline's values in parentheses.

    They cover speed beside float16, loading, memory, throughput, end-to-end time, energy, cost and the machine's conditions.
    Quantities that were not measured are omitted.
    """
    facts: Facts = [("disturbed by", latency.disturbance)] if latency.disturbance else []
    if beside_fp16 is not None:
        facts.append(("beside fp16", _ratio(beside_fp16.speedup)))
    facts += [
        ("loads in ms", _beside(formats.milliseconds, latency.load_ms, latency.baseline_load_ms)),
        ("memory MB, peak", _beside(formats.significant, latency.peak_memory_mb, latency.baseline_peak_memory_mb)),
    ]
    if latency.requests > 1:
        facts.insert(0, ("different requests in turn", str(latency.requests)))
    if latency.load_peak_memory_mb is not None:
        both = latency.load_peak_memory_mb, latency.baseline_load_peak_memory_mb
        facts.append(("memory MB, peak while it loads", _beside(formats.significant, *both)))
    if latency.throughput is not None:
        told = latency.throughput
        each = _beside(formats.significant, told.requests_per_s, told.baseline_requests_per_s)
        facts.append((f"requests a second of {told.clients} clients", f"{each}, {_ratio(told.ratio)}"))
    if latency.end_to_end is not None:
        each = _beside(formats.milliseconds, latency.end_to_end.p50_ms, latency.end_to_end.baseline_p50_ms)
        facts.append(("end to end, p50 ms", f"{each}, {_ratio(latency.end_to_end.speedup)}"))
    if latency.energy_mj is not None:
        facts.append(("mJ a request", _beside(formats.significant, latency.energy_mj, latency.baseline_energy_mj)))
    if cost is not None:
        each = _beside(formats.significant, cost.per_million.value, cost.baseline_per_million.value)
        high = cost.per_million.high
        facts.append(
            ("cost of a million requests", each if high is None else f"{each}, at most {formats.significant(high)}")
        )
    return facts + (_conditions(latency.conditions) if latency.conditions else [])


def _conditions(conditions: Conditions) -> Facts:
    taken = f"{conditions.other_cores:.2f} and {conditions.stolen_cores:.2f}"
    facts = [
        ("cores that others and the hypervisor took at most", taken),
        ("fixed work, slowest over fastest of a pair", f"{conditions.canary_ratio:.2f}"),
        ("pairs measured again", str(conditions.repeated)),
    ]
    if conditions.frequency_mhz is not None:
        facts.append(("clock MHz", " to ".join(f"{clock:.0f}" for clock in conditions.frequency_mhz)))
    if conditions.quota_throttled_cores:
        facts.append(("cores that the CPU quota took at most", f"{conditions.quota_throttled_cores:.2f}"))
    if not conditions.warm:
        facts.append(("warm-up", f"not stable after {formats.seconds(max(conditions.warmup_seconds))} s"))
    return facts


def _beside(show: Callable[[float | None], str], value: float | None, baseline: float | None) -> str:
    return f"{show(value)} ({show(baseline)})"


def _ratio(ratio: Estimate) -> str:
    bound = f", at least {formats.speedup(ratio.low)}" if ratio.low is not None else ""
    return f"{formats.speedup(ratio.value)}{bound}"

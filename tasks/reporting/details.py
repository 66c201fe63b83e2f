"""Details of a run: gates, slices, measurements and kernels of a candidate, checks of the calibration data, and code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from tasks.reporting import formats
from tasks.reporting.tables import Cell, Column, ReportTable
from validators.gates.coverage import name_kernels
from validators.records.latencies import Conditions, Latency
from validators.records.measurements import Coverage, Estimate
from validators.records.result import CalibrationResult, CandidateResult, CostResult
from validators.records.verdicts import Verdict

Facts = list[tuple[str, str]]
# The result document has all of them.
SHOWN_SLICES = 10
SHOWN_NODES = 8
_PRECISIONS = {"low": "low", "half": "16 bits", "float": "float", "unknown": "unknown"}


def gates_table(candidate: str, verdicts: Iterable[Verdict], metric: str) -> ReportTable:
    """Return the table of a candidate's verdicts."""
    columns = [
        Column("Gate", "name"),
        Column("Verdict", "pill"),
        *map(Column, ("Value", "Must be", "Interval", "Confidence", "n")),
        Column("Method", "text"),
        Column("Reason", "text"),
    ]
    rows = [_gate_row(verdict, metric) for verdict in verdicts]
    return ReportTable("gates", f"gates of {candidate}", columns, rows)


def _gate_row(verdict: Verdict, metric: str) -> list[Cell | str]:
    low, high = (formats.gate_value(verdict, end, metric) for end in (verdict.low, verdict.high))
    return [
        verdict.gate.replace("_", " "),
        verdict.outcome,
        formats.gate_value(verdict, verdict.value, metric),
        formats.gate_bound(verdict, metric),
        formats.NO_VALUE if verdict.low is verdict.high is None else f"{low} to {high}",
        formats.NO_VALUE if verdict.confidence is None else f"{100 * verdict.confidence:.4g} %",
        formats.NO_VALUE if verdict.n is None else str(verdict.n),
        Cell(verdict.method, verdict.evidence),
        verdict.reason,
    ]


def slices_table(candidate: CandidateResult, metric: str) -> ReportTable:
    """Return the table of the groups that may have lost most, worst first; bounds hold for all groups jointly."""
    rows = []
    for found in candidate.slices[:SHOWN_SLICES]:
        drop = found.metric_drop
        ends = (drop.low, drop.high) if drop else (None, None)
        known = None not in ends
        bounds = " to ".join(formats.metric_drop(end, metric) for end in ends) if known else formats.NO_VALUE
        value = formats.metric_drop(drop.value if drop else None, metric)
        rows.append((f"{found.column} {found.group}", str(found.n), value, bounds))
    columns = [Column("Group", "name"), *map(Column, ("Samples", "Drop", "Bounds"))]
    return ReportTable("batches", f"slices of {candidate.name}", columns, rows)


def latencies_table(candidate: str, latencies: Iterable[Latency]) -> ReportTable:
    """Return the table of a candidate's operating points."""
    figures = ("p50 ms", "p95 ms", "p99 ms", "Baseline p50 ms", "Speedup", "Requests")
    columns = [Column("Batch", "name number"), Column("Axes", "text"), *map(Column, ("Threads", *figures))]
    rows = [
        (
            str(one.batch_size),
            ", ".join(f"{axis} {size}" for axis, size in one.dims.items()) or formats.NO_VALUE,
            str(one.threads),
            *map(formats.milliseconds, (one.p50_ms, one.p95_ms, one.p99_ms, one.baseline_p50_ms)),
            formats.speedup(one.speedup.value),
            str(one.count),
        )
        for one in latencies
    ]
    return ReportTable("batches", f"latency of {candidate} by operating point", columns, rows)


def checks_table(calibration: CalibrationResult | None) -> ReportTable:
    """Return the table of the checks of the calibration data, failed ones first; empty if it was not judged."""
    failed = calibration.failed_checks if calibration else ()
    passed = sorted(calibration.passed_checks, key=lambda check: check.severity) if calibration else ()
    texts = ("Found", "Expected", "Fix")
    columns = [Column("Check", "name"), Column("Outcome", "pill"), *(Column(text, "text") for text in texts)]
    rows = [
        (one.name, "warning" if one.severity == "warning" else "failed", one.found, one.expected, one.fix)
        for one in failed
    ]
    rows += [(one.name, "passed", one.found, one.expected, formats.NO_VALUE) for one in passed]
    return ReportTable("checks", "checks of the calibration data", columns, rows)


def load_code(uri: str) -> str:
    """Return Python code that loads a version with MLflow and runs one request.

    >>> print(load_code("models:/fraud-quantized@champion-ort-cpu").splitlines()[2])
    model = mlflow.pyfunc.load_model("models:/fraud-quantized@champion-ort-cpu")
    """
    # A name may hold characters that change the direction of the text after them.
    address = json.dumps(uri, ensure_ascii=not uri.isprintable())
    return (
        "import mlflow\n\n"
        f"model = mlflow.pyfunc.load_model({address})\n"
        "outputs = model.predict({...})  # one array for each input by name, samples along axis 0\n"
    )


def tell_flips(candidate: CandidateResult) -> str:
    """Return a sentence on the number of samples that became worse or better; empty without flips."""
    flips = candidate.flips
    if flips is None:
        return ""
    return f"Of {flips.n:,} samples {flips.lost:,} became worse than the source's and {flips.gained:,} better."


def coverage_facts(coverage: Coverage) -> tuple[tuple[str, str], ...]:
    """Return labelled facts: nodes in float, the share of time in low precision, unfused Q/DQ, inserted kernels.

    >>> found = Coverage({"QGemm": 8, "Gemm": 2}, ("QGemm",), ("head",), (), us_by_kernel={"QGemm": 3.0, "Gemm": 1.0})
    >>> coverage_facts(found)
    (('in float, largest first', 'head'), ('kernel time in low precision', '75.0 %'))
    """
    facts = [("in float, largest first", _nodes(coverage.float_nodes)), ("in 16 bits", _nodes(coverage.half_nodes))]
    if coverage.time_share is not None:
        facts.append(("kernel time in low precision", f"{formats.percent(coverage.time_share)} %"))
        facts.append(("Q/DQ not fused", _kernels(name_kernels(coverage.unfused), coverage.unfused_time)))
        kinds = ", ".join(f"{count} {kind}" for kind, count in coverage.inserted_counts.items())
        named = f"{kinds}: {name_kernels(coverage.inserted)}" if kinds else ""
        facts.append(("inserted beside the baseline", _kernels(named, coverage.inserted_time)))
    return tuple(fact for fact in facts if fact[1])


def nodes_table(candidate: str, coverage: Coverage) -> ReportTable:
    """Return the table of the nodes that multiply, in the order in which they ran, with the kernel and precision of each."""
    work = sum(node.macs for node in coverage.products)
    rows = [
        (node.name, node.kernel, _PRECISIONS[coverage.precision(node.kernel)], formats.percent(node.macs / work))
        for node in coverage.products
        if work
    ]
    columns = [Column("Node", "name"), Column("Kernel", "text"), Column("Precision", "text"), Column("Work %")]
    return ReportTable("nodes", f"nodes of {candidate}", columns, rows)


def _nodes(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def _kernels(named: str, share: float | None) -> str:
    return f"{named}; {formats.percent(share)} % of kernel time" if named else ""


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

"""Number formats of the HTML report, the Markdown and the terminal.

    metric    0.770        drop      +0.85 pp (shares) or +0.00123 (in the metric's own units)
              31.2 dB (sqnr)
    speedup   1.52x        size      22.9 (MB, 10^6 bytes)
    noise     -17.2 (dB of the output's power)
    latency   1.95 (ms)    share     98.2 (%)

A value that was not measured is an en dash, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from validators.gates.catalog import Unit, gate_of
from validators.job.metric_facts import metric_facts
from validators.records.verdicts import Verdict

NO_VALUE = "\N{EN DASH}"
_SIGNS = {"at_most": "≤", "at_least": "≥"}


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number with at least `digits` significant digits; digits before the decimal point are never rounded away.

    >>> significant(0.05149), significant(9.996), significant(1234.4), significant(0.0000123)
    ('0.0515', '10.0', '1234', '1.23e-05')
    """
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return _not_finite(value)
    if value == 0:
        return "0"
    # Round first: 9.996 has three digits as 10.0, not as 10.00.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def metric_value(value: float | None, metric: str) -> str:
    """Format a metric in its own units: three decimals for a share, decibels for SQNR, else three significant digits.

    >>> metric_value(0.77, "accuracy"), metric_value(0.012345, "mse"), metric_value(31.2345, "sqnr")
    ('0.770', '0.0123', '31.2 dB')
    """
    if value is not None and not metric_facts(metric).has_drop:
        return noise_ratio(value)
    if value is None or not metric_facts(metric).is_share or not math.isfinite(value):
        return significant(value)
    return f"{value:.3f}"


def noise_ratio(value: float) -> str:
    """Format a signal-to-noise ratio in decibels; it is infinite without noise.

    >>> noise_ratio(31.2345), noise_ratio(math.inf)
    ('31.2 dB', 'inf dB')
    """
    return f"{value:.1f} dB" if math.isfinite(value) else f"{_not_finite(value)} dB"


def drop_scale(metric: str) -> float:
    """Return the factor for displaying a drop: 100 for points, 1 for an error in its own units."""
    return 100.0 if metric_facts(metric).is_share else 1.0


def metric_drop(value: float | None, metric: str) -> str:
    """Format a drop against the baseline: in points (hundredths) for a share, else in the metric's own units.

    >>> metric_drop(0.0085, "accuracy"), metric_drop(-0.0000001, "top5"), metric_drop(0.00123, "mse")
    ('+0.85 pp', '+0.00 pp', '+0.00123')
    """
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return _not_finite(value)
    if not metric_facts(metric).is_share:
        return ("+" if value > 0 else "") + significant(value)
    # Adding 0.0 turns the -0.0 that rounding leaves into 0.0, which has no minus sign.
    return f"{round(value * drop_scale(metric), 2) + 0.0:+.2f} pp"


def speedup(value: float | None) -> str:
    """Format a ratio of latencies or sizes.

    >>> speedup(1.5163)
    '1.52x'
    """
    if value is None or not math.isfinite(value):
        return significant(value)
    return f"{value:.2f}x"


def milliseconds(value: float | None) -> str:
    """Format a latency in milliseconds, without the unit: headings carry it."""
    return significant(value)


def megabytes(size_bytes: float | None) -> str:
    """Format bytes as MB of 10^6 bytes, without the unit.

    >>> megabytes(90_234_567), megabytes(412_345_678), megabytes(23_456)
    ('90.2', '412', '0.0235')
    """
    return significant(None if size_bytes is None else size_bytes / 1e6)


def gigabytes(size_bytes: float | None) -> str:
    """Format bytes as GB of 10^9 bytes, without the unit.

    >>> gigabytes(12_345_000_000), gigabytes(None)
    ('12.3', '\N{EN DASH}')
    """
    return significant(None if size_bytes is None else size_bytes / 1e9)


def percent(share: float | None) -> str:
    """Format a share from 0 to 1 as percent with one decimal, without the unit.

    >>> percent(0.9817), percent(1.0)
    ('98.2', '100.0')
    """
    if share is None or not math.isfinite(share):
        return significant(share)
    return f"{share * 100:.1f}"


def decibels(share: float | None) -> str:
    """Format a share of a power in decibels, without the unit; None means that it was not finite.

    >>> decibels(0.01), decibels(1.9), decibels(0.0), decibels(None)
    ('-20.0', '+2.8', '-inf', 'not finite')
    """
    if share is None:
        return "not finite"
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(10 * math.log10(share), 1) + 0.0:+.1f}" if share > 0 else "-inf"


def seconds(value: float) -> str:
    """Format wall-clock seconds with one decimal, below ten seconds with two.

    >>> seconds(3.14159), seconds(125.04)
    ('3.14', '125.0')
    """
    return f"{value:.2f}" if round(value, 2) < 10 else f"{value:.1f}"


_UNITS: dict[Unit | None, Callable[[float, str], str]] = {
    "drop": lambda value, metric: metric_drop(value, metric),
    "decibels": lambda value, _: noise_ratio(value),
    "ratio": lambda value, _: speedup(value),
    "share": lambda value, _: f"{percent(value)} %",
    "metric": lambda value, metric: metric_value(value, metric),
    "milliseconds": lambda value, _: f"{milliseconds(value)} ms",
}


def gate_value(verdict: Verdict, value: float | None, metric: str) -> str:
    """Format a value of a gate (also its bound or an end of its interval) in the gate's unit.

    >>> gate_value(Verdict("drop", "pass", 0.0085, 0.02, "at_most"), 0.0085, "accuracy")
    '+0.85 pp'
    >>> gate_value(Verdict("coverage", "pass", 0.982, 0.5, "at_least"), 0.982, "accuracy")
    '98.2 %'
    """
    if value is None:
        return NO_VALUE
    gate = gate_of(verdict.gate)
    unit = gate.unit if gate else None
    if unit == "by method":
        # The gate against the champion compares a drop, a speedup or bytes; only its method says which.
        unit = "drop" if "drop" in verdict.method else "ratio"
    show = _UNITS.get(unit)
    return show(value, metric) if show else significant(value)


def gate_bound(verdict: Verdict, metric: str) -> str:
    """Format the bound of a gate with the side on which the value must lie.

    >>> gate_bound(Verdict("speedup", "pass", 1.5, 1.05, "at_least"), "accuracy")
    '≥ 1.05x'
    """
    return f"{_SIGNS[verdict.direction]} {gate_value(verdict, verdict.bound, metric)}"


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"

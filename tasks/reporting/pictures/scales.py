"""Scales from values to pixels, computed as in Vega, for layouts that need pixel positions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tasks.reporting import formats
from validators.job.metric_facts import metric_facts
from validators.records.measurements import Estimate


@dataclass(frozen=True)
class Scale:
    """A scale from values between `low` and `high` to pixels from 0 to `length`; an axis labels the values `ticks`.

    `symlog` is linear up to about `constant` and logarithmic beyond it: sign(x) log(1 + |x / constant|), as in d3-scale.
    """

    kind: Literal["linear", "log", "symlog"]
    low: float
    high: float
    length: float
    ticks: tuple[float, ...] = ()
    constant: float = 1.0

    def pixel(self, value: float) -> float:
        """Return the pixel position of a value.

        >>> Scale("log", 0.5, 8.0, 400.0).pixel(1.0), Scale("linear", -1.0, 3.0, 400.0).pixel(0.0)
        (100.0, 100.0)
        """
        low, high, at = self._even(self.low), self._even(self.high), self._even(value)
        return self.length * (at - low) / (high - low)

    @property
    def spec(self) -> dict[str, Any]:
        """The scale for Vega-Lite, with an explicit range because Vega-Lite flips y axes by default."""
        spec: dict[str, Any] = {"type": self.kind, "domain": [self.low, self.high], "range": [0, self.length]}
        return spec | {"nice": False, "zero": False} | ({"constant": self.constant} if self.kind == "symlog" else {})

    def encoding(self, title: str, words: Mapping[float, str] | str) -> dict[str, Any]:
        """Return the encoding of a field on this scale, with an axis.

        `words` labels each tick, or is the format of all but zero, which has neither sign nor unit.
        """
        if isinstance(words, str):
            words = {tick: words.format(tick) if tick else "0" for tick in self.ticks}
        choices = " : ".join(f"abs(datum.value - {tick!r}) < 1e-9 ? {json.dumps(word)}" for tick, word in words.items())
        axis = {"title": title, "values": list(words), "labelExpr": f"{choices} : ''"}
        return {"type": "quantitative", "scale": self.spec, "axis": axis}

    def _even(self, value: float) -> float:
        if self.kind == "log":
            return math.log(value)
        return math.copysign(math.log1p(abs(value / self.constant)), value) if self.kind == "symlog" else value


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between two positive ones: powers of two if they are far apart, at most eleven tenths if near.

    >>> ratio_ticks(0.23, 2.2), ratio_ticks(0.87, 1.33)
    ([0.25, 0.5, 1.0, 2.0], [0.9, 1.0, 1.1, 1.2, 1.3])
    """
    if high / low > 4:
        return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    tenths = range(math.ceil(low * 10), math.floor(high * 10) + 1)
    every = math.ceil(len(tenths) / 11) or 1
    return [tenth / 10 for tenth in tenths if tenth % every == 0]


def drop_ticks(low: float, high: float, linear: float) -> list[float]:
    """Return round drops: evenly spaced up to `linear`, beyond it by the factors 1, 2, 5, 10; all even if `high` is below it.

    >>> drop_ticks(-0.4, 20.0, 3.0), drop_ticks(-0.2, 2.1, 3.0)
    ([0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0], [0.0, 0.5, 1.0, 1.5, 2.0])
    """
    end = min(linear, high)
    rough = (end - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    even = [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(end / step) + 1)]
    decades = range(math.floor(math.log10(linear)), math.ceil(math.log10(max(high, linear))) + 1)
    factors = (digit * 10.0**decade for decade in decades for digit in (1, 2, 5))
    return even + [drop for drop in factors if linear * 1.3 < drop <= high]


def drop_encoding(drops: Iterable[float], metric: str, length: float) -> dict[str, Any]:
    """Return the encoding of an x axis of this length that holds zero and these drops, which are in its units."""
    ends = [0.0, *drops]
    room = 0.05 * (max(ends) - min(ends) or 1.0)
    low, high = min(ends) - room, max(ends) + room
    scale = Scale("linear", low, high, length, tuple(drop_ticks(low, high, high)))
    unit = " pp" if metric_facts(metric).is_share else ""
    return scale.encoding(f"drop of {metric} (worse →)", "{:+g}" + unit)


def in_axis_units(drop: Estimate, metric: str) -> Estimate:
    """Return a drop in the units of an axis: points for a share, else the metric's own."""
    scale = formats.drop_scale(metric)
    low, high = (None if end is None else end * scale for end in (drop.low, drop.high))
    return Estimate(drop.value * scale, low, high)


def bar_ends(estimate: Estimate) -> tuple[float, float]:
    """Return both ends of an estimate's bar: the value itself if an end is missing or not finite."""
    low, high = (
        estimate.value if end is None or not math.isfinite(end) else end for end in (estimate.low, estimate.high)
    )
    return low, high

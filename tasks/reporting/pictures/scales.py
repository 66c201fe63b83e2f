"""Scales from values to pixels, computed as in Vega, for layouts that need pixel positions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


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

    def axis(self, words: Mapping[float, str]) -> dict[str, Any]:
        """Return an axis that labels each tick with its word."""
        choices = " : ".join(f"abs(datum.value - {tick!r}) < 1e-9 ? {json.dumps(word)}" for tick, word in words.items())
        return {"values": list(words), "labelExpr": f"{choices} : ''"}

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

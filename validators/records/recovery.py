"""Frozen records of a recovery: the parts most sensitive to quantization, and the cost of keeping them in float."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankedPart:
    """A part of the model, and what the output loses when it alone is quantized.

    `noise` is the power of the output's error over that of the output, null where the output was not finite. Outlier ratios
    say how far the largest channel lies above the others, null for a part without weights or where that is not known.
    `kept` parts are in float in the recovered candidate; `cost_us` are the microseconds a request that this costs, by the
    runtime's profile: indicative, and null for others and where the runtime's kernels cannot be told apart.
    """

    name: str
    nodes: tuple[str, ...]
    noise: float | None
    weight_outlier_ratio: float | None
    activation_outlier_ratio: float | None
    kept: bool = False
    cost_us: float | None = None


@dataclass(frozen=True)
class Recovery:
    """How a candidate that failed on accuracy alone was made again, with its noisiest parts in float.

    `parts` are all that the candidate quantizes, the noisiest first; `attempts` of at most `allowed` variants were made;
    `recovered` is the candidate whose accuracy passes with the fewest parts in float, or null. `other_us` are the microseconds
    a request that its remaining nodes take more than those of `candidate`, conversions between the two forms among them.
    """

    candidate: str
    parts: tuple[RankedPart, ...]
    attempts: int
    allowed: int
    recovered: str | None = None
    other_us: float | None = None

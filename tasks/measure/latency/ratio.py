"""What blocks of requests say: the ratio of two sides with its interval, and percentiles that their count supports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from validators.records.measurements import Estimate

Samples = NDArray[np.float64]


def ratio_estimate(ratios: Sequence[Sequence[float]], confidence: float) -> Estimate:
    """The geometric mean over launches of the median ratio of each one's pairs, with one-sided bounds on either side.

    `ratios` holds a list for each launch; `confidence` is one-sided: each of the bounds holds with it. Blocks of a launch
    share its processes, with their memory layout and placement, so that they are no independent samples: the interval is
    Student's of the launches' logarithms (T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013:
    executions above iterations). The median, since single blocks stray far. Rejected, by simulation (docs/latency.md):
    Student's of all blocks, which errs two to four times as often as it says where launches differ; the bootstrap that
    draws launches and blocks within them (A. Davison and D. Hinkley, Bootstrap Methods and their Application, 1997, section
    3.8), which counts the noise of blocks twice and is up to 1.5 times as wide. The blocks of a single launch give an
    interval of that launch alone.

    >>> ratio_estimate([[2.0, 2.0], [2.0, 2.0]], 0.95)
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    from scipy import stats

    logs = _launch_logs(ratios) if len(ratios) > 1 else np.log(ratios[0])
    mean = float(logs.mean())
    half = float(stats.t.ppf(confidence, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    value, low, high = (round(math.exp(x), 12) for x in (mean, mean - half, mean + half))
    return Estimate(value, low, high)


def central_ratio(ratios: Sequence[Sequence[float]]) -> float:
    """The geometric mean over launches of the median over blocks, where there is no interval.

    >>> central_ratio([[1.0, 4.0], [8.0, 9.0, 1.0]])
    4.0
    """
    return round(math.exp(float(_launch_logs(ratios).mean())), 12)


def _launch_logs(ratios: Sequence[Sequence[float]]) -> Samples:
    return np.array([float(np.median(np.log(blocks))) for blocks in ratios])


def percentile(samples: Samples, quantile: float) -> float | None:
    """The quantile of pooled samples, or None where their count cannot support it.

    >>> percentile(np.arange(100.0), 0.99) is None
    True
    """
    return float(np.quantile(samples, quantile)) if len(samples) >= samples_needed(quantile) else None


def samples_needed(quantile: float, confidence: float = 0.99) -> int:
    """The smallest count that supports a percentile: with `confidence`, at least two samples lie beyond it.

    This is the early-stopping rule of MLPerf Inference (LoadGen) with one discarded sample.

    >>> samples_needed(0.99), samples_needed(0.999)
    (662, 6636)
    """
    from scipy import stats

    count = math.ceil(math.log(1 - confidence) / math.log(quantile))  # none beyond it: a lower limit to start from
    while stats.binom.cdf(1, count, 1 - quantile) > 1 - confidence:
        count += 1
    return count

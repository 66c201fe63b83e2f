"""The gate on the spread of the metric over draws of the calibration samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtri

from validators.gates.verdict_rules import DRAWS, bounded
from validators.job.job_gates import Gates
from validators.plain_text import figure
from validators.records.measurements import Draws, Estimate
from validators.records.verdicts import Verdict

METHOD = "variance between draws, F distribution"
# More draws than this are not advised.
MOST_DRAWS = 100


def estimate_spread(pseudo_values: NDArray[np.float64], confidence: float) -> tuple[Estimate, float]:
    """Return the standard deviation over draws with a one-sided bound on either side, and the noise that it is free of.

    `pseudo_values`, shape `(draws, groups)`, has the metric of each draw on each group of evaluation samples; for other metrics
    than means, the pseudo-values of the jackknife. All draws answer the same samples. So what chance in the samples adds to the
    variance of the draws' means is estimated by what is left in the table without its rows and columns, and is subtracted
    (H. Scheffe, The Analysis of Variance, 1959, section 7.4: two-way layout with random effects; bounds as those of
    J. S. Williams, Biometrika 49, 1962, with the residual variance as known). One group gives no bounds.

    >>> estimate_spread(np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]), 0.95)
    (Estimate(value=0.0, low=0.0, high=0.0), 0.0)
    """
    draws, groups = pseudo_values.shape
    means = pseudo_values.mean(axis=1)
    if groups == 1:
        return Estimate(float(means.std(ddof=1))), 0.0
    residuals = pseudo_values - means[:, np.newaxis] - pseudo_values.mean(axis=0) + pseudo_values.mean()
    degrees = (draws - 1, (draws - 1) * (groups - 1))
    total = float(means.var(ddof=1))
    noise = math.sqrt(float(np.square(residuals).sum()) / degrees[1] / groups)
    if not math.isfinite(total) or not math.isfinite(noise):
        return Estimate(math.nan, math.nan, math.nan), noise
    quantiles = (float(fdtri(*degrees, share)) for share in (confidence, 1 - confidence))
    low, high = (_without_noise(total, noise, quantile) for quantile in quantiles)
    return Estimate(_without_noise(total, noise, 1.0), low, high), noise


def judge_draw_spread(draws: Draws, gates: Gates) -> Verdict | None:
    """Judge the spread by its bounds; None without such a gate."""
    bound = gates.max_draw_spread
    if bound is None:
        return None
    return bounded(
        "draw_spread",
        draws.spread,
        bound,
        "at_most",
        draws.confidence,
        len(draws.drops),
        METHOD,
        figure,
        counted=DRAWS,
        settle=lambda: draws_to_settle(draws.spread.value, draws.noise, bound, draws.confidence),
    )


def draws_to_settle(spread: float, noise: float, bound: float, confidence: float) -> int | None:
    """Return the fewest draws whose bound would be on the right side, if they spread like this; None if 100 do not suffice.

    >>> draws_to_settle(0.005, 0.0, 0.01, 0.95), draws_to_settle(0.02, 0.0, 0.01, 0.95), draws_to_settle(0.01, 0.0, 0.01, 0.95)
    (7, 3, None)
    """
    passes = spread < bound
    total = spread**2 + noise**2
    for count in range(3, MOST_DRAWS + 1):
        # `chdtri` takes the probability above the quantile.
        quantile = float(chdtri(count - 1, confidence if passes else 1 - confidence)) / (count - 1)
        end = _without_noise(total, noise, quantile)
        if end <= bound if passes else end > bound:
            return count
    return None


def _without_noise(total: float, noise: float, quantile: float) -> float:
    return math.sqrt(max(0.0, total / quantile - noise**2))

"""How often the bounds of p99 are below the truth, for requests with a slow tail.

`python benchmarks/percentile_errors.py [COMPARISONS]` prints a table in Markdown. Requests are simulated: a launch differs from
the others by 2 %, a request by 5 %, and a slow one takes 1.5 times as long. A bound is nominally right in 95 % of the
comparisons. quantgate's interval takes the percentile of each launch; the alternative is the jackknife that leaves one launch
out of the pooled requests.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.measure.latency.ratio import students_quantile, tail_of

LAUNCHES, REQUESTS, CONFIDENCE, QUANTILE = 6, 662, 0.95, 0.99
BETWEEN_LAUNCHES, BETWEEN_REQUESTS, SLOWER, SLOW_SHARE, BURST = 0.02, 0.05, 1.5, 0.03, 10
# Requests whose percentile stands for the truth.
MANY = 4_000_000
Times = NDArray[np.float64]
Slow = Callable[[np.random.Generator, int], NDArray[np.bool_]]


def in_bursts(rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
    starts = rng.random(-(-count // BURST)) < SLOW_SHARE
    return np.repeat(starts, BURST)[:count]


KINDS: dict[str, Slow] = {
    "none": lambda _, count: np.zeros(count, bool),
    "3 % of all": lambda rng, count: rng.random(count) < SLOW_SHARE,
    "2 % to 4 %, by launch": lambda rng, count: rng.random(count) < rng.uniform(0.02, 0.04),
    "3 %, in bursts of ten": in_bursts,
}


def launch(rng: np.random.Generator, slow: Slow, count: int, spread: float = BETWEEN_LAUNCHES) -> Times:
    """Times of the requests of one launch."""
    times: Times = np.exp(rng.normal(rng.normal(0.0, spread), BETWEEN_REQUESTS, count))
    return np.where(slow(rng, count), times * SLOWER, times)


def truth(slow: Slow) -> float:
    """The percentile that launches have on average: many launches of many requests, without their differences."""
    rng = np.random.default_rng(1)
    each = [np.quantile(launch(rng, slow, MANY // 40, 0.0), QUANTILE) for _ in range(40)]
    return float(np.exp(np.mean(np.log(each))))


def jackknife_bound(of: Callable[[Sequence[int]], float]) -> float:
    """The upper bound by leaving one launch out of the pooled requests."""
    whole = math.log(of(range(LAUNCHES)))
    left = [math.log(of([one for one in range(LAUNCHES) if one != out])) for out in range(LAUNCHES)]
    pseudo = LAUNCHES * whole - (LAUNCHES - 1) * np.array(left)
    half = students_quantile(CONFIDENCE, LAUNCHES - 1) * pseudo.std(ddof=1) / math.sqrt(LAUNCHES)
    return math.exp(float(pseudo.mean()) + half)


def pooled(launches: Sequence[Times]) -> Callable[[Sequence[int]], float]:
    return lambda which: float(np.quantile(np.concatenate([launches[one] for one in which]), QUANTILE))


def errors(slow: Slow, comparisons: int) -> list[float]:
    """Shares of bounds below the truth: ratio and ms of the product, of the jackknife, and of it with 666 requests in all."""
    rng = np.random.default_rng(0)
    real, wrong = truth(slow), np.zeros(6)
    for _ in range(comparisons):
        variant = [launch(rng, slow, REQUESTS) for _ in range(LAUNCHES)]
        baseline = [launch(rng, slow, 2 * REQUESTS) for _ in range(LAUNCHES)]
        tail = tail_of(baseline, variant, QUANTILE, CONFIDENCE)
        assert tail.ratio and tail.ms and tail.ratio.high and tail.ms.high
        found = [tail.ratio.high < 1.0, tail.ms.high < real]
        for count in (REQUESTS, 111):
            after, before = pooled([one[:count] for one in variant]), pooled([one[: 2 * count] for one in baseline])
            found += [jackknife_bound(lambda w: after(w) / before(w)) < 1.0, jackknife_bound(after) < real]  # noqa: B023  # called at once
        wrong += found
    return list(wrong / comparisons)


def main(comparisons: int) -> None:
    print(f"Upper bounds of p99 below the truth, nominally {1 - CONFIDENCE:.0%}; {comparisons} comparisons a row.\n")
    print(
        f"| slow requests | ratio, ms: launches of {REQUESTS} requests | jackknife of as many | jackknife of 666 in all |"
    )
    print("|---|---|---|---|")
    for name, slow in KINDS.items():
        shares = [f"{share:.1%}".replace("%", " %") for share in errors(slow, comparisons)]
        pairs = [", ".join(shares[index : index + 2]) for index in (0, 2, 4)]
        print(f"| {name} | {' | '.join(pairs)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)

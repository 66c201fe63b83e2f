"""Simulated drops of known truth: what a variant loses, sample by sample, for some kinds of metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validators.gates.intervals import drop_interval, paired_interval
from validators.records.measurements import Estimate

Floats = NDArray[np.float64]
# An estimate of the drop with its method, from so many samples with this true drop.
Draw = Callable[[np.random.Generator, int, float], tuple[Estimate, str]]
CONFIDENCE = 0.95
# Texts of which an error rate is made: words in each, errors a word, and share of texts that change either way.
WORDS, ERRORS_A_WORD, CHANGED = (3, 30), 0.1, 0.1


@dataclass(frozen=True)
class Kind:
    """A kind of metric: its name, the title of its picture, how drops are drawn, and for which numbers of samples."""

    name: str
    title: str
    draw: Draw
    sizes: tuple[int, ...] = (200, 500, 1000, 2000, 5000)


def flips(share: float) -> Callable[[np.random.Generator, int, float], Floats]:
    """Right and wrong: `share` of the samples flip, either way alike, besides those that are lost; shape `(n,)`."""

    def drops(rng: np.random.Generator, n: int, drop: float) -> Floats:
        odds = [share / 2 + drop, share / 2, 1 - share - drop]
        return rng.choice([1.0, -1.0, 0.0], n, p=odds)

    return drops


def squared_errors(rng: np.random.Generator, n: int, drop: float) -> Floats:
    """Squared errors of heavy-tailed errors (Student, 5 degrees) that get noise of changing size, moved to a mean of `drop`."""
    error = rng.standard_t(5, n)
    scale, spread = 0.1, 0.7
    noise = scale * rng.lognormal(0, spread, n) * rng.normal(size=n)
    return np.asarray(2 * error * noise + noise**2 - scale**2 * np.exp(2 * spread**2) + drop)


def few_change(rng: np.random.Generator, n: int, drop: float) -> Floats:
    """In 4 % of the samples something changes, by an exponential amount of mean 0.5, more often for the worse."""
    odds = [0.02 + drop / 0.5, 0.02, 0.96 - drop / 0.5]
    return np.asarray(rng.choice([1.0, -1.0, 0.0], n, p=odds) * rng.exponential(0.5, n))


def error_rates(rng: np.random.Generator, n: int, drop: float) -> tuple[Floats, Floats]:
    """Rows of (errors, words) of texts before and after: some gain errors, as many lose them, a fifth loses besides."""
    words = rng.integers(*WORDS, n).astype(np.float64)
    before = rng.poisson(ERRORS_A_WORD * words).astype(np.float64)
    half = ERRORS_A_WORD / 2
    mended = (rng.random(n) < CHANGED) * rng.binomial(before.astype(int), 0.5)
    broken = (rng.random(n) < CHANGED) * rng.poisson(half * words)
    lost = (rng.random(n) < 0.2) * rng.poisson(drop / 0.2 * words)
    return np.stack([before, words], axis=1), np.stack([before - mended + broken + lost, words], axis=1)


def error_rate_drop(before: Floats, after: Floats) -> float:
    """By how much the errors by words have risen."""
    return float(after[:, 0].sum() / after[:, 1].sum() - before[:, 0].sum() / before[:, 1].sum())


def _of_mean(drops: Callable[[np.random.Generator, int, float], Floats]) -> Draw:
    return lambda rng, n, drop: drop_interval(drops(rng, n, drop), CONFIDENCE)


def _of_ratio(rng: np.random.Generator, n: int, drop: float) -> tuple[Estimate, str]:
    return paired_interval(*error_rates(rng, n, drop), error_rate_drop, CONFIDENCE, seed=0)


KINDS = (
    Kind("flips 2 %", "right or wrong, 2 % flip", _of_mean(flips(0.02))),
    Kind("flips 5 %", "right or wrong, 5 % flip", _of_mean(flips(0.05))),
    Kind("flips 10 %", "right or wrong, 10 % flip", _of_mean(flips(0.10))),
    Kind("squared errors", "squared errors, heavy tails", _of_mean(squared_errors)),
    Kind("few change", "4 % change, by skewed amounts", _of_mean(few_change)),
    Kind("error rate", "errors a word (a ratio)", _of_ratio, (200, 1000)),
)

# For the comparison of methods: one draw of drops, and its mean. All but the first are skewed to the worse side.
SKEWED: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "exponential": (lambda rng, n: rng.exponential(size=n), 1.0),
    "log-normal": (lambda rng, n: rng.lognormal(size=n), float(np.exp(0.5))),
    "squared errors": (lambda rng, n: squared_errors(rng, n, 0.0), 0.0),
    "5 % exponential, else 0": (lambda rng, n: (rng.random(n) < 0.05) * rng.exponential(size=n), 0.05),
}

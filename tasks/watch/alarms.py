"""Conclusions from repeated looks at a champion: accumulated evidence, alarms, and decisions.

A test at a fixed level, repeated every hour, raises a false alarm sooner or later. Here each look gives an e-value: a number
that averages at most 1 while a bound holds, whatever happened before. A running product of e-values, restarted when it falls
below 1, is an e-detector. While the bound holds, it takes c looks or more on average to reach c, and reaches c within n looks
with a probability of at most n / c (J. Shin, A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework for sequential
change detection", The New England Journal of Statistics in Data Science 2, 2024, there the CUSUM type).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from validators.job.job_watch import Action, Watch

Kind = Literal["drift", "saturation", "disagreement"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Stakes, as shares of the largest that cannot lose everything. Small ones detect small excesses, large ones rare large values.
STAKES: NDArray[np.float64] = 0.9 / 2.0 ** np.arange(8, dtype=np.float64)
# Assumed probability that a look without drift shows a sign of it; `benchmarks/watch_false_alarms.py` measures it.
DRIFT_BY_CHANCE = 0.01
# Stake on one yes or no per look: three in a row give 50^3.
DRIFT_STAKES: NDArray[np.float64] = np.array([0.5])


@dataclass(frozen=True)
class Signal:
    """The result of one look at one bound: the figure, the bound, the log e-value, and a note in words."""

    kind: Kind
    value: float
    bound: float
    log_evidence: float
    note: str = ""


@dataclass(frozen=True)
class Memory:
    """State carried from look to look at one champion: the number of looks, and the log evidence by kind of alarm."""

    looks: int = 0
    log_evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Alarm:
    """A bound that is violated with sufficient evidence, and the last figure."""

    kind: Kind
    value: float
    bound: float
    note: str


@dataclass(frozen=True)
class Decision:
    """The decision on alarms: at most one action, for one of them."""

    action: Action | None
    alarm: Alarm | None
    reason: str


@dataclass(frozen=True)
class Observation:
    """The outcome of one look at the champion of a job.

    `nothing` means that there was too little to look at, or nothing, as `reason` says; `error` that the look failed. `evidence`
    is the log evidence by kind of alarm. `action` says what was done. `notes` say what was skipped or could not be measured.
    """

    job: str
    outcome: Literal["quiet", "alarm", "nothing", "error"]
    reason: str
    version: str = ""
    candidate: str = ""
    samples: int = 0
    looks: int = 0
    signals: tuple[Signal, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    action: str = ""
    notes: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def told(self) -> str:
        """Summary of the look in one sentence.

        >>> Observation("fraud", "quiet", "", version="3", samples=200).told
        'quiet: version 3, 200 samples'
        """
        parts = [f"version {self.version}" if self.version else "", f"{self.samples} samples" if self.samples else ""]
        parts += [f"{alarm.kind}: {alarm.note}" for alarm in self.alarms]
        parts += [self.reason if self.reason not in {alarm.note for alarm in self.alarms} else "", self.action]
        return f"{self.outcome}: {', '.join(part for part in parts if part)}"


def weigh(values: NDArray[np.floating[Any]], bound: float, stakes: NDArray[np.float64] = STAKES) -> float:
    """Return the log e-value of independent values (shape `(n,)`, each from 0 to 1) against a mean of at most `bound`.

    The e-value is the mean over stakes s of the product of 1 + s / bound * (value - bound): the capital of bets on values above
    the bound (I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", J. R. Statist. Soc. B
    86, 2024, section 4). Each factor averages at most 1 while the bound holds, whatever the distribution. `stakes` has shape
    `(k,)`.

    >>> round(math.exp(weigh(np.array([1.0]), 0.01, np.array([0.5]))), 2)  # 1 + 50 * 0.99
    50.5
    """
    bets = stakes[:, None] / bound
    capital = np.log1p(bets * (np.asarray(values, np.float64)[None, :] - bound)).sum(axis=1)
    return float(logsumexp(capital) - math.log(len(stakes)))


def weigh_columns(values: NDArray[np.floating[Any]], bounds: NDArray[np.float64]) -> float:
    """Return the log of the mean e-value of columns (shape `(n, k)`) against all `bounds` (shape `(k,)`) holding.

    A mean of e-values is an e-value, however the columns depend on each other.
    """
    each = [weigh(values[:, place], float(bound)) for place, bound in enumerate(bounds)]
    return float(logsumexp(each) - math.log(len(each)))


def log_threshold(watch: Watch) -> float:
    """Return the log evidence that raises an alarm: the kinds share the error that the job allows."""
    return math.log(len(KINDS) * watch.looks_between_false_alarms)


def remember(memory: Memory, signals: Sequence[Signal], watch: Watch) -> Memory:
    """Return the memory after one more look. A kind without a signal keeps its evidence.

    One look adds at most its share of the threshold; truncated, an e-value remains an e-value. Evidence is capped at the
    threshold, so that an alarm ends when its cause does.
    """
    top = log_threshold(watch)
    kept = dict(memory.log_evidence)
    for signal in signals:
        added = min(signal.log_evidence, top / watch.looks)
        kept[signal.kind] = min(max(kept.get(signal.kind, 0.0), 0.0) + added, top)
    return Memory(memory.looks + 1, kept)


def find_alarms(memory: Memory, signals: Sequence[Signal], watch: Watch) -> tuple[Alarm, ...]:
    """Return an alarm for each signal of the last look whose kind's evidence has reached the threshold."""
    # Sums of shares may miss the threshold by rounding.
    top = log_threshold(watch) - 1e-9
    return tuple(
        Alarm(signal.kind, signal.value, signal.bound, signal.note)
        for signal in signals
        if memory.log_evidence.get(signal.kind, 0.0) >= top
    )


def decide(alarms: Sequence[Alarm], watch: Watch, *, predecessor: str | None) -> Decision:
    """Decide on the alarms: a rollback takes precedence over a re-quantization, and excludes it.

    Without a predecessor a rollback is impossible, and the alarm is only reported.
    """
    asked = {alarm.kind: watch.on_disagreement if alarm.kind == "disagreement" else watch.on_drift for alarm in alarms}
    for action in ("rollback", "requantize", "report"):
        for alarm in alarms:
            if asked[alarm.kind] != action:
                continue
            if action == "rollback" and predecessor is None:
                return Decision("report", alarm, "no version to roll back to: the champion has no predecessor")
            return Decision(action, alarm, alarm.note)
    return Decision(None, None, "")

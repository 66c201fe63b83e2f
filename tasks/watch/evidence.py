"""What repeated looks at a champion conclude: evidence that is carried from look to look, alarms, what to do about them.

A test at a fixed level that is repeated every hour raises a false alarm sooner or later. Here each look gives an e-value: a
number that is 1 or less on average as long as a bound holds, however the bound came to hold before. A running product of
them, started anew whenever it falls below 1, is an e-detector: it reaches a height c after c looks or more on average (J. Shin,
A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", The New England Journal of
Statistics in Data Science 2, 2024, there as the CUSUM type), and within n looks with a probability of n / c at most.
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
# Stakes as shares of the largest that cannot lose all: small ones notice small excesses, large ones rare and large values.
STAKES: NDArray[np.float64] = 0.9 / 2.0 ** np.arange(8, dtype=np.float64)
# Chance that a look has a sign of drift while there is none; what it really is: `benchmarks/watch_false_alarms.py`.
DRIFT_BY_CHANCE = 0.01
# Of one yes or no a look: three in a row make 50^3.
DRIFT_STAKES: NDArray[np.float64] = np.array([0.5])


@dataclass(frozen=True)
class Signal:
    """What one look says of one bound: the figure seen, what it should have been, its log e-value, the same in words."""

    kind: Kind
    value: float
    bound: float
    log_evidence: float
    note: str = ""


@dataclass(frozen=True)
class Memory:
    """What is carried from look to look of one champion: how many there were, and the log evidence by kind of alarm."""

    looks: int = 0
    log_evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Alarm:
    """A bound that is passed beyond doubt, and the last figure seen."""

    kind: Kind
    value: float
    bound: float
    note: str


@dataclass(frozen=True)
class Decision:
    """What is done about alarms: one action at most, for one of them."""

    action: Action | None
    alarm: Alarm | None
    reason: str


@dataclass(frozen=True)
class Looked:
    """What one look at the champion of a job came to.

    `nothing`: there was nothing to look at, or too little, and `reason` says what; `error`: the look failed. `evidence` is
    by kind of alarm, as logarithm; `action` is what was done, in words; `notes` say what was left out or could not be
    measured.
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
        """The look in a sentence.

        >>> Looked("fraud", "quiet", "", version="3", samples=200).told
        'quiet: version 3, 200 samples'
        """
        parts = [f"version {self.version}" if self.version else "", f"{self.samples} samples" if self.samples else ""]
        parts += [f"{alarm.kind}: {alarm.note}" for alarm in self.alarms]
        parts += [self.reason if self.reason not in {alarm.note for alarm in self.alarms} else "", self.action]
        return f"{self.outcome}: {', '.join(part for part in parts if part)}"


def weigh(values: NDArray[np.floating[Any]], bound: float, stakes: NDArray[np.float64] = STAKES) -> float:
    """The log e-value of independent values (shape `(n,)`, each from 0 to 1) against: their mean is at most `bound`.

    The mean over some stakes s of the product of 1 + s / bound * (value - bound): a capital that is bet on values above the
    bound (I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", J. R. Statist. Soc. B
    86, 2024, section 4). Each factor is 1 at most on average while the bound holds, whatever the distribution.

    >>> round(math.exp(weigh(np.array([1.0]), 0.01, np.array([0.5]))), 2)  # 1 + 50 * 0.99
    50.5
    """
    bets = stakes[:, None] / bound
    capital = np.log1p(bets * (np.asarray(values, np.float64)[None, :] - bound)).sum(axis=1)
    return float(logsumexp(capital) - math.log(len(stakes)))


def weigh_columns(values: NDArray[np.floating[Any]], bounds: NDArray[np.float64]) -> float:
    """The log of the mean e-value of several columns (shape `(n, k)`) with a bound each: against that all of them hold.

    A mean of e-values is one, however the columns depend on each other.
    """
    each = [weigh(values[:, place], float(bound)) for place, bound in enumerate(bounds)]
    return float(logsumexp(each) - math.log(len(each)))


def log_threshold(watch: Watch) -> float:
    """The log evidence that is an alarm: the error that the job allows is shared among the kinds."""
    return math.log(len(KINDS) * watch.looks_between_false_alarms)


def remember(memory: Memory, signals: Sequence[Signal], watch: Watch) -> Memory:
    """The memory after one more look. A kind that the look says nothing of keeps its evidence.

    One look adds no more than its part of the threshold, which keeps its e-value one; and evidence ends at the threshold, so
    that an alarm ends when what it was about is over.
    """
    top = log_threshold(watch)
    kept = dict(memory.log_evidence)
    for signal in signals:
        added = min(signal.log_evidence, top / watch.looks)
        kept[signal.kind] = min(max(kept.get(signal.kind, 0.0), 0.0) + added, top)
    return Memory(memory.looks + 1, kept)


def find_alarms(memory: Memory, signals: Sequence[Signal], watch: Watch) -> tuple[Alarm, ...]:
    """The kinds whose evidence has reached the threshold, of those that the last look spoke of."""
    # Sums of the parts may miss it by rounding.
    top = log_threshold(watch) - 1e-9
    return tuple(
        Alarm(signal.kind, signal.value, signal.bound, signal.note)
        for signal in signals
        if memory.log_evidence.get(signal.kind, 0.0) >= top
    )


def decide(alarms: Sequence[Alarm], watch: Watch, *, predecessor: str | None) -> Decision:
    """What to do about the alarms: a rollback goes before a re-quantization, and there is never both.

    Without a predecessor there is nothing to roll back to, and the alarm is all.
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

"""Pairs of blocks, one of each side, measured again while they are disturbed or disagree with the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.disturbance import BlockConditions, DisturbanceWatch, why_disturbed
from tasks.measure.latency.nvml import NvmlGpu
from tasks.measure.latency.patience import RunPatience
from tasks.measure.latency.process import Block, Kind, Worker
from tasks.measure.latency.ratio import Samples
from validators.deadline import check_deadline

if TYPE_CHECKING:
    from validators.job.job_measurement import Measurement

# Attempts per pair of blocks that disagrees with the others, and least attempts per pair on a busy machine.
TRIES = 3
# A pair disagrees if its log ratio is farther from the median than this, and than this many spreads.
JUMP = 0.25
JUMP_SPREADS = 6.0
# A block disagrees if its log median is farther from its side's median within the launch than this, and than this many
# spreads. A neighbour on the sibling hyperthread leaves at least half a core: that slows both sides, and counts as noise.
SHIFT = math.log(2)
SHIFT_SPREADS = 3.0
_SIGMA_PER_MAD = 1.4826  # for a normal distribution
_SIGMA_PER_IQR = 0.7413
# Warm-up ends after this many pieces in a row whose medians agree within the tolerance.
WARM_PIECES = 3
WARM_TOLERANCE = 0.1
PIECE_SECONDS, PIECE_COUNT = 0.03, 3


@dataclass(frozen=True)
class Pair:
    """A block of the baseline and one of the variant, with the conditions of the machine during each."""

    baseline: Block
    variant: Block
    conditions: tuple[BlockConditions, BlockConditions]

    @property
    def sides(self) -> tuple[Block, Block]:
        """Both blocks, the baseline's first."""
        return self.baseline, self.variant

    @property
    def ratio(self) -> float:
        """Speedup of the variant over the baseline."""
        return self.baseline.value_ms / self.variant.value_ms


@dataclass(frozen=True)
class Launch:
    """The pairs of one kind from one launch; `disturbance` gives the reason if its figures cannot be trusted.

    `pairs` holds the last measurement of each pair, for medians of ratios. `replaced` holds, by index, the first undisturbed
    measurement of each pair that disagreed with the others and was measured again.
    """

    pairs: list[Pair]
    repeated: int
    disturbance: str
    replaced: dict[int, Pair] = field(default_factory=dict)

    @property
    def first(self) -> list[Pair]:
        """First undisturbed measurement of each pair, for percentiles, means and energy: repeats would hide slow phases."""
        return [self.replaced.get(index, pair) for index, pair in enumerate(self.pairs)]

    @property
    def everything(self) -> list[Pair]:
        """Every pair that a figure reads."""
        return [*self.pairs, *self.replaced.values()]


def measure_pair(
    workers: tuple[Worker, Worker],
    order: tuple[int, int],
    measurement: Measurement,
    kind: Kind,
    gpu: NvmlGpu | None,
    mix: int,
) -> Pair:
    """Measure a block of each worker, in the given order, in whole rounds of the first `mix` requests.

    Raises:
        CandidateRefused: `infrastructure`: the deadline has passed.
    """
    check_deadline()
    blocks: dict[int, Block] = {}
    conditions: dict[int, BlockConditions] = {}
    for index in order:
        watch = DisturbanceWatch(workers[index].pid, gpu, workers[index].cpus)
        blocks[index] = workers[index].block(measurement.block_seconds, measurement.block_count, kind, mix)
        conditions[index] = watch.conditions()
    return Pair(blocks[0], blocks[1], (conditions[0], conditions[1]))


def measure_launch(
    measure: Callable[[int], Pair],
    measurement: Measurement,
    earlier: Sequence[Sequence[float]] = (),
    patience: RunPatience | None = None,
    cores: int = 0,
) -> Launch:
    """Measure as many pairs as the job asks for, until none is disturbed and all agree.

    `measure(index)` measures the pair of that index again. `earlier` holds the ratios of earlier launches, `cores` is the
    number of processors that the sides use (0: all usable ones). A disturbed pair is measured again while there is
    `patience`, and at least `TRIES` times. Then the launch ends as disturbed: a busy machine does not slow both sides alike
    (2.4 instead of 1.6 was seen), so averaging cannot correct it. A pair that disagrees with the others is measured `TRIES`
    times at most; one that still disagrees counts, since then the processes differ, as the interval over launches shows.
    Its first measurement is kept in `Launch.replaced`, since a model may have slow phases of its own.
    """
    pairs: list[Pair] = []
    replaced: dict[int, Pair] = {}
    patience = patience or RunPatience(0.0)
    tries = [0] * measurement.blocks

    def attempt(index: int) -> tuple[Pair, str]:
        disturbed = 0
        while True:
            started = time.monotonic()
            pair, reason = measure(index), ""
            tries[index] += 1
            if measurement.max_other_load is not None:
                reason = why_disturbed(pair.conditions, measurement.max_other_load * (cores or usable_cores()))
            disturbed += 1
            if not reason or not (patience.wait(disturbed, reason, time.monotonic() - started) or disturbed < TRIES):
                return pair, reason

    def ended(reason: str, index: int = 0) -> Launch:
        busy = f" ({patience.busy})" if patience.busy else ""
        told = f"{reason}{busy}, in {tries[index]} tries" if reason else ""
        return Launch(pairs, sum(tries) - len(pairs), told, replaced)

    for index in range(measurement.blocks):
        pair, reason = attempt(index)
        pairs.append(pair)
        if reason:
            return ended(reason, index)
    for _ in range(TRIES - 1 if measurement.max_other_load is not None else 0):
        odd = odd_pairs(pairs, earlier)
        if not odd:
            break
        for index in odd:
            replaced.setdefault(index, pairs[index])
            pairs[index], reason = attempt(index)
            if reason:
                return ended(reason, index)
    return ended("")


def odd_pairs(pairs: Sequence[Pair], earlier: Sequence[Sequence[float]] = ()) -> list[int]:
    """Return the indices of the pairs of a launch that disagree with the others, in order."""
    logs = np.log([pair.ratio for pair in pairs])
    everything = np.concatenate([logs, *(np.log(ratios) for ratios in earlier)])
    away = np.abs(logs - np.median(everything))
    allowed = max(JUMP, JUMP_SPREADS * _SIGMA_PER_MAD * float(np.median(np.abs(everything - np.median(everything)))))
    odd = away > allowed
    for blocks in ([one.baseline for one in pairs], [one.variant for one in pairs]):
        medians = np.array([block.value_ms for block in blocks])
        allowed = max(SHIFT, SHIFT_SPREADS * max(relative_spread(block) for block in blocks))
        odd |= np.abs(np.log(medians / np.median(medians))) > allowed
    return [int(index) for index in np.flatnonzero(odd)]


def relative_spread(block: Block) -> float:
    """Return the spread of a block's requests (from quartiles) over their median; 0 for throughput blocks."""
    if block.kind == "throughput":
        return 0.0
    low, high = np.quantile(block.samples, [0.25, 0.75])
    return float(_SIGMA_PER_IQR * (high - low) / np.median(block.samples))


@dataclass(frozen=True)
class WarmUp:
    """Duration of the warm-up, and whether request times were stable at its end."""

    seconds: float
    stable: bool


def warm_up(block: Callable[[float, int], Samples], minimum_seconds: float, limit_seconds: float) -> WarmUp:
    """Make requests that are not counted, until the medians of successive short pieces agree within 10 %.

    `block(seconds, count)` makes requests and returns their times, float64 `(n,)` in milliseconds. The warm-up lasts at least
    `minimum_seconds` and ends after `limit_seconds`, stable or not. A rising clock, page faults and the runtime's caches all
    show in the first pieces.
    """
    medians: list[float] = []
    spent = 0.0
    while True:
        samples = block(PIECE_SECONDS, PIECE_COUNT)
        medians.append(float(np.median(samples)))
        spent += float(samples.sum()) / 1e3
        last = medians[-WARM_PIECES:]
        stable = len(last) == WARM_PIECES and max(last) <= (1 + WARM_TOLERANCE) * min(last)
        if (stable and spent >= minimum_seconds) or spent >= max(minimum_seconds, limit_seconds):
            return WarmUp(spent, stable)

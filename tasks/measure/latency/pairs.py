"""Pairs of blocks, one of each side: measured again while disturbed, and found to disagree with the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.disturbance import BlockConditions, DisturbanceWatch, why_disturbed
from tasks.measure.latency.nvml import NvmlGpu
from tasks.measure.latency.process import Block, Kind, Worker
from tasks.measure.latency.ratio import Samples
from validators.deadline import check_deadline
from validators.job.job_measurement import Measurement

# How often a pair of blocks is measured before the machine is given up.
TRIES = 3
# Seconds before the second and the third: what disturbs is often a matter of moments.
PAUSES_SECONDS = (0.5, 2.0)
# A pair disagrees when its logarithm of the ratio is farther from the median than this, and than so many of the spreads.
JUMP = 0.25
JUMP_SPREADS = 6.0
# A block disagrees when the logarithm of its median is farther from its side's within the launch than this, and than so many
# of the spreads. A neighbour on the other half of a core leaves at least half of it: that slows both sides, and is noise.
SHIFT = math.log(2)
SHIFT_SPREADS = 3.0
_SIGMA_PER_MAD = 1.4826  # of a normal distribution
_SIGMA_PER_IQR = 0.7413
# Warm-up: this many pieces of this length in a row whose medians differ by no more than the tolerance.
WARM_PIECES = 3
WARM_TOLERANCE = 0.1
PIECE_SECONDS, PIECE_COUNT = 0.03, 3


@dataclass(frozen=True)
class Pair:
    """A block of the baseline and one of the variant with what the machine did meanwhile."""

    baseline: Block
    variant: Block
    conditions: tuple[BlockConditions, BlockConditions]

    @property
    def ratio(self) -> float:
        """How many times faster the variant is."""
        return self.baseline.value_ms / self.variant.value_ms


@dataclass(frozen=True)
class Launch:
    """The pairs of one kind from one launch; `disturbance` says why the last of them is not to be judged by."""

    pairs: list[Pair]
    repeated: int
    disturbance: str


def measure_pair(
    workers: tuple[Worker, Worker],
    order: tuple[int, int],
    measurement: Measurement,
    kind: Kind,
    gpu: NvmlGpu | None,
    mix: int,
) -> Pair:
    """Measure a block of each worker, in this order, both in whole rounds of the first `mix` requests.

    Raises:
        CandidateRefused: `infrastructure`: the deadline has passed.
    """
    check_deadline()
    blocks: dict[int, Block] = {}
    conditions: dict[int, BlockConditions] = {}
    for index in order:
        watch = DisturbanceWatch(workers[index].pid, gpu)
        blocks[index] = workers[index].block(measurement.block_seconds, measurement.block_count, kind, mix)
        conditions[index] = watch.conditions()
    return Pair(blocks[0], blocks[1], (conditions[0], conditions[1]))


def measure_launch(
    measure: Callable[[int], Pair],
    measurement: Measurement,
    earlier: Sequence[Sequence[float]] = (),
    pause: Callable[[float], None] = time.sleep,
) -> Launch:
    """As many pairs as the job asks for, of which none was disturbed and all agree.

    `measure(index)` gives the pair of that index anew; `earlier` are the ratios of the launches before. A pair that was
    disturbed or disagrees is measured again after a `pause` of some seconds; the first that is so in three tries ends the
    launch: a busy machine does not slow both sides alike (2.4 in place of 1.6 was seen), so that no average mends it.
    """
    pairs: list[Pair] = []
    tries = [0] * measurement.blocks

    def attempt(index: int) -> tuple[Pair, str]:
        while True:
            if tries[index]:
                pause(PAUSES_SECONDS[tries[index] - 1])
            pair, reason = measure(index), ""
            tries[index] += 1
            if measurement.max_other_load is not None:
                reason = why_disturbed(pair.conditions, measurement.max_other_load * usable_cores())
            if not reason or tries[index] >= TRIES:
                return pair, reason

    def ended(reason: str) -> Launch:
        told = f"{reason}, in each of {TRIES} tries" if reason else ""
        return Launch(pairs, sum(tries) - len(pairs), told)

    for index in range(measurement.blocks):
        pair, reason = attempt(index)
        pairs.append(pair)
        if reason:
            return ended(reason)
    while measurement.max_other_load is not None and (odd := why_odd(pairs, earlier)):
        for index, told in odd.items():
            if tries[index] >= TRIES:
                return ended(told)
            pairs[index], reason = attempt(index)
            if reason:
                return ended(reason)
    return ended("")


def why_odd(pairs: Sequence[Pair], earlier: Sequence[Sequence[float]] = ()) -> dict[int, str]:
    """Which pairs of a launch disagree with the others, and how."""
    odd: dict[int, str] = {}
    logs = np.log([pair.ratio for pair in pairs])
    everything = np.concatenate([logs, *(np.log(ratios) for ratios in earlier)])
    away = np.abs(logs - np.median(everything))
    allowed = max(JUMP, JUMP_SPREADS * _SIGMA_PER_MAD * float(np.median(np.abs(everything - np.median(everything)))))
    for index in np.flatnonzero(away > allowed).tolist():
        odd[index] = (
            f"a pair of blocks has the ratio {pairs[index].ratio:.2f} where the others have "
            f"{math.exp(float(np.median(everything))):.2f}"
        )
    for side, blocks in (("baseline", [p.baseline for p in pairs]), ("variant", [p.variant for p in pairs])):
        medians = np.array([block.value_ms for block in blocks])
        middle = float(np.median(medians))
        allowed = max(SHIFT, SHIFT_SPREADS * max(relative_spread(block) for block in blocks))
        for index in np.flatnonzero(np.abs(np.log(medians / middle)) > allowed).tolist():
            told = f"a block of the {side} took {medians[index]:.3g} ms a request where the others took {middle:.3g} ms"
            odd.setdefault(index, told)
    return odd


def relative_spread(block: Block) -> float:
    """The spread of a block's requests over their median, by quartiles; none for a throughput, whose samples are moments."""
    if block.kind == "throughput":
        return 0.0
    low, high = np.quantile(block.samples, [0.25, 0.75])
    return float(_SIGMA_PER_IQR * (high - low) / np.median(block.samples))


@dataclass(frozen=True)
class WarmUp:
    """How long requests went on before the first that counts, and whether their time was stable then."""

    seconds: float
    stable: bool


def warm_up(block: Callable[[float, int], Samples], minimum_seconds: float, limit_seconds: float) -> WarmUp:
    """Requests that do not count, until the medians of successive short pieces agree within 10 %.

    `block(seconds, count)` makes requests and returns milliseconds. They last `minimum_seconds` at least and end after
    `limit_seconds`, stable or not; a processor that raises its clock, pages that come in and caches of the runtime all
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

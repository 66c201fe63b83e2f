"""Record and raw sample file of a latency comparison, from its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.latency.disturbance import canary_ratio
from tasks.measure.latency.pairs import Launch, Pair, WarmUp
from tasks.measure.latency.process import Block, Kind
from tasks.measure.latency.ratio import Samples, central_ratio, percentile, ratio_estimate, tail_of
from validators.records.latencies import Conditions, EndToEnd, Latency, Tail, Throughput
from validators.records.measurements import Estimate

SIDES = ("baseline", "variant")
# Figures that other processes do not disturb.
STEADY = ("peak_memory_mb", "load_peak_memory_mb")


@dataclass
class LatencySide:
    """Figures that one contestant's processes report, by name, their warm-ups and priorities; one entry per launch."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    warm_ups: list[WarmUp] = field(default_factory=list)
    nice: list[int] = field(default_factory=list)


@dataclass
class Gathered:
    """All measurements so far."""

    sides: tuple[LatencySide, LatencySide] = field(default_factory=lambda: (LatencySide(), LatencySide()))
    launches: dict[Kind, list[Launch]] = field(default_factory=dict)
    mix: int = 0
    """Requests per round; 0 until it is known."""
    requests: int = 1
    """Number of these requests that latency is measured with."""

    @property
    def disturbance(self) -> str:
        """First disturbance of any launch, or "" if there was none."""
        found = [launch.disturbance for launches in self.launches.values() for launch in launches]
        return next((reason for reason in found if reason), "")

    def pairs(self, kind: Kind = "latency") -> Iterator[Pair]:
        """Yield the first undisturbed measurement of every pair of a kind, launch after launch."""
        for launch in self.launches.get(kind, []):
            yield from launch.first

    @property
    def everything(self) -> list[Pair]:
        """Every pair of every kind that a figure reads."""
        return [pair for launches in self.launches.values() for launch in launches for pair in launch.everything]

    def ratios(self, kind: Kind = "latency") -> list[list[float]]:
        """Return the ratio of every pair of a kind, of its last measurement, one list per launch."""
        return [[pair.ratio for pair in launch.pairs] for launch in self.launches.get(kind, [])]

    def samples(self, kind: Kind = "latency") -> tuple[Samples, Samples]:
        """Return the pooled samples of baseline and variant, each float64 `(n,)` in milliseconds."""
        pairs = list(self.pairs(kind))
        return (
            np.concatenate([pair.baseline.samples for pair in pairs]),
            np.concatenate([pair.variant.samples for pair in pairs]),
        )


def summarise(
    gathered: Gathered, *, batch_size: int, dims: dict[str, int], threads: int, confidence: float, samples_path: Path
) -> Latency:
    """Return the record of a comparison; a disturbed comparison has no bounds."""
    base, variant = gathered.samples()
    baseline_figures, figures = (side.figures for side in gathered.sides)
    ratios = dict(_ratios(gathered, confidence))
    energy = [_per_request(gathered.pairs(), index, "energy_j") for index in (0, 1)]
    return Latency(
        batch_size=batch_size,
        p50_ms=float(np.median(variant)),
        p95_ms=percentile(variant, 0.95),
        p99_ms=percentile(variant, 0.99),
        count=len(variant),
        baseline_p50_ms=float(np.median(base)),
        baseline_p95_ms=percentile(base, 0.95),
        baseline_p99_ms=percentile(base, 0.99),
        speedup=_estimate(gathered, gathered.ratios(), confidence),
        pairs=sum(1 for _ in gathered.pairs()),
        load_ms=float(np.median(figures["load_ms"])),
        peak_memory_mb=max(figures["peak_memory_mb"]),
        baseline_load_ms=float(np.median(baseline_figures["load_ms"])),
        baseline_peak_memory_mb=max(baseline_figures["peak_memory_mb"]),
        samples_path=samples_path,
        dims=dims,
        threads=threads,
        launches=len(gathered.launches["latency"]),
        load_peak_memory_mb=max(figures["load_peak_memory_mb"]),
        baseline_load_peak_memory_mb=max(baseline_figures["load_peak_memory_mb"]),
        load_ratio=ratios["load_ms"],
        memory_ratio=ratios["peak_memory_mb"],
        energy_ratio=ratios.get("energy_j"),
        ratios=ratios,
        throughput=_throughput(gathered, batch_size, confidence),
        end_to_end=_end_to_end(gathered, confidence),
        energy_mj=None if energy[1] is None else 1e3 * energy[1],
        baseline_energy_mj=None if energy[0] is None else 1e3 * energy[0],
        request_ms=_request_ms(gathered, 1, confidence),
        baseline_request_ms=_request_ms(gathered, 0, confidence),
        peak_gpu_memory_mb=_gpu_memory_mb(gathered, 1),
        baseline_peak_gpu_memory_mb=_gpu_memory_mb(gathered, 0),
        conditions=_conditions(gathered),
        disturbance=gathered.disturbance,
        requests=gathered.requests,
        p95=_tail(gathered, 0.95, confidence),
        p99=_tail(gathered, 0.99, confidence),
    )


def save(path: Path, gathered: Gathered) -> None:
    """Write raw samples with their block indices, the length of a round, and the conditions during each block.

    The last measurements of pairs that disagreed, which only the speedup reads, are written apart.
    """
    pairs = list(gathered.pairs())
    launches = gathered.launches["latency"]
    starts = np.cumsum([0, *(len(launch.pairs) for launch in launches)])
    again = {
        int(start) + index: launch.pairs[index]
        for start, launch in zip(starts, launches, strict=False)
        for index in launch.replaced
    }
    arrays: dict[str, NDArray[Any]] = {
        "launch": np.repeat(np.arange(len(launches)), [len(launch.pairs) for launch in launches]),
        "requests": np.array(gathered.requests),
    }
    for index, name in enumerate(SIDES):
        blocks = [pair.sides[index] for pair in pairs]
        conditions = [pair.conditions[index] for pair in pairs]
        arrays[name], arrays[f"{name}_block"] = _joined(dict(enumerate(blocks)))
        arrays[f"{name}_again"], arrays[f"{name}_again_block"] = _joined(
            {place: pair.sides[index] for place, pair in again.items()}
        )
        arrays[f"{name}_canary_ms"] = np.array([one.canary_ms for one in conditions])
        arrays[f"{name}_other_cores"] = np.array([one.other_cores + one.stolen_cores for one in conditions])
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle


def _joined(blocks: dict[int, Block]) -> tuple[Samples, NDArray[np.intp]]:
    """Return the samples of blocks, and the index of the block of each; both have shape `(n,)`."""
    samples = [block.samples for block in blocks.values()]
    places = np.fromiter(blocks, np.intp, len(blocks))
    return np.concatenate([np.zeros(0), *samples]), np.repeat(places, [len(one) for one in samples])


def _estimate(gathered: Gathered, ratios: list[list[float]], confidence: float) -> Estimate:
    # Bounds would claim a confidence that a disturbed figure does not have.
    return Estimate(central_ratio(ratios)) if gathered.disturbance else ratio_estimate(ratios, confidence)


def _tail(gathered: Gathered, quantile: float, confidence: float) -> Tail:
    launches = gathered.launches["latency"]
    baseline, variant = (
        [np.concatenate([pair.sides[index].samples for pair in launch.first]) for launch in launches]
        for index in (0, 1)
    )
    return tail_of(baseline, variant, quantile, confidence, is_disturbed=bool(gathered.disturbance))


def _ratios(gathered: Gathered, confidence: float) -> Iterator[tuple[str, Estimate]]:
    """Yield variant over baseline of each figure of the processes, and of each counter per request, by its name.

    Student's interval over launches; a counter that the machine does not report, or that stood still in a launch, gives none.
    """
    before, after = (side.figures for side in gathered.sides)
    for name in after:
        ratios = [[ours / theirs] for ours, theirs in zip(after[name], before[name], strict=True)]
        yield name, _over_launches(gathered, ratios, confidence, is_steady=name in STEADY)
    launches = gathered.launches["latency"]
    for name in launches[0].pairs[0].conditions[1].growths:
        spent = [[_per_request(launch.first, index, name) for index in (0, 1)] for launch in launches]
        # The counter of some devices moves in steps longer than a block.
        ratios = [[ours / theirs] for theirs, ours in spent if theirs and ours]
        if len(ratios) == len(launches):
            yield name, _over_launches(gathered, ratios, confidence)


def _over_launches(
    gathered: Gathered, values: list[list[float]], confidence: float, *, is_steady: bool = False
) -> Estimate:
    """Return Student's interval over launches; one launch gives none, nor does a disturbed comparison unless `is_steady`."""
    if len(values) == 1 or (gathered.disturbance and not is_steady):
        return Estimate(central_ratio(values))
    return ratio_estimate(values, confidence)


def _request_ms(gathered: Gathered, index: int, confidence: float) -> Estimate:
    """Return the mean time per request, of throughput if it was measured; Student's interval over launches, as of ratios."""
    launches = gathered.launches.get("throughput") or gathered.launches["latency"]
    times = []
    for launch in launches:
        blocks = [pair.sides[index] for pair in launch.first]
        times.append([sum(block.total_ms for block in blocks) / sum(len(block.samples) for block in blocks)])
    return _over_launches(gathered, times, confidence)


def _throughput(gathered: Gathered, batch_size: int, confidence: float) -> Throughput | None:
    pairs = list(gathered.pairs("throughput"))
    if not pairs:
        return None
    # Requests per second over all blocks.
    base, variant = (
        1e3 * sum(len(block.samples) for block in blocks) / sum(block.total_ms for block in blocks)
        for blocks in ([pair.baseline for pair in pairs], [pair.variant for pair in pairs])
    )
    ratio = _estimate(gathered, gathered.ratios("throughput"), confidence)
    return Throughput(pairs[0].variant.clients, variant, variant * batch_size, base, base * batch_size, ratio)


def _end_to_end(gathered: Gathered, confidence: float) -> EndToEnd | None:
    if not gathered.launches.get("end_to_end"):
        return None
    base, variant = gathered.samples("end_to_end")
    ratio = _estimate(gathered, gathered.ratios("end_to_end"), confidence)
    return EndToEnd(float(np.median(variant)), float(np.median(base)), ratio)


def _per_request(pairs: Iterable[Pair], index: int, counter: str) -> float | None:
    """Return the growth of a counter per request; None if the machine does not report it."""
    growth, requests = 0.0, 0
    for pair in pairs:
        if counter not in pair.conditions[index].growths:
            return None
        growth += pair.conditions[index].growths[counter]
        requests += len(pair.sides[index].samples)
    return growth / requests


def _gpu_memory_mb(gathered: Gathered, index: int) -> float | None:
    """Return the most GPU memory that a side's process held at the end of a block; None if the driver does not report it."""
    pairs = gathered.everything
    held = [pair.conditions[index].gpu_memory_mb for pair in pairs]
    return max((one for one in held if one is not None), default=None)


def _conditions(gathered: Gathered) -> Conditions:
    pairs = gathered.everything
    blocks = [conditions for pair in pairs for conditions in pair.conditions]
    clocks = [block.frequency_mhz for block in blocks if block.frequency_mhz is not None]
    throttled = [block.throttled for block in blocks if block.throttled is not None]
    warm_ups = [side.warm_ups for side in gathered.sides]
    return Conditions(
        other_cores=max(block.other_cores for block in blocks),
        stolen_cores=max(block.stolen_cores for block in blocks),
        canary_ratio=max(canary_ratio(pair.conditions) for pair in pairs),
        frequency_mhz=(min(clocks), max(clocks)) if clocks else None,
        throttled=sum(throttled) if throttled else None,
        major_faults=int(sum(block.growths["major_faults"] for block in blocks)),
        involuntary_switches=int(sum(block.growths["involuntary_switches"] for block in blocks)),
        repeated=sum(launch.repeated for launches in gathered.launches.values() for launch in launches),
        warmup_seconds=(max(one.seconds for one in warm_ups[0]), max(one.seconds for one in warm_ups[1])),
        warm=all(one.stable for side in warm_ups for one in side),
        quota_throttled_cores=max(block.quota_throttled_cores for block in blocks),
        nice=max(nice for side in gathered.sides for nice in side.nice),
    )

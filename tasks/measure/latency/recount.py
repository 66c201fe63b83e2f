"""A latency computed again from its raw times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tasks.measure.latency.ratio import central_ratio, percentile, ratio_estimate, tail_of
from validators.records.latencies import Latency
from validators.records.measurements import Estimate

# A job asks for at most 20; a race adds some.
MOST_LAUNCHES = 1000


def recount(latency: Latency, confidence: float) -> Latency:
    """Return a latency with the figures that its raw times give: percentiles, counts, and the speedup, with their bounds.

    Load times, memory, energy, throughput and conditions are not in that file, and stay as they were recorded; so does the
    disturbance, which leaves the speedup without bounds.

    Raises:
        ValueError, KeyError, OSError: the file is none of a comparison.
    """
    with np.load(latency.samples_path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    launch, base, variant = arrays["launch"], arrays["baseline"], arrays["variant"]
    if launch.ndim != 1 or launch.dtype.kind not in "iu" or set(np.unique(launch)) != set(range(_launches(launch))):
        raise ValueError("found no launch of each pair of blocks, a number from 0")
    medians = [_medians(arrays, side, len(launch)) for side in ("baseline", "variant")]
    ratios = medians[0] / medians[1]
    by_launch = [ratios[launch == index].tolist() for index in range(int(launch.max()) + 1)]
    disturbed = bool(latency.disturbance)
    speedup = Estimate(central_ratio(by_launch)) if disturbed else ratio_estimate(by_launch, confidence)
    before, after = (
        [arrays[side][np.isin(arrays[f"{side}_block"], np.flatnonzero(launch == one))] for one in range(len(by_launch))]
        for side in ("baseline", "variant")
    )
    p95, p99 = (tail_of(before, after, quantile, confidence, is_disturbed=disturbed) for quantile in (0.95, 0.99))
    return replace(
        latency,
        p50_ms=float(np.median(variant)),
        p95_ms=percentile(variant, 0.95),
        p99_ms=percentile(variant, 0.99),
        count=len(variant),
        baseline_p50_ms=float(np.median(base)),
        baseline_p95_ms=percentile(base, 0.95),
        baseline_p99_ms=percentile(base, 0.99),
        speedup=speedup,
        pairs=len(launch),
        launches=int(launch.max()) + 1,
        requests=int(arrays["requests"]),
        p95=p95 if latency.p95 else None,
        p99=p99 if latency.p99 else None,
    )


def _medians(arrays: dict[str, np.ndarray], side: str, count: int) -> np.ndarray:
    """Return the median of each of `count` blocks; blocks that were measured again count with their last measurement."""
    found = _by_block(arrays[side], arrays[f"{side}_block"])
    if sorted(found) != list(range(count)):
        raise ValueError(f"found blocks {sorted(found)[:5]}...; expected 0 to {count - 1}")
    # Files of earlier versions have no blocks that were measured again.
    again = _by_block(*(arrays.get(f"{side}_again{part}", np.zeros(0)) for part in ("", "_block")))
    return np.array([again.get(index, found[index]) for index in range(count)])


def _launches(launch: np.ndarray) -> int:
    """Return the number of launches, or 0 if there are more than any job asks for."""
    count = int(launch.max(initial=-1)) + 1
    return count if count <= MOST_LAUNCHES else 0


def _by_block(samples: np.ndarray, block: np.ndarray) -> dict[int, float]:
    """Return the median of each block, by its index, in time that grows with the samples alone."""
    if samples.ndim != 1 or samples.shape != block.shape or not (np.isfinite(samples) & (samples > 0)).all():
        raise ValueError("found times that are no positive numbers, one for each index of a block")
    ordered = samples[np.lexsort((samples, block))]
    index, first, count = np.unique(np.sort(block), return_index=True, return_counts=True)
    medians = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return dict(zip(map(int, index), medians.tolist(), strict=True))

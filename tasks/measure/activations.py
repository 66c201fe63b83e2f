"""Activations of a model on samples: the tensors that a quantizer would fix a range for, and one embedding per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.measure.taps import Taps
from tasks.ptq.calibrate.watched import WatchedSession, open_watched
from validators.calibration.model_view import Embeddings, ModelView, draw_rows, usable_rows
from validators.records.measurements import Clipping
from validators.records.run import SessionSettings
from validators.samples.datasets import Samples

# Memory limit for the watched tensors of one batch. Unlike in a plain run, all of them live until the batch is done.
WATCHED_BYTES = 200_000_000
MAX_BATCH_SIZE = 8


@dataclass(frozen=True)
class Ranges:
    """Least and greatest value of each watched tensor: float64 `(tensors,)`, NaN for a tensor without a range."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass
class Counts:
    """Counts of values outside given ranges, by watched tensor, int64 `(tensors,)`.

    `outside` counts values outside, `values` all values, `samples` the samples with a value outside. `rows` is the total
    number of samples.
    """

    outside: NDArray[np.int64]
    values: NDArray[np.int64]
    samples: NDArray[np.int64]
    rows: int = 0

    @classmethod
    def none(cls, tensors: int) -> Counts:
        """Return counts of zero."""
        return cls(np.zeros(tensors, np.int64), np.zeros(tensors, np.int64), np.zeros(tensors, np.int64))


@contextmanager
def open_tapped(
    model: Path, settings: SessionSettings, choose: Callable[[onnx.GraphProto], Taps]
) -> Iterator[ActivationWatch]:
    """Open a session of the model whose outputs are the tensors that `choose` finds in its graph.

    Raises:
        CandidateRefused: the runtime does not load the file.
    """
    taps = choose(onnx.load(model, load_external_data=False).graph)
    tensors = [*(tap.tensor for tap in taps.watched), taps.representation]
    with open_watched(model, tensors, settings) as watched:
        yield ActivationWatch(watched, taps)


class ActivationWatch:
    """Session that exposes the tapped tensors, with statistics of them."""

    def __init__(self, watched: WatchedSession, taps: Taps) -> None:
        self.taps = taps
        self._watched = watched

    def ranges(self, samples: Samples, rows: NDArray[np.intp], fixed_batch: int | None) -> tuple[Ranges, Vectors]:
        """Return the extremes of each watched tensor over the given rows, and one vector per sample, float32 `(n, features)`.

        Raises:
            CandidateRefused: `invalid`: the runtime fails on the samples.
        """
        low = np.full(len(self.taps.watched), np.inf)
        high = np.full(len(self.taps.watched), -np.inf)
        vectors = []
        for size, tensors in self._run(samples, rows, fixed_batch):
            for place, tap in enumerate(self.taps.watched):
                values = _finite(tensors[tap.tensor])
                if values.size:
                    low[place] = min(low[place], float(values.min()))
                    high[place] = max(high[place], float(values.max()))
            vectors.append(_pool(tensors[self.taps.representation], size, self.taps.channel_axis))
        seen = low <= high
        return Ranges(np.where(seen, low, np.nan), np.where(seen, high, np.nan)), np.concatenate(vectors)

    def count_outside(
        self, samples: Samples, rows: NDArray[np.intp], fixed_batch: int | None, ranges: Iterable[Ranges]
    ) -> tuple[list[Counts], Vectors]:
        """Count the values outside each of `ranges` in one pass over the given rows.

        Return the counts of each of `ranges`, and one vector per sample, float32 `(n, features)`.

        Raises:
            CandidateRefused: `invalid`: the runtime fails on the samples.
        """
        asked = list(ranges)
        counts = [Counts.none(len(self.taps.watched)) for _ in asked]
        vectors = []
        for size, tensors in self._run(samples, rows, fixed_batch):
            for place, tap in enumerate(self.taps.watched):
                values = tensors[tap.tensor]
                least, most = (values.min(), values.max()) if values.size else (0.0, 0.0)
                for range_, count in zip(asked, counts, strict=True):
                    _count(values, size, float(least), float(most), range_, place, count)
            for count in counts:
                count.rows += size
            vectors.append(_pool(tensors[self.taps.representation], size, self.taps.channel_axis))
        return counts, np.concatenate(vectors)

    def shares_outside(self, samples: Samples, fixed_batch: int | None, ranges: Ranges) -> NDArray[np.float64]:
        """Return each sample's share of values outside the range, by watched tensor, float64 `(n, tensors)`.

        It is NaN for a tensor without a range or of another type than float. A tensor whose first axis is not the batch has one
        share for all samples of a batch.

        Raises:
            CandidateRefused: `invalid`: the runtime fails on the samples.
        """
        shares = []
        for size, tensors in self._run(samples, np.arange(len(samples)), fixed_batch):
            columns = np.full((size, len(self.taps.watched)), np.nan)
            for place, tap in enumerate(self.taps.watched):
                values = tensors[tap.tensor]
                if values.dtype.kind == "f" and values.size and not np.isnan(ranges.low[place]):
                    outside = ~((values >= ranges.low[place]) & (values <= ranges.high[place]))
                    rows = size if len(values) == size else 1
                    columns[:, place] = outside.reshape(rows, -1).mean(axis=1)
            shares.append(columns)
        return np.concatenate(shares)

    def _run(
        self, samples: Samples, rows: NDArray[np.intp], fixed_batch: int | None
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield batches as (size, tensors by name); the first batch is small, to learn the memory of a sample."""
        size, start = fixed_batch or 1, 0
        while start < len(rows):
            chosen = rows[start : start + size]
            feeds = samples.feed({name: array[chosen] for name, array in samples.inputs.items()})
            tensors = self._watched.run(feeds)
            yield len(chosen), tensors
            start += len(chosen)
            taken = sum(array.nbytes for name, array in tensors.items() if name not in feeds) / len(chosen)
            size = fixed_batch or int(np.clip(WATCHED_BYTES // max(taken, 1), 1, MAX_BATCH_SIZE))


Vectors = NDArray[np.float32]


def view_samples(
    watch: ActivationWatch, calibration: Samples, reference: Samples, *, most: int, fixed_batch: int | None, seed: int
) -> ModelView | None:
    """Return the model's view of at most `most` samples of either side, drawn by the seed; None if a side has no usable one.

    Raises:
        CandidateRefused: `invalid`: the runtime fails on the samples.
    """
    ours, theirs = (
        draw_rows(usable_rows(samples.inputs), most, fixed_batch or 1, seed) for samples in (calibration, reference)
    )
    if not len(ours) or not len(theirs):
        return None
    ranges, vectors = watch.ranges(calibration, ours, fixed_batch)
    (counts,), reference_vectors = watch.count_outside(reference, theirs, fixed_batch, [ranges])
    return ModelView(
        watch.taps.representation,
        Embeddings(vectors, ours),
        Embeddings(reference_vectors, theirs),
        describe_clipping(watch.taps, ranges, counts),
    )


def describe_clipping(taps: Taps, ranges: Ranges, counts: Counts) -> tuple[Clipping, ...]:
    """Return the counts as shares, for each watched tensor that has a range and values."""
    return tuple(
        Clipping(
            tap.tensor,
            tap.nodes,
            float(ranges.low[place]),
            float(ranges.high[place]),
            int(counts.outside[place]) / int(counts.values[place]),
            int(counts.samples[place]) / counts.rows,
        )
        for place, tap in enumerate(taps.watched)
        if counts.values[place]
    )


def _count(
    values: NDArray[Any], size: int, least: float, most: float, ranges: Ranges, place: int, count: Counts
) -> None:
    low, high = ranges.low[place], ranges.high[place]
    if values.dtype.kind != "f" or np.isnan(low):
        return
    count.values[place] += values.size
    # Most batches lie inside, and their extremes show it in a tenth of the time. NaN is outside every range.
    if low <= least and most <= high:
        return
    outside = ~((values >= low) & (values <= high))
    count.outside[place] += np.count_nonzero(outside)
    # A tensor whose first axis is not the batch counts for all samples, or for none.
    by_sample = outside.reshape(size, -1) if len(values) % size == 0 else outside.reshape(1, -1).repeat(size, axis=0)
    count.samples[place] += int(by_sample.any(axis=1).sum())


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return the finite values; none if they are not floats."""
    if values.dtype.kind != "f":
        return values.reshape(-1)[:0]
    with np.errstate(invalid="ignore", over="ignore"):
        # If both extremes are finite, so is the whole tensor, and no copy is needed.
        return values if np.isfinite(values.min(initial=0) + values.max(initial=0)) else values[np.isfinite(values)]


def _pool(values: NDArray[Any], size: int, channel_axis: int) -> Vectors:
    """Return one vector per sample, float32 `(size, features)`: the mean over all axes except the first and the channels."""
    if not values.ndim or len(values) != size:
        # The tensor has lost the batch axis, so it has no vector per sample.
        return np.full((size, 1), np.nan, np.float32)
    if values.ndim == 1:
        return values.astype(np.float32)[:, None]
    axis = channel_axis % values.ndim
    others = tuple(place for place in range(1, values.ndim) if place != axis)
    return np.asarray(values.mean(axis=others, dtype=np.float32) if others else values, np.float32)

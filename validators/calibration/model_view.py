"""A model's view of samples, for the calibration checks: embeddings and clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validators.digests import digest_samples
from validators.records.measurements import Clipping
from validators.samples.datasets import Arrays
from validators.samples.sample_statistics import count_nonfinite


@dataclass(frozen=True)
class Embeddings:
    """One vector per sample, float32 of shape `(k, d)`; `rows` (shape `(k,)`, ascending) are the samples' rows in the file."""

    vectors: NDArray[np.float32]
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def finite(self) -> Embeddings:
        """Return the embeddings without NaN or Inf."""
        whole = np.isfinite(self.vectors).all(axis=1)
        return Embeddings(self.vectors[whole], self.rows[whole])


@dataclass(frozen=True)
class ModelView:
    """The model's view of calibration and reference samples.

    `tensor` names the tensor of the embeddings. `clipping` compares the calibration ranges (least to greatest value) with the
    reference samples.
    """

    tensor: str
    calibration: Embeddings
    reference: Embeddings
    clipping: tuple[Clipping, ...]


def draw_rows(usable: NDArray[np.bool_], most: int, multiple: int, seed: int) -> NDArray[np.intp]:
    """Draw at most `most` usable samples with `seed`, their number a multiple of `multiple`; return ascending rows `(k,)`.

    `usable` is bool of shape `(n,)`.

    >>> draw_rows(np.array([True, False, True, True]), most=8, multiple=1, seed=0).tolist()
    [0, 2, 3]
    """
    rows = np.flatnonzero(usable)
    count = min(len(rows), most)
    count -= count % multiple
    return rows if count == len(rows) else np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))


def usable_rows(inputs: Arrays) -> NDArray[np.bool_]:
    """Mark the samples worth running: finite in all inputs, and no copy of an earlier one; bool of shape `(n,)`.

    Each input has shape `(n, ...)`. Copies would have distance 0 from each other, and count twice in every comparison.
    """
    usable = first_of_each(digest_samples(inputs))
    for array in inputs.values():
        if array.dtype.kind == "f":
            usable &= count_nonfinite(array) == 0
    return usable


def first_of_each(digests: list[str]) -> NDArray[np.bool_]:
    """Mark the first of each sample's copies; bool of shape `(n,)`."""
    first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    return np.array([first[digest] == row for row, digest in enumerate(digests)])

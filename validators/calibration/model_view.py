"""What the checks of the calibration data need to know of the model: what it makes of the samples that are run through it."""

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
    """One vector a sample, float32 of shape `(k, d)`; `rows` (shape `(k,)`, ascending) are the samples' places in the file."""

    vectors: NDArray[np.float32]
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def finite(self) -> Embeddings:
        """Those without NaN or Inf."""
        whole = np.isfinite(self.vectors).all(axis=1)
        return Embeddings(self.vectors[whole], self.rows[whole])


@dataclass(frozen=True)
class ModelView:
    """What the model makes of calibration and reference samples.

    `tensor` names what the embeddings are values of. `clipping` holds the ranges of the calibration samples, least to
    greatest value, against the reference samples.
    """

    tensor: str
    calibration: Embeddings
    reference: Embeddings
    clipping: tuple[Clipping, ...]


def draw_rows(usable: NDArray[np.bool_], most: int, multiple: int, seed: int) -> NDArray[np.intp]:
    """At most `most` of the usable samples, ascending: a whole multiple of `multiple`, drawn by the seed; shape `(k,)`.

    >>> draw_rows(np.array([True, False, True, True]), most=8, multiple=1, seed=0).tolist()
    [0, 2, 3]
    """
    rows = np.flatnonzero(usable)
    count = min(len(rows), most)
    count -= count % multiple
    return rows if count == len(rows) else np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))


def usable_rows(inputs: Arrays) -> NDArray[np.bool_]:
    """Whether each sample is worth running: finite in all inputs, and no copy of an earlier one; bool of shape `(n,)`.

    Copies would lie at the distance 0 from each other, and weigh double in every comparison.
    """
    digests = digest_samples(inputs)
    first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    usable = np.array([first[digest] == row for row, digest in enumerate(digests)])
    for array in inputs.values():
        if array.dtype.kind == "f":
            usable &= count_nonfinite(array) == 0
    return usable

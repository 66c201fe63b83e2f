"""Calibration samples of passes that look at one layer after the other."""

from __future__ import annotations

from itertools import islice

from validators.samples.datasets import Arrays, Samples

# Such a pass takes this many samples, in batches of this size unless the model's is fixed.
PASS_SAMPLES, PASS_BATCH_SIZE = 64, 8


def pass_batches(samples: Samples, fixed_batch: int | None) -> list[Arrays]:
    """Return the first samples in batches."""
    size = pass_batch_size(fixed_batch)
    return list(islice(samples.batches(size), max(1, PASS_SAMPLES // size)))


def pass_batch_size(fixed_batch: int | None) -> int:
    """Return the samples of one batch."""
    return fixed_batch or PASS_BATCH_SIZE

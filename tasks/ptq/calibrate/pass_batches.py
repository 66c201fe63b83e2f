"""Calibration samples of passes that look at one layer after the other."""

from __future__ import annotations

from itertools import islice

from validators.samples.datasets import Arrays, Samples

# Such a pass takes this many samples, in batches of this size unless the model's is fixed.
PASS_SAMPLES, PASS_BATCH_SIZE = 64, 8
# Logits of a decoder are large.
FEW_SAMPLES = 2


def pass_batches(samples: Samples, fixed_batch: int | None) -> list[Arrays]:
    """Return the first samples in batches."""
    size = pass_batch_size(fixed_batch)
    return list(islice(samples.batches(size), max(1, PASS_SAMPLES // size)))


def few_samples(samples: Samples, fixed_batch: int | None) -> Arrays:
    """Return one small batch, on which a graph is compared with the one that it was made from."""
    return next(samples.batches(fixed_batch or FEW_SAMPLES))


def pass_batch_size(fixed_batch: int | None) -> int:
    """Return the samples of one batch."""
    return fixed_batch or PASS_BATCH_SIZE

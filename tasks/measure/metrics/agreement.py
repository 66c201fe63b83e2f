"""Whether a variant answers each sample as its source does, without labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.values import signal_and_noise

# The metrics that judge class scores by which class is ahead; the job's schema lists them all.
CLASS_METRICS = frozenset({"accuracy", "top5", "agreement", "f1_macro", "f1_binary", "auroc"})

Outputs = NDArray[Any]


def agreements(source: Outputs, variant: Outputs, *, of_classes: bool, min_sqnr_db: float) -> NDArray[np.bool_]:
    """Whether each sample's answers are alike, from outputs of shape `(n, ...)`; shape `(n,)`.

    Class scores of shape `(n, classes)` are, where the same class is ahead. Other floats are, where the sample's ratio of
    signal to noise, 10 log10 of the sum of the source's squares over that of the squared differences, is `min_sqnr_db` or
    more. What is no float has to be the same. Outputs of different shapes agree nowhere, and neither does NaN.

    >>> agreements(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.2, 0.9], [0.4, 0.6]]), of_classes=True, min_sqnr_db=0)
    array([ True, False])
    """
    n = len(source)
    if source.shape != variant.shape:
        return np.zeros(n, np.bool_)
    if source.dtype.kind != "f":
        return np.asarray((source == variant).reshape(n, -1).all(axis=1))
    if of_classes and source.ndim == 2 and source.shape[1] > 1:
        told = ~(np.isnan(source) | np.isnan(variant)).any(axis=1)
        return np.asarray(told & (source.argmax(axis=1) == variant.argmax(axis=1)))
    # Of a product, so that no noise at all needs no case of its own; noise that is not finite compares as too much.
    signal, noise = signal_and_noise(variant, source).T
    return np.asarray(signal >= noise * 10 ** (min_sqnr_db / 10))

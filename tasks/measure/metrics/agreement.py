"""Agreement of a variant's answers with its source's, per sample and without labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.values import signal_and_noise
from validators.job.job import OF_ONE_CLASS

# Metrics of class scores, which compare the winning class; the job's schema lists all metrics.
CLASS_METRICS = frozenset(
    {"accuracy", "top5", "agreement", "f1_macro", "auroc", "pr_auc", "log_loss", "ece"} | OF_ONE_CLASS
)

Outputs = NDArray[Any]


def agreements(source: Outputs, variant: Outputs, *, of_classes: bool, min_sqnr_db: float) -> NDArray[np.bool_]:
    """Return whether the two models agree on each sample, bool `(n,)`, from outputs of shape `(n, ...)`.

    Class scores `(n, classes)` agree if the same class wins. Other floats agree if the sample's signal-to-noise ratio is at
    least `min_sqnr_db`: 10 log10 of the sum of the source's squares over the sum of squared differences. Other dtypes must be
    equal. Outputs of different shapes agree nowhere, and NaN never agrees.

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
    # A product instead of a quotient, so that zero noise needs no special case. Non-finite noise never agrees.
    signal, noise = signal_and_noise(variant, source).T
    return np.asarray(signal >= noise * 10 ** (min_sqnr_db / 10))

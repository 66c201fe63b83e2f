"""Latency of a variant beside its baseline on rows of the evaluation data, as an entry of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.patience import RunPatience
from tasks.measure.latency.process import Contestant
from tasks.measure.request import request_of
from validators.job.job_measurement import Measurement, OperatingPoint
from validators.records.latencies import Latency
from validators.records.run import Variant
from validators.samples.run_inputs import Evidence


def make_latency(
    baseline: Variant,
    variant: Variant,
    evidence: Evidence,
    rows: NDArray[np.intp],
    point: OperatingPoint,
    measurement: Measurement,
    confidence: float,
    code: Path,
    patience: RunPatience,
    first_launch: int,
    refuse_disturbed: Callable[[Latency], None],
    folder: Path,
) -> Latency:
    """Measure both on the same requests, one for each row of `rows`, shape `(requests, batch_size)`.

    `refuse_disturbed` is called with a latency that was disturbed, and raises to keep it out of the store.
    """
    latency = compare_latency(
        Contestant(baseline.loaded, baseline.session),
        Contestant(variant.loaded, variant.session),
        [request_of(evidence, point, one) for one in rows],
        measurement,
        confidence=confidence,
        samples_path=folder / "samples.npz",
        dims=point.dims,
        code=code,
        patience=patience,
        first_launch=first_launch,
    )
    if latency.disturbance:
        refuse_disturbed(latency)
    return latency

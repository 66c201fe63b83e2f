"""The requests that latency and coverage are measured with: real samples at the job's batch size and axis sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from validators.samples.datasets import Arrays, Feed
from validators.samples.evidence import Evidence

if TYPE_CHECKING:
    from validators.job.job_measurement import OperatingPoint

# Bounds of the different requests of one measurement, whose process holds all of them.
MOST_REQUESTS = 64
MOST_REQUEST_BYTES = 64 << 20


def request_batch(evidence: Evidence, point: OperatingPoint) -> Feed:
    """Return the first evaluation samples as one request of the point's batch size, repeated when there are fewer."""
    return request_of(evidence, point, np.arange(point.batch_size) % len(evidence.evaluation))


def request_of(evidence: Evidence, point: OperatingPoint, rows: NDArray[np.intp]) -> Feed:
    """Return these evaluation rows as one request.

    Dynamic axes that the point names are cut to, or padded with zeros up to, the given size; others keep the data's.
    """
    batch: Arrays = {}
    for spec in evidence.inputs:
        array = evidence.evaluation.inputs[spec.name][rows]
        for axis, size in enumerate(spec.shape):
            wanted = point.dims.get(size) if axis and isinstance(size, str) else None
            if wanted is not None:
                array = np.take(array, np.arange(min(wanted, array.shape[axis])), axis=axis)
                missing = [(0, wanted - array.shape[axis] if index == axis else 0) for index in range(array.ndim)]
                array = np.pad(array, missing)
        batch[spec.name] = np.ascontiguousarray(array)
    return evidence.evaluation.feed(batch)


def draw_requests(
    evidence: Evidence, point: OperatingPoint, seed: int, *, confirmation: bool = False
) -> NDArray[np.intp]:
    """Draw evaluation rows for different requests of the point's batch size, shape `(requests, batch_size)`.

    The time of a model may depend on its input, so that one request says little about the traffic. Rows that are kept for
    confirmation make the requests of the confirmation, and of nothing else: requests that chose a candidate would confirm it
    with what chose it. A row comes up once, unless there are fewer rows than one request has.
    """
    rows = np.flatnonzero(evidence.confirmation == confirmation)
    if not len(rows):
        rows = np.arange(len(evidence.evaluation))
    first = request_of(evidence, point, rows[:1])
    size_bytes = point.batch_size * sum(array.nbytes for array in first.values())
    count = min(MOST_REQUESTS, len(rows) // point.batch_size, MOST_REQUEST_BYTES // max(size_bytes, 1))
    drawn = np.random.default_rng(seed).permutation(rows)
    return np.resize(drawn, (max(count, 1), point.batch_size))

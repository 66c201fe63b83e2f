"""The request that latency and coverage are measured with: real samples at the job's batch size and axis sizes."""

from __future__ import annotations

import numpy as np

from tasks.context import Evidence
from validators.datasets import Arrays
from validators.job_measurement import OperatingPoint


def request_batch(evidence: Evidence, point: OperatingPoint) -> Arrays:
    """The first evaluation samples as one request of the point's batch size, repeated when there are fewer.

    Dynamic axes that the point names are cut to, or padded with zeros up to, the given size; others keep the data's.
    """
    rows = np.arange(point.batch_size) % len(evidence.evaluation)
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
    return batch

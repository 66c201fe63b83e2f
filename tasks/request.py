"""The request that latency and coverage are measured with: real samples at the job's batch size and axis sizes."""

from __future__ import annotations

import numpy as np

from tasks.context import Evidence
from validators.datasets import Arrays
from validators.job import Job


def request_batch(job: Job, evidence: Evidence, batch_size: int) -> Arrays:
    """The first evaluation samples as one request of `batch_size`, repeated when there are fewer.

    Dynamic axes that `measurement.dims` names are cut to, or padded with zeros up to, the given size; others keep the data's.
    """
    rows = np.arange(batch_size) % len(evidence.evaluation)
    batch: Arrays = {}
    for spec in evidence.inputs:
        array = evidence.evaluation.inputs[spec.name][rows]
        for axis, size in enumerate(spec.shape):
            wanted = job.measurement.dims.get(size) if axis and isinstance(size, str) else None
            if wanted is not None:
                array = np.take(array, np.arange(min(wanted, array.shape[axis])), axis=axis)
                missing = [(0, wanted - array.shape[axis] if index == axis else 0) for index in range(array.ndim)]
                array = np.pad(array, missing)
        batch[spec.name] = np.ascontiguousarray(array)
    return batch

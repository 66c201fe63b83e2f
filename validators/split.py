"""Which evaluation samples confirm, and have no say in choosing: decided by each sample's own content."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from validators.datasets import Samples


def confirmation_mask(samples: Samples, share: float) -> NDArray[np.bool_]:
    """Shape `(n,)`: true for about this share of the samples, those whose digest is below it; equal samples are on one side."""
    digests = [
        hashlib.sha256(b"".join(samples.inputs[name][row].tobytes() for name in sorted(samples.inputs))).digest()
        for row in range(len(samples))
    ]
    return np.asarray([int.from_bytes(digest[:8], "big") < share * 2**64 for digest in digests], dtype=bool)

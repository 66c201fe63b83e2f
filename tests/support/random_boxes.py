"""Random detections and true boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def random_case(rng: np.random.Generator, n: int, most: int, m: int) -> tuple[Array, Array]:
    """Detections `(n, m, 6)` and labels `(n, most, 5)` of whole pixels, so that overlaps and scores may be equal."""
    corner, size = rng.integers(0, 40, (n, most, 2)), rng.integers(4, 30, (n, most, 2))
    true = np.concatenate([corner, corner + size, rng.integers(0, 4, (n, most, 1))], axis=2).astype(np.float64)
    moved = true[:, rng.integers(0, most, m)].copy()
    moved[..., :4] += rng.integers(-3, 4, (n, m, 4))
    moved[..., 2:4] = np.maximum(moved[..., 2:4], moved[..., :2] + 1)
    moved[..., 4] = np.where(rng.random((n, m)) < 0.2, rng.integers(0, 5, (n, m)), moved[..., 4])
    found = np.concatenate([moved[..., :4], rng.random((n, m, 1)).round(2), moved[..., 4:]], axis=2)
    found[rng.random((n, m)) < 0.2] = -1
    true[np.arange(most) >= rng.integers(0, most + 1, n)[:, None]] = np.nan
    true[0, 0] = [1, 1, 9, 9, 0]
    return found, true

"""Calibration samples as the tools ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def batches(calibration: Path, size: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the model's inputs for `size` samples at a time, by name."""
    with np.load(calibration) as archive:
        arrays = {name: archive[name] for name in archive.files}
    count = len(next(iter(arrays.values())))
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}

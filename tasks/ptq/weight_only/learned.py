"""INT4 weights in blocks with codes and scales learned on calibration samples: GPTQ, then coordinate descent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tasks.ptq.descent import damped, descend
from tasks.ptq.weight_only.gptq import gptq
from tasks.ptq.weight_only.int4_grid import TOP_CODE, Floats, Grid, QuantizedWeight, column_chunks, join_columns


def learn_blocks(
    weight: NDArray[Any], gram: Floats, *, block_size: int, symmetric: bool, dtype: DTypeLike
) -> QuantizedWeight:
    """Quantize a float weight `[K, N]` for inputs X with the Gram matrix `X^T X` (float64 `[K, K]`).

    The descent starts from the codes and scales of GPTQ.

    Raises:
        numpy.linalg.LinAlgError: the Gram matrix is not positive semi-definite, or not finite.
    """
    start = gptq(weight, gram, block_size=block_size, symmetric=symmetric, dtype=dtype)
    curvature, parts = damped(gram)[None], []
    for columns in column_chunks(weight.shape[1]):
        zeros = start.grid.zero_points[:, columns]
        codes, scales = descend(
            start.codes[None, :, columns].astype(np.float64),
            start.grid.scales[None, :, columns],
            zeros[None],
            weight[None, :, columns].astype(np.float64),
            curvature,
            limits=(0, TOP_CODE),
            dtype=dtype,
            block_size=block_size,
        )
        parts.append(QuantizedWeight(codes[0].astype(np.uint8), Grid(scales[0], zeros), block_size, symmetric))
    return join_columns(parts)

"""FP8 E4M3: scales of weights, and weights in E4M3.

P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022: scale = amax / 448. 448 is the largest number of the format,
which has no infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tasks.ptq.eight_bit.affine import fit_e4m3

E4M3: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)


def weight_scales(weight: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Return the scales amax / 448 of a float weight, in its dtype.

    The scale is that of the whole weight (shape `()`) if `channel_axis` is None, else one per slice along it (shape
    `(channels,)`). A channel of zeros gets scale 1, since a zero scale would give NaN.

    >>> weight_scales(np.array([[448.0, 1.0], [-896.0, 0.0]], np.float32), 0).tolist()
    [1.0, 2.0]
    """
    others = None if channel_axis is None else tuple(axis for axis in range(weight.ndim) if axis != channel_axis)
    return fit_e4m3(np.abs(weight).max(axis=others), weight.dtype)


def store_e4m3(weight: NDArray[Any], scales: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Quantize a float weight to E4M3, in its shape, rounding to nearest, ties to even.

    `scales` has shape `()` or `(channels,)`. A scale that float16 rounds down leaves quotients slightly above 448, far below
    464, where the format rounds to NaN.
    """
    shape = [1] * weight.ndim
    if channel_axis is not None:
        shape[channel_axis] = -1
    quotients = weight.astype(np.float32) / scales.reshape(shape).astype(np.float32)
    return np.asarray(quotients.astype(E4M3))

"""Affine quantization: real = scale * (stored - zero point).

ONNX QuantizeLinear: stored = saturate(round(real / scale) + zero point), ties to even. Scales follow B. Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, sections 2.1 and 3
(zero is exactly representable, so that padding is exact). Symmetric weights follow H. Wu et al., "Integer Quantization for
Deep Learning Inference", 2020, section 3.1.2. FP8 E4M3: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import TensorProto, helper

ActivationType = Literal["uint8", "int8"]
WeightBits = Literal[7, 8]

E4M3: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
# The largest finite number of E4M3, which has no infinity (table 1).
E4M3_MAX = 448.0
# -128 is left out, so that a weight and its negative have the same magnitude. With 7 bits the sum of two products fits the
# 16 bits in which AVX2 without VNNI adds it (vpmaddubsw): 2 * 255 * 64 = 32,640 < 32,768, while 2 * 255 * 65 overflows.
WEIGHT_LIMIT: dict[int, int] = {8: 127, 7: 64}
# Half of the INT32 range: the kernel adds the products to the bias.
BIAS_LIMIT = 2**30


@dataclass(frozen=True)
class Affine:
    """Scale (shape `()`, float32 or float16) and zero point of one activation, stored as `kind`."""

    scale: NDArray[Any]
    zero: int
    kind: ActivationType

    def store(self, real: ArrayLike) -> NDArray[Any]:
        """Quantize float values of any shape to `kind`, in the same shape.

        >>> fit_range(0.0, 25.5, "uint8").store([-1.0, 0.05, 0.15, 30.0]).tolist()
        [0, 0, 2, 255]
        """
        limits = np.iinfo(self.kind)
        rounded = np.rint(np.asarray(real, np.float32) / self.scale.astype(np.float32)) + self.zero
        return np.asarray(np.clip(rounded, limits.min, limits.max), self.kind)

    def read(self, stored: ArrayLike) -> NDArray[np.float32]:
        """Dequantize stored values of any shape to float32, in the same shape."""
        return np.asarray((np.asarray(stored, np.int32) - self.zero) * self.scale, np.float32)


def fit_range(
    low: float, high: float, kind: ActivationType, *, symmetric: bool = False, dtype: DTypeLike = np.float32
) -> Affine:
    """Return the scale and zero point of an activation with this range, which is extended to contain zero.

    Asymmetric: 256 levels over [low, high]. Symmetric: zero point 0 (int8) or 128 (uint8), and 127 steps to the larger end.
    `dtype` is that of the scale. A range of zero width gets scale 1, since a zero scale would give NaN.

    >>> fit_range(-1.0, 3.0, "uint8").zero, fit_range(-1.0, 3.0, "int8").zero
    (64, -64)

    Raises:
        ValueError: an end is not finite, or `low` is above `high`.
    """
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise ValueError(f"a range from {low} to {high}: expected finite ends in order")
    low, high = min(low, 0.0), max(high, 0.0)
    limits = np.iinfo(kind)
    if symmetric:
        return Affine(_as_scale(max(-low, high) / 127, dtype), 128 if kind == "uint8" else 0, kind)
    # Halved first: the width of the widest range overflows.
    scale = _as_scale((high / 2 - low / 2) / 127.5, dtype)
    # From the stored scale, which float16 rounds.
    zero = np.clip(np.rint(limits.min - low / float(scale)), limits.min, limits.max)
    return Affine(scale, int(zero), kind)


def fit_weight(
    weight: NDArray[Any], channel_axis: int | None, bits: WeightBits = 8, *, smallest: ArrayLike = 0.0
) -> NDArray[Any]:
    """Return symmetric INT8 scales in the weight's dtype: amax / 127, or amax / 64 with 7 bits.

    The scale is that of the whole float weight (shape `()`) if `channel_axis` is None, else one per slice along it (shape
    `(channels,)`). No scale is below `smallest`, which has the same shape or is a scalar.

    >>> fit_weight(np.array([[127.0, 1.0], [-254.0, 0.0]], np.float32), 0).tolist()
    [1.0, 2.0]
    """
    return _as_scale(np.maximum(largest_magnitudes(weight, channel_axis) / WEIGHT_LIMIT[bits], smallest), weight.dtype)


def store_weight(
    weight: NDArray[Any], scales: NDArray[Any], channel_axis: int | None, bits: WeightBits = 8
) -> NDArray[np.int8]:
    """Quantize a float weight to INT8, in its shape, with zero point 0; `scales` as `fit_weight` returns them."""
    limit = WEIGHT_LIMIT[bits]
    quotients = _quotients(weight, scales, channel_axis)
    np.rint(quotients, out=quotients)
    return np.clip(quotients, -limit, limit, out=quotients).astype(np.int8)


def read_weight(stored: NDArray[np.int8], scales: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Dequantize an INT8 weight to the dtype of its scales, in its shape; `scales` as `fit_weight` returns them."""
    return np.asarray(stored * _along(scales, stored.ndim, channel_axis), scales.dtype)


def smallest_weight_scale(bias: NDArray[Any], input_scale: NDArray[Any]) -> NDArray[np.float64]:
    """Return the least weight scales at which the bias fits INT32 with scale `input_scale * weight scale`.

    Without this limit, the bias of a channel with near-zero weights would saturate. `bias` is float `(channels,)`,
    `input_scale` float `()`, the result float64 in the shape of `bias`.
    """
    return np.asarray(np.abs(bias.astype(np.float64)) / (float(input_scale) * BIAS_LIMIT))


def store_bias(bias: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.int32]:
    """Quantize a float bias `(channels,)` to INT32 with zero point 0; `scales` has shape `(channels,)` or `()`.

    >>> store_bias(np.array([0.25, -0.75]), np.array(0.5)).tolist()
    [0, -2]
    """
    limits = np.iinfo(np.int32)
    rounded = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    return np.clip(rounded, limits.min, limits.max).astype(np.int32)


def fit_e4m3(amax: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return FP8 E4M3 scales, amax / 448, of `dtype` in the shape of `amax`; 1 where `amax` is zero.

    >>> fit_e4m3([448.0, 0.0]).tolist()
    [1.0, 1.0]
    """
    return _as_scale(np.asarray(amax, np.float64) / E4M3_MAX, dtype)


def fit_e4m3_weight(weight: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Return FP8 E4M3 scales in the weight's dtype: of the whole weight, or per slice along an axis, as `fit_weight`.

    >>> fit_e4m3_weight(np.array([[448.0, 1.0], [-896.0, 0.0]], np.float32), 0).tolist()
    [1.0, 2.0]
    """
    return fit_e4m3(largest_magnitudes(weight, channel_axis), weight.dtype)


def store_e4m3(weight: NDArray[Any], scales: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Quantize a float weight to E4M3, in its shape, rounding to nearest, ties to even; `scales` as `fit_e4m3_weight`.

    A scale that float16 rounds down leaves quotients slightly above 448, far below 464, where the format rounds to NaN.
    """
    return np.asarray(_quotients(weight, scales, channel_axis).astype(E4M3))


def _quotients(weight: NDArray[Any], scales: NDArray[Any], channel_axis: int | None) -> NDArray[np.float32]:
    """Return the weight over its scales: the one array of its size that storing takes."""
    return np.asarray(np.divide(weight, _along(scales, weight.ndim, channel_axis), dtype=np.float32))


def largest_magnitudes(weight: NDArray[Any], channel_axis: int | None) -> NDArray[np.float64]:
    """Return the largest magnitude of a weight, or of each slice along an axis, without a copy of the weight."""
    others = None if channel_axis is None else tuple(axis for axis in range(weight.ndim) if axis != channel_axis)
    highest, lowest = weight.max(axis=others, initial=0.0), weight.min(axis=others, initial=0.0)
    return np.asarray(np.maximum(highest, -lowest, dtype=np.float64))


def _as_scale(value: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    """Return scales as `dtype`: 1 in place of zero, others clipped to normal numbers (kernels may flush subnormals)."""
    exact = np.asarray(value, np.float64)
    limits = np.finfo(np.dtype(dtype))
    bounded = np.clip(exact, float(limits.smallest_normal), float(limits.max))
    return np.asarray(np.where(exact > 0, bounded, 1.0), dtype)


def _along(scales: NDArray[Any], rank: int, channel_axis: int | None) -> NDArray[Any]:
    """Reshape the scales to broadcast against the weight."""
    if channel_axis is None:
        return scales
    shape = [1] * rank
    shape[channel_axis] = -1
    return scales.reshape(shape)

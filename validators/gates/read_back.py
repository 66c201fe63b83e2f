"""Tolerances for answers of one artifact in two sessions that compute the same sums in another order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from validators.job.candidate_name import Precision, decode
from validators.targets import is_on_gpu

Array = NDArray[np.generic]

# Root mean square of the difference, relative to that of the output; see `tolerance_of`.
_FLOAT32, _FLOAT16 = 1e-4, 1.5e-2
_LOW: dict[Precision, float] = {"bf16": 1e-1, "int8": 1e-1, "int8-weights": 1e-1, "int4": 1e-1, "fp8": 2e-1}
# The largest difference, relative to the peak, may be this multiple of the tolerance. The largest of a million normal errors
# is five times their root mean square, and the peak of such outputs about four times theirs.
_PEAK = 3.0
# Differences up to this are rounding of outputs that should be zero.
_ZERO = 1e-6


def tolerance_of(candidate: str) -> float:
    """Return the tolerance of a candidate's answers: root mean square of the difference over that of the output.

    A sum of K terms in another order differs by about sqrt(K) roundings of the accumulator (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 4.2). The largest differences measured on a net of 12 residual blocks, at widths 128 and
    512, comparing whole products with four partial sums and with an accumulator in blocks of 16:

    | arithmetic | measured | tolerance |
    |---|---|---|
    | float32 | 9e-7 | 1e-4 |
    | float16, and float32 on a GPU, where TF32 has the same 11 bits | 3e-3 | 1.5e-2 |
    | INT8 with float16 between the products | 2.6e-2 | 1e-1 |
    | bfloat16, which has three bits less than float16 | not measured | 1e-1 |
    | FP8 (E4M3) with float16 between the products | 5.9e-2 | 2e-1 |

    Quantized activations differ that much because a rounding error moves some of them by a whole quantization step, and more
    in each layer: two runs end as far from each other as from the float model. INT4 weights run with INT8 activations in some
    kernels. With the last layer's columns permuted, the same net differs by 3e-1.

    >>> tolerance_of("fp32-fused@ort-cpu"), tolerance_of("fp32-fused@ort-cuda"), tolerance_of("int8-dynamic-pc@ort-cpu")
    (0.0001, 0.015, 0.1)
    """
    decoded = decode(candidate)
    if decoded.precision in _LOW:
        return _LOW[decoded.precision]
    return _FLOAT16 if decoded.precision == "fp16" or is_on_gpu(decoded.target) else _FLOAT32


def find_difference(found: Array, expected: Array, tolerance: float) -> str:
    """Describe how `found` differs from `expected` beyond the tolerance; return an empty string if it does not.

    Both arrays may have any shape and dtype. Values that are not float must be equal. NaN and Inf must match in position.
    Outputs of two bytes per element get at least the float16 tolerance.

    >>> find_difference(np.float32([1.0, -2.0001]), np.float32([1.0, -2.0]), 1e-4)
    ''
    >>> find_difference(np.float32([1.0, 2.0]), np.float32([1.0, -2.0]), 1e-4)
    'a difference of 1.8 of the RMS; 0.0001 is allowed'
    """
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if not np.issubdtype(expected.dtype, np.floating):
        return "" if np.array_equal(found, expected) else "other values"
    if expected.dtype.itemsize == 2:
        tolerance = max(tolerance, _FLOAT16)
    ours, theirs = (array.astype(np.float64).ravel() for array in (found, expected))
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(ours[finite]).all():
        return "NaN or Inf at other positions"
    ours, theirs = ours[finite], theirs[finite]
    if not theirs.size:
        return ""
    difference = np.abs(ours - theirs)
    spread, scale = (float(np.sqrt(np.mean(np.square(one)))) for one in (difference, theirs))
    if spread > max(tolerance * scale, _ZERO):
        return f"a difference of {spread / max(scale, _ZERO):.2g} of the RMS; {tolerance:.2g} is allowed"
    most, peak, allowed = float(difference.max()), float(np.abs(theirs).max()), _PEAK * tolerance
    if most > max(allowed * peak, _ZERO):
        return f"a difference of {most / max(peak, _ZERO):.2g} of the peak; {allowed:.2g} is allowed"
    return ""

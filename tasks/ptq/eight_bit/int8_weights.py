"""Settings of INT8 weights, and the functions that round them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.calibrate.patches import Patches
from tasks.ptq.descent import Floats, damped, descend
from tasks.ptq.eight_bit.affine import WEIGHT_LIMIT, WeightBits, fit_weight, read_weight, store_weight
from tasks.ptq.graph.edits import attribute, name_nodes, output_channel_axis, weighted_nodes
from validators.job.methods import NEAREST

# Share of the Gram matrix's mean diagonal that keeps the aim of a convolution near its weight.
AIM_DAMPING = 1.0
# The weight, the axis of its output channels or None, the bits, and the least scales, as `fit_weight` takes them, and the Gram
# matrix of the layer's inputs, if there is one; returns the INT8 codes in the shape of the weight, and the scales.
Method = Callable[[NDArray[Any], int | None, WeightBits, ArrayLike, Gram | None], tuple[NDArray[np.int8], NDArray[Any]]]


def round_to_nearest(
    weight: NDArray[Any], channel_axis: int | None, bits: WeightBits, smallest: ArrayLike, _gram: Gram | None
) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Round each weight to the nearest step of amax / 127 (of amax / 64 with 7 bits)."""
    scales = fit_weight(weight, channel_axis, bits, smallest=smallest)
    return store_weight(weight, scales, channel_axis, bits), scales


def learn(
    weight: NDArray[Any], channel_axis: int | None, bits: WeightBits, smallest: ArrayLike, gram: Gram | None
) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Round each weight so that the layer's output has the least error on calibration samples.

    Weights without a Gram matrix, or with one scale for all channels, are rounded to nearest.
    """
    stored, scales = round_to_nearest(weight, channel_axis, bits, smallest, None)
    if gram is None or channel_axis is None:
        return stored, scales
    matrix = gram.matrix.reshape(-1, *gram.matrix.shape[-2:])
    curvature = damped(matrix)
    groups, limit = len(matrix), WEIGHT_LIMIT[bits]

    def in_groups(values: NDArray[Any]) -> Floats:
        """Return a weight as `[groups, K, outputs of a group]`, float64."""
        outputs = np.moveaxis(values, channel_axis, 0).reshape(groups, len(scales) // groups, -1)
        return np.asarray(outputs.transpose(0, 2, 1), np.float64)

    aim = in_groups(weight)
    if gram.cross is not None:
        # The weight whose outputs on the layer's own inputs are nearest to the float layer's. Large weights on small inputs
        # would make more of the noise that activations in 8 bits have.
        ridge = damped(matrix, AIM_DAMPING)
        aim = aim + np.linalg.solve(ridge, (gram.cross - matrix) @ aim)
    codes, found = descend(
        in_groups(stored),
        scales.astype(np.float64).reshape(groups, 1, -1),
        np.zeros((groups, 1, len(scales) // groups)),
        aim,
        curvature,
        limits=(-limit, limit),
        dtype=scales.dtype,
        smallest=np.broadcast_to(smallest, scales.shape).reshape(groups, -1),
    )
    moved = np.moveaxis(stored, channel_axis, 0)
    learned = np.moveaxis(codes.transpose(0, 2, 1).reshape(moved.shape).astype(np.int8), 0, channel_axis)
    return np.ascontiguousarray(learned), found.reshape(-1).astype(scales.dtype)


# By the words of `validators.job.methods.ROUNDINGS`.
METHODS: Mapping[str, Method] = {"rtn": round_to_nearest, "learned": learn}


@dataclass(frozen=True)
class Int8Weights:
    """Settings of INT8 weights: one scale per output channel or one per tensor, the bits in use, and the rounding method."""

    per_channel: bool = True
    bits: WeightBits = 8
    method: str = NEAREST.word

    def quantize(
        self,
        weight: NDArray[Any],
        channel_axis: int | None,
        *,
        smallest: ArrayLike = 0.0,
        gram: Gram | None = None,
    ) -> tuple[NDArray[np.int8], NDArray[Any]]:
        """Return the INT8 codes of a weight, in its shape, and their scales, `(channels,)` or `()`.

        `channel_axis` counts only with `per_channel`. No scale is below `smallest`. `gram` is that of the layer's inputs, for
        methods that need one.
        """
        axis = channel_axis if self.per_channel else None
        return METHODS[self.method](weight, axis, self.bits, smallest, gram)

    def round_convolution(self, weight: NDArray[Any], gram: Gram) -> NDArray[Any]:
        """Return the floats that the codes of a convolution's weight stand for, in its shape."""
        return read_weight(*self.quantize(weight, 0, gram=gram), 0)


def layers_to_learn(model: Path) -> tuple[dict[str, tuple[str, int]], dict[str, Patches]]:
    """Return what can be learned, by node: products with the tensor that they read and its channels, and convolutions."""
    products: dict[str, tuple[str, int]] = {}
    convolutions: dict[str, Patches] = {}
    proto = onnx.load(model, load_external_data=False)
    name_nodes(proto.graph)
    for node, weight in weighted_nodes(proto.graph):
        if node.op_type == "Conv":
            patches = Patches.of(node, weight)
            if patches is not None:
                convolutions[node.name] = patches
        elif len(weight.dims) == 2 and not attribute(node, "transA", 0):
            products[node.name] = node.input[0], weight.dims[1 - output_channel_axis(node, weight)]
    return products, convolutions

"""Outlier ratios: how far the largest channel of a weight or an activation lies above the others.

An activation, or a weight quantized per tensor, has one scale for all channels. A large channel leaves the others few
integer levels. The ratio is the largest absolute value over the median of the channels' largest absolute values. The median
is used because the mean would rise with the outliers. G. Xiao et al., "SmoothQuant", ICML 2023, section 3, see channels of
activations about 100 times as large as most others. T. Dettmers et al., "LLM.int8()", NeurIPS 2022, section 4, find that
few channels hold them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.calibrate.watched import watch
from tasks.ptq.graph.edits import WEIGHT_INPUT, initializers, operator_of, output_channel_axis
from validators.graph.stored import to_array
from validators.records.libraries import Libraries
from validators.samples.datasets import Arrays

Vector = NDArray[np.float64]
WEIGHTED = frozenset({*WEIGHT_INPUT, "com.microsoft:Attention", "LSTM"})


@dataclass(frozen=True)
class Outliers:
    """Outlier ratios of a node's weight (over output channels) and of the activation that it reads (over input channels)."""

    weight: float | None
    activation: float | None


def has_weight(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a node multiplies with a constant matrix or kernel."""
    return operator_of(node) in WEIGHTED and node.input[1] in constants


def outlier_ratio(channels: Vector) -> float | None:
    """Return the maximum over the median of `channels`: each channel's largest absolute value, float64 `(channels,)`.

    None if there is no channel, the median is zero, or a channel is not finite.

    >>> outlier_ratio(np.array([1.0, 2.0, 4.0, 100.0]))
    33.333333333333336
    """
    middle = float(np.median(channels)) if channels.size else 0.0
    return float(channels.max()) / middle if np.isfinite(channels).all() and middle > 0 else None


def channel_amax(array: NDArray[Any], axes: Collection[int]) -> Vector:
    """Return the largest absolute value of each channel, float64 `(channels,)`; a channel is one index along `axes`."""
    kept = {axis % array.ndim for axis in axes}
    others = tuple(axis for axis in range(array.ndim) if axis not in kept)
    # Without a copy of a large weight in float64.
    highest, lowest = (np.asarray(end(axis=others), np.float64).reshape(-1) for end in (array.max, array.min))
    return np.maximum(highest, -lowest)


def find_outliers(
    model: Path, nodes: Collection[str], batches: Iterable[Arrays], libraries: Libraries = ()
) -> dict[str, Outliers]:
    """Return the outlier ratios of the given nodes that have a weight, by node name, in one pass over the batches.

    A weight's channels are its output channels. An activation's channels lie on axis 1 for Conv and on the last axis
    otherwise.

    Raises:
        CandidateRefused: `invalid`: the runtime does not run the model.
    """
    graph = onnx.load(model, load_external_data=False).graph
    constants = initializers(graph)
    weighted = [node for node in graph.node if node.name in nodes and has_weight(node, constants)]
    channel_axes = {
        node.input[0]: 1 if node.op_type == "Conv" else -1 for node in weighted if node.input[0] not in constants
    }
    seen: dict[str, Vector] = {}
    for values in watch(model, channel_axes, batches, libraries):
        for name, array in values.items():
            found = channel_amax(array, (channel_axes[name],))
            seen[name] = np.maximum(seen[name], found) if name in seen else found
    ratios = {name: outlier_ratio(channels) for name, channels in seen.items()}
    return {
        node.name: Outliers(_weight_ratio(node, constants[node.input[1]], model.parent), ratios.get(node.input[0]))
        for node in weighted
    }


def _weight_ratio(node: onnx.NodeProto, weight: onnx.TensorProto, folder: Path) -> float | None:
    # An LSTM's weight is `(directions, 4 hidden, inputs)`: its output channels lie along two axes.
    axes = (0, 1) if node.op_type == "LSTM" else (output_channel_axis(node, weight),)
    return outlier_ratio(channel_amax(to_array(weight, folder), axes))

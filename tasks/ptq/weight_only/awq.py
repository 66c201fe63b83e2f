"""AWQ: salient input channels are scaled up in the weight, and down in the activation, before rounding.

J. Lin et al.: "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024, section 3.2.
The result is one factor per channel of the activation; `fold` finds the constants to multiply it into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import attribute, initializers, operator_of
from tasks.ptq.weight_only.clipping import output_error
from tasks.ptq.weight_only.int4_grid import Floats, column_chunks, round_to_nearest
from tasks.ptq.weight_only.sites import Key, Site
from validators.graph.stored import from_array, to_array

Placed = Literal["folded", "inserted"]

# Exponents to try: the grid of 20 steps in the authors' code, end included.
ALPHAS = tuple(step / 20 for step in range(21))
# Floor for a channel's mean magnitude relative to the largest: factors then stay within 1e-2 to 1e2, which suits float16.
QUIETEST = 1e-4

# Normalizations that end in a product (and a sum) with constants: the indices of these inputs.
SCALED_BY: dict[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
}


@dataclass(frozen=True)
class AwqLayer:
    """A weight, float `[K, N]`, and the Gram matrix of its input activations, float64 `[K, K]`."""

    weight: NDArray[Any]
    gram: Floats


def search_factors(
    layers: Sequence[AwqLayer], mean_absolute: Floats, *, block_size: int, symmetric: bool, dtype: DTypeLike
) -> tuple[Floats, float]:
    """Return the factors for the activation that all layers read, float64 `[K]` exact in `dtype`, and their alpha.

    `mean_absolute` is the activation's mean magnitude per channel, float64 `[K]`. The factor is `1 / s` with
    `s = mean|x|^alpha` (equation 5); the weights' rows are divided by it. The chosen alpha minimizes `||X W - X W'||^2`,
    summed over the layers. Alpha 0, with all factors 1, is among the candidates.
    """
    best, least, chosen = np.ones(len(mean_absolute)), np.inf, 0.0
    for alpha in ALPHAS:
        factors = factors_for(mean_absolute, alpha, dtype)
        error = sum(
            float(_rounded_error(layer, factors, columns, block_size, symmetric, dtype).sum())
            for layer in layers
            for columns in column_chunks(layer.weight.shape[1])
        )
        if error < least:
            best, least, chosen = factors, error, alpha
    return best, chosen


def factors_for(mean_absolute: Floats, alpha: float, dtype: DTypeLike) -> Floats:
    """Return `1 / s` with `s = mean|x|^alpha`, float64 `[K]`, scaled so that the extremes are reciprocal."""
    loudest = float(mean_absolute.max(initial=0.0))
    if loudest == 0:
        return np.ones(len(mean_absolute))
    scales = np.maximum(mean_absolute / loudest, QUIETEST) ** alpha
    factors: Floats = (np.sqrt(scales.max() * scales.min()) / scales).astype(dtype).astype(np.float64)
    return factors


def _rounded_error(
    layer: AwqLayer, factors: Floats, columns: slice, block_size: int, symmetric: bool, dtype: DTypeLike
) -> Floats:
    part = layer.weight[:, columns].astype(np.float64)
    scaled = part / factors[:, None]
    rounded = round_to_nearest(scaled, block_size=block_size, symmetric=symmetric, dtype=dtype)
    return output_error(rounded.dequantized() * factors[:, None] - part, layer.gram)


@dataclass
class Scaling:
    """AWQ's factors by activation, float64 `[K]`, and whether they were folded or inserted."""

    factors: dict[str, Floats] = field(default_factory=dict)
    placed: dict[str, Placed] = field(default_factory=dict)


def weight_of(constants: Mapping[str, onnx.TensorProto], key: Key) -> NDArray[Any]:
    """Return the current weight of the sites with this key, `[K, N]`."""
    array = to_array(constants[key[0]])
    return array.T if key[1] else array


def gram_of(key: Key, sites: Sequence[Site], seen: Mapping[str, Gram]) -> Gram:
    """Return the sum of the Gram matrices of all activations that a weight is multiplied with."""
    return reduce(add, [seen[name] for name in dict.fromkeys(site.activation for site in sites if site.key == key)])


def scale_channels(
    graph: onnx.GraphProto, sites: Sequence[Site], seen: Mapping[str, Gram], *, block_size: int, symmetric: bool
) -> Scaling:
    """Search factors for each group of sites that must share them, and fold them where that is exact."""
    scaling = Scaling()
    # Last group first: factors folded into an earlier weight are then present when that weight's own factors are searched.
    for group in reversed(_groups(sites)):
        constants = initializers(graph)
        keys = list(dict.fromkeys(site.key for site in group))
        layers = [AwqLayer(weight_of(constants, key), gram_of(key, group, seen).matrix) for key in keys]
        activations = list(dict.fromkeys(site.activation for site in group))
        loudness = reduce(add, [seen[name] for name in activations]).mean_absolute
        factors, alpha = search_factors(
            layers, loudness, block_size=block_size, symmetric=symmetric, dtype=layers[0].weight.dtype
        )
        if alpha == 0:
            continue
        for name in activations:
            readers = sum(site.activation == name for site in group)
            scaling.factors[name] = factors
            scaling.placed[name] = "folded" if fold(graph, name, readers, factors) else "inserted"
    return scaling


def _groups(sites: Sequence[Site]) -> list[list[Site]]:
    """Group the sites that share an activation or a weight, and therefore factors, in order of their first site."""
    groups: list[list[Site]] = []
    for site in sites:
        linked = [g for g in groups if any(site.activation == o.activation or site.key == o.key for o in g)]
        groups = [g for g in groups if g not in linked] + [[*(o for g in linked for o in g), site]]
    return sorted(groups, key=lambda group: sites.index(group[0]))


def fold(graph: onnx.GraphProto, tensor: str, readers: int, factors: Floats) -> bool:
    """Multiply a tensor's last axis by `factors` (float64 `[K]`) in its producers' constants; return False if inexact.

    It is exact if the tensor comes from a normalization, a product with a constant vector or matrix, or sums and Relu
    (factors are positive) after these. Besides, no graph output and no node except the `readers` that expect the factors may
    read the tensor or the tensors on the way, and no other node may read those constants.
    """
    view = GraphView(graph)
    for value in graph.input:
        view.constants.pop(value.name, None)
    found = _constants_behind(view, tensor, readers, len(factors))
    for name in found or ():
        old = to_array(view.constants[name])
        view.constants[name].CopyFrom(from_array((old * factors).astype(old.dtype), name))
    return found is not None


def _constants_behind(view: GraphView, tensor: str, readers: int, channels: int) -> list[str] | None:
    """Return the constants whose last axis scales the last axis of the tensor, or None."""
    node, constants = view.producer.get(tensor), view.constants
    if node is None or not view.is_read_by(tensor, readers) or node.output[0] != tensor:
        return None

    def is_vector(name: str) -> bool:
        """Return whether a name is a constant along the last axis only, with a single reader."""
        dims = list(constants[name].dims) if name in constants else []
        along_last = bool(dims) and dims[-1] == channels and all(size == 1 for size in dims[:-1])
        return along_last and view.is_read_by(name, 1)

    def behind(name: str) -> list[str] | None:
        return _constants_behind(view, name, 1, channels)

    given = [name for name in node.input if name]
    operator = operator_of(node)
    if operator in SCALED_BY and attribute(node, "axis", -1) == -1:
        held = [node.input[index] for index in SCALED_BY[operator] if index < len(given)]
        return held if all(map(is_vector, held)) else None
    if operator == "Relu":
        return behind(given[0])
    if operator == "MatMul" and given[1] in constants and view.is_read_by(given[1], 1):
        dims = constants[given[1]].dims
        return [given[1]] if len(dims) == 2 and dims[1] == channels else None
    vectors = [name for name in given if is_vector(name)]
    if operator in ("Mul", "Add") and len(vectors) == 1:
        if operator == "Mul":
            return vectors
        before = behind(next(name for name in given if name != vectors[0]))
        return None if before is None else [*before, *vectors]
    return None

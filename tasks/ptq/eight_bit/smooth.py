"""SmoothQuant: move the magnitude of outlier activation channels into the weights.

G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models", ICML 2023. Eq. 3:
Y = (X diag(s)^-1) (diag(s) W), the same product. Eq. 4: s_j = max|X_j|^alpha / max|W_j|^(1 - alpha). The division is folded
into the producer of X where that is exact; otherwise a Mul is inserted.

A depthwise Conv reads each channel with a kernel of its own. With a scale per output channel, its kernels and the Conv before
it absorb any factors without loss, so all channels between them get one magnitude: the cross-layer equalization of M. Nagel
et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.1, by activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.calibrate.watched import watch
from tasks.ptq.eight_bit.affine import fit_range, fit_weight, largest_magnitudes, read_weight, store_weight
from tasks.ptq.eight_bit.placement import FLOATS, GraphView
from tasks.ptq.graph.edits import Names, attribute, drop_unused_initializers, operator_of
from validators.graph.stored import load_model, save_model, spilling, to_array
from validators.records.libraries import Libraries
from validators.samples.datasets import Arrays

# The paper uses 0.5 for most models and up to 0.9 for those with the largest outliers (section 4 and figure 10).
ALPHAS: tuple[float, ...] = tuple(step / 20 for step in range(4, 20))
ROWS = 256
# Columns of a weight that a trial copies at once.
COLUMNS_AT_ONCE = 512
# A smaller relative gain is not worth a changed graph.
LEAST_GAIN = 0.05
# What a channel before a depthwise Conv is multiplied by at most: on other samples it may be larger than in calibration.
LARGEST_RAISE = 16

Vector = NDArray[np.float64]
Edit = tuple[onnx.NodeProto, int, NDArray[Any]]
Way = Literal["folded", "multiplied", "left"]
# A constant, as a node and its input, and how factors change it.
Scaled = tuple[onnx.NodeProto, int, np.ufunc]


@dataclass(frozen=True)
class ChannelStatistics:
    """Calibration statistics of a tensor by channel: of its last axis, or of axis 1 for a tensor between convolutions.

    `low` and `high` are the extremes of each channel, float32 `(channels,)`. `rows` are sampled rows, float32
    `(n, channels)`, to evaluate factors on. `halves` are the same statistics of each half of the data.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    rows: NDArray[np.float32]
    halves: tuple[ChannelStatistics, ...] = ()


@dataclass(frozen=True)
class Smoothing:
    """Result of smoothing one tensor.

    An error is the mean squared error of the layers' quantized outputs over the mean square of the exact outputs.
    """

    alpha: float | None
    way: Way
    error_before: float
    error_after: float


@dataclass(frozen=True)
class SmoothedGraph:
    """An equivalent float model, with the number of tensors whose division was folded and of those divided by a Mul."""

    path: Path
    folded: int
    multiplied: int


def read_channels(
    model: Path, batches: Iterable[Arrays], *, seed: int = 0, libraries: Libraries = ()
) -> dict[str, ChannelStatistics]:
    """Return the statistics of every tensor that `smooth` could change: inputs of products and of depthwise convolutions.

    `rows` are a seeded draw of equal size from each batch. The first half of a batch's rows goes to one of `halves`, the
    second half to the other.
    """
    view = GraphView(onnx.load(model, load_external_data=False).graph)
    products, depthwise = layers_by_input(view), depthwise_by_input(view)
    batches = list(batches)
    rng = np.random.default_rng(seed)
    share = -(-ROWS // max(1, 2 * len(batches)))
    seen: dict[str, tuple[list[ChannelStatistics], list[ChannelStatistics]]] = {}
    for values in watch(model, [*products, *depthwise], batches, libraries):
        for name, array in values.items():
            channels_last = np.moveaxis(array, 1, -1) if name in depthwise else array
            rows = channels_last.reshape(-1, channels_last.shape[-1]).astype(np.float32)
            for half, part in zip(seen.setdefault(name, ([], [])), np.array_split(rows, 2), strict=True):
                if len(part):
                    drawn = part[rng.permutation(len(part))[:share]]
                    half.append(ChannelStatistics(part.min(axis=0), part.max(axis=0), drawn))
    joined = {name: tuple(_joined(half) for half in halves if half) for name, halves in seen.items()}
    return {name: replace(_joined(halves), halves=halves) for name, halves in joined.items() if halves}


def _joined(parts: Sequence[ChannelStatistics]) -> ChannelStatistics:
    return ChannelStatistics(
        np.min([part.low for part in parts], axis=0),
        np.max([part.high for part in parts], axis=0),
        np.concatenate([part.rows for part in parts]),
    )


@spilling()
def smooth(
    model: Path,
    smoothed: Path,
    seen: Mapping[str, ChannelStatistics],
    *,
    symmetric: bool,
    alphas: Sequence[float] = ALPHAS,
    insert: bool = True,
) -> dict[str, Smoothing]:
    """Write an equivalent float model that is easier to quantize; return the result for each tensor in `seen`.

    All products that read a tensor share its factors. Each tensor gets the alpha with the least error of its products, with
    INT8 activations per tensor (`symmetric` or not) and weights per output channel, on rows not used to set the factors.
    Before depthwise convolutions all channels get one magnitude. A tensor is left unchanged unless the error falls by at
    least `LEAST_GAIN`, and without `insert` where its division cannot be folded. Activation ranges must be calibrated again,
    since folded factors change them.
    """
    proto = load_model(model)
    done = {}
    for tensor in layers_by_input(GraphView(proto.graph)):
        if tensor not in seen:
            continue
        view = GraphView(proto.graph)
        layers = layers_by_input(view)[tensor]
        weights = [matrix_of(view, node) for node in layers]
        weight_amax = np.max([largest_magnitudes(weight, 0) for weight in weights], axis=0)
        makers = {alpha: partial(smoothing_factors, weight_amax=weight_amax, alpha=alpha) for alpha in alphas}
        factors, result = _search(seen[tensor], weights, symmetric, makers)
        if result.alpha is not None:
            way = _apply(view, tensor, layers, factors, insert)
            before = result.error_before
            result = replace(result, way=way) if way != "left" else Smoothing(None, way, before, before)
        done[tensor] = result
    for tensor in depthwise_by_input(GraphView(proto.graph)):
        if tensor in seen:
            view = GraphView(proto.graph)
            done[tensor] = _equalize(view, tensor, depthwise_by_input(view)[tensor], seen[tensor], symmetric)
    drop_unused_initializers(proto.graph)
    save_model(proto, smoothed)
    onnx.checker.check_model(str(smoothed))  # by path, to check models above 2 GB
    return done


def smoothing_factors(activation_amax: Vector, weight_amax: Vector, alpha: float) -> Vector:
    """Return the factors of eq. 4 per input channel, scaled to a geometric mean of 1, which does not affect quantization.

    Arguments and result are float64 `(channels,)`. A channel whose activations or weights are all zero gets the factor 1.

    >>> smoothing_factors(np.array([400.0, 1.0]), np.array([1.0, 1.0]), 0.5).round(6).tolist()
    [4.472136, 0.223607]
    """
    alive = (activation_amax > 0) & (weight_amax > 0)
    logs = np.zeros(alive.shape)
    logs[alive] = alpha * np.log(activation_amax[alive]) - (1 - alpha) * np.log(weight_amax[alive])
    if alive.any():
        logs[alive] -= logs[alive].mean()
    return np.asarray(np.exp(logs))


def equalizing_factors(activation_amax: Vector) -> Vector:
    """Return the factors that give all channels the largest magnitude, float64 `(channels,)`, as the argument.

    None is raised by more than `LARGEST_RAISE`, and a channel that is all zero is left as it is.

    >>> equalizing_factors(np.array([8.0, 2.0, 0.001, 0.0])).tolist()
    [1.0, 0.25, 0.0625, 1.0]
    """
    alive = activation_amax > 0
    shares = activation_amax / activation_amax.max() if alive.any() else activation_amax
    return np.where(alive, np.maximum(shares, 1 / LARGEST_RAISE), 1.0)


def output_error(
    seen: ChannelStatistics, weights: Sequence[NDArray[Any]], factors: Vector, *, symmetric: bool
) -> float:
    """Return the relative squared error of the INT8 products `rows @ weight` with these factors, summed over the weights.

    Each weight is float `(channels, out)`, `factors` is float64 `(channels,)`.
    """
    low, high = float((seen.low / factors).min()), float((seen.high / factors).max())
    fit = fit_range(low, high, "int8", symmetric=symmetric)
    rows = fit.read(fit.store(seen.rows / factors))
    missed, whole = 0.0, 0.0
    for weight in weights:
        for start in range(0, weight.shape[1], COLUMNS_AT_ONCE):
            part = weight[:, start : start + COLUMNS_AT_ONCE].astype(np.float32, copy=False)
            scaled = by_factors(np.multiply, part, factors[:, None])
            scales = fit_weight(scaled, 1)
            exact = seen.rows @ part
            missed += float(
                np.square(rows @ read_weight(store_weight(scaled, scales, 1), scales, 1) - exact).sum(dtype=float)
            )
            whole += float(np.square(exact).sum(dtype=float))
    return missed / whole if whole else 0.0


def _search(
    seen: ChannelStatistics,
    weights: list[NDArray[Any]],
    symmetric: bool,
    makers: Mapping[float, Callable[[Vector], Vector]],
) -> tuple[Vector, Smoothing]:
    """Return the factors of least error, cross-validated: factors and ranges of one half are evaluated on rows of the other.

    `makers` return the factors of each alpha for the channels' largest magnitudes. On the rows that set them, even useless
    factors lower the error when rows are few.
    """
    one, other = seen.halves if len(seen.halves) == 2 else (seen, seen)

    def factors_of(part: ChannelStatistics, alpha: float | None) -> Vector:
        activation_amax = np.maximum(np.abs(part.low), np.abs(part.high)).astype(np.float64)
        return np.ones(len(activation_amax)) if alpha is None else makers[alpha](activation_amax)

    def error(alpha: float | None) -> float:
        pairs = ((replace(one, rows=other.rows), one), (replace(other, rows=one.rows), other))
        return (
            sum(output_error(held, weights, factors_of(part, alpha), symmetric=symmetric) for held, part in pairs) / 2
        )

    before = error(None)
    least, alpha = min((error(alpha), alpha) for alpha in makers)
    if least >= (1 - LEAST_GAIN) * before:
        return factors_of(seen, None), Smoothing(None, "left", before, before)
    return factors_of(seen, alpha), Smoothing(alpha, "left", before, least)


def layers_by_input(view: GraphView) -> dict[str, list[onnx.NodeProto]]:
    """Return the MatMul and Gemm nodes with a constant matrix, by the tensor that they read."""
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in view.graph.node:
        weight = view.constants.get(node.input[1]) if operator_of(node) in ("MatMul", "Gemm") else None
        plain = weight is not None and len(weight.dims) == 2 and weight.data_type in FLOATS
        if plain and node.input[0] not in view.constants and not attribute(node, "transA", 0):
            found.setdefault(node.input[0], []).append(node)
    return found


def matrix_of(view: GraphView, node: onnx.NodeProto) -> NDArray[Any]:
    """Return the weight as `(channels in, channels out)`."""
    weight = to_array(view.constants[node.input[1]])
    return weight.T if attribute(node, "transB", 0) else weight


def depthwise_by_input(view: GraphView) -> dict[str, list[onnx.NodeProto]]:
    """Return the depthwise Convs of a tensor, by the tensor, if no other node reads it and its producer can divide it."""
    found = {}
    for tensor, readers in view.readers.items():
        layers = [node for node, index in readers if index == 0 and _is_depthwise(view, node)]
        if layers and view.is_read_by(tensor, len(layers)) and _divided(view, tensor):
            found[tensor] = layers
    return found


def _is_depthwise(view: GraphView, node: onnx.NodeProto) -> bool:
    weight = view.constants.get(node.input[1]) if operator_of(node) == "Conv" else None
    return weight is not None and weight.data_type in FLOATS and weight.dims[1] == 1


def _divided(view: GraphView, tensor: str) -> list[Scaled] | None:
    """Return the constants to scale so that a tensor is divided by factors of axis 1; None if there are no such.

    A Mul, a Div or an Add may have one constant for all channels; they get one each.
    """
    node = view.producer.get(tensor)
    if node is None:
        return None
    match kind := operator_of(node):
        case "Conv" if all(name in view.constants for name in node.input[1:]):
            return [(node, index, np.divide) for index in range(1, len(node.input))]
        case "Relu" | "LeakyRelu" | "PRelu" if view.is_read_by(node.input[0], 1):  # for s > 0: f(x / s) = f(x) / s
            return _divided(view, node.input[0])
        case "Mul" | "Div" | "Add":
            index = next((index for index in (1, 0) if node.input[index] in view.constants), 0)
            other = node.input[1 - index]
            if node.input[index] not in view.constants or (kind == "Div" and index == 0):
                return None
            scaled = (node, index, np.multiply if kind == "Div" else np.divide)
            if kind != "Add":
                return [scaled]
            rest = _divided(view, other) if view.is_read_by(other, 1) else None
            return None if rest is None else [scaled, *rest]
    return None


def _equalize(
    view: GraphView, tensor: str, layers: list[onnx.NodeProto], seen: ChannelStatistics, symmetric: bool
) -> Smoothing:
    """Give the channels before depthwise Convs one magnitude, if that lowers the error."""
    weights = [to_array(view.constants[node.input[1]]) for node in layers]
    # To the noise, a kernel is one factor for its channel.
    norms = [np.linalg.norm(weight.reshape(len(seen.low), -1), axis=1) for weight in weights]
    factors, result = _search(seen, [np.diag(each) for each in norms], symmetric, {1.0: equalizing_factors})
    if result.alpha is None:
        return result
    along = factors.reshape(-1, *[1] * (weights[0].ndim - 2))
    for node, index, operation in [*(_divided(view, tensor) or []), *((node, 1, np.multiply) for node in layers)]:
        values = to_array(view.constants[node.input[index]])
        if operator_of(node) == "Conv":
            each = factors.repeat(len(values) // len(factors))
            scaled = operation(values, each.reshape(-1, *[1] * (values.ndim - 1)))
        else:
            scaled = operation(values, along)
        set_constant(view.graph, node, index, scaled, values.dtype)
    return replace(result, way="folded")


def _apply(view: GraphView, tensor: str, layers: list[onnx.NodeProto], factors: Vector, insert: bool) -> Way:
    """Multiply the weights' rows and divide the tensor, by its producer or, with `insert`, by a Mul; return what was done."""
    dtype = matrix_of(view, layers[0]).dtype
    # A Gemm may add the tensor to its own product, as input 2.
    is_divided = all(reader in layers and index == 0 for reader, index in view.readers[tensor])
    edits = _fold(view, tensor, factors) if is_divided else None
    if edits is None and not insert:
        return "left"
    multiply_rows(view, layers, factors)
    for node, index, values in edits or []:
        set_constant(view.graph, node, index, values, values.dtype)
    if edits is None:
        _multiply(view, tensor, layers, (1 / factors).astype(dtype))
    return "multiplied" if edits is None else "folded"


def multiply_rows(view: GraphView, layers: Iterable[onnx.NodeProto], factors: Vector) -> None:
    """Multiply the weights of MatMul and Gemm nodes by `factors`, float64 `(channels in,)`; each node gets its own weight."""
    for node in layers:
        transposed = attribute(node, "transB", 0)
        weight = to_array(view.constants[node.input[1]])
        values = by_factors(np.multiply, weight, factors if transposed else factors[:, None])
        set_constant(view.graph, node, 1, values, weight.dtype)


def _fold(view: GraphView, tensor: str, factors: Vector) -> list[Edit] | None:
    """Return the constants to replace so that a tensor is divided by `factors` along its last axis; None if impossible."""
    node = view.producer.get(tensor)
    if node is None or tensor in view.pinned:
        return None
    match operator_of(node):
        case "Relu" | "LeakyRelu":  # for s > 0: f(x / s) = f(x) / s
            return _fold_alone(view, node.input[0], factors)
        case "LayerNormalization":
            return _divide(view, node, range(1, len(node.input)), factors)
        case "com.microsoft:SkipSimplifiedLayerNormalization" if node.output[0] == tensor:
            return _divide(view, node, [2], factors)  # its gain: a bias, input 3, is added before
        case "Mul" | "Add":
            index = next((index for index in (0, 1) if node.input[index] in view.constants), None)
            if index is None:
                return _fold_either(view, node, factors) if node.op_type == "Mul" else None
            edits = _divide(view, node, [index], factors)
            if node.op_type == "Mul" or edits is None:
                return edits
            rest = _fold_alone(view, node.input[1 - index], factors)
            return None if rest is None else [*edits, *rest]
        case "MatMul" | "Gemm":
            if len(getattr(view.constants.get(node.input[1]), "dims", ())) < 2:
                return None  # a vector has no axis of output channels
            edits = _divide(view, node, [1], factors[:, None] if attribute(node, "transB", 0) else factors)
            bias = _divide(view, node, [2], factors) if len(node.input) > 2 and node.input[2] else []
            return None if edits is None or bias is None else [*edits, *bias]
    return None


def _fold_alone(view: GraphView, tensor: str, factors: Vector) -> list[Edit] | None:
    return _fold(view, tensor, factors) if len(view.readers.get(tensor, [])) == 1 else None


def _fold_either(view: GraphView, product: onnx.NodeProto, factors: Vector) -> list[Edit] | None:
    """Fold the division into either operand of a product of activations, such as a gate."""
    folds = (_fold_alone(view, name, factors) for name in dict.fromkeys(product.input))
    return next((edits for edits in folds if edits is not None), None)


def _divide(view: GraphView, node: onnx.NodeProto, indices: Iterable[int], factors: Vector) -> list[Edit] | None:
    """Return a node's constants divided by `factors`; None if one is not constant or has other channels."""
    edits = []
    for index in indices:
        constant = view.constants.get(node.input[index])
        if constant is None or not constant.dims:
            return None
        values = to_array(constant)
        axis = -factors.ndim
        if values.ndim < factors.ndim or values.shape[axis] != len(factors):
            return None
        edits.append((node, index, by_factors(np.divide, values, factors)))
    return edits


def by_factors(operation: np.ufunc, values: NDArray[Any], factors: Vector) -> NDArray[Any]:
    """Return `operation(values, factors)` in the dtype of the values, computed in float64 without a float64 copy."""
    return np.asarray(operation(values, factors, out=np.empty_like(values), casting="unsafe"))


def set_constant(graph: onnx.GraphProto, node: onnx.NodeProto, index: int, values: NDArray[Any], dtype: Any) -> None:
    """Give the node a constant of its own, since others may read the present one."""
    node.input[index] = Names(graph).store(graph, f"{node.input[index]}_smoothed", np.asarray(values, dtype))


def _multiply(view: GraphView, tensor: str, layers: list[onnx.NodeProto], inverse: NDArray[Any]) -> None:
    """Insert a Mul between the tensor and its products."""
    names = Names(view.graph)
    name, end = names.store(view.graph, f"{tensor}_smoothing", inverse), names.new(f"{tensor}_smoothed")
    for node in layers:
        node.input[0] = end
    producer = view.producer.get(tensor)
    place = 0 if producer is None else list(view.graph.node).index(producer) + 1
    view.graph.node.insert(place, helper.make_node("Mul", [tensor, name], [end], name=names.new(f"{tensor}_smooth")))

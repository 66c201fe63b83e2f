"""TensorRT rules about factors of products that the engine silently multiplies in float; see `tensorrt_rules.py`."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE, label, type_name
from validators.graph.lint import Findings, Rule
from validators.graph.quantized_graph import QuantizedFactor, QuantizedGraph, QuantizedProduct


def weight_axis(graph: QuantizedGraph) -> Findings:
    """Weights with scales along another axis than that of the output channels are multiplied in float.

    Scales factor out of an integer sum only if they are equal for all summands: not along K, nor along the batch of a product
    of many matrices. The axis is 0 for Conv and for Gemm with transB, else the last.
    """
    for product, index, item in _per_axis(graph):
        if item.stored and item.dims and item.axis != product.output_axis(index, len(item.dims)):
            yield (
                label(product.node),
                f"{item.scales} scales along axis {item.axis} of {list(item.dims)} ({label(item.node)})",
            )


def activation_axis(graph: QuantizedGraph) -> Findings:
    """Activations with scales along an axis are multiplied in float.

    Exception: the rows or columns of a product of two matrices, where the scales are those of the result.
    """
    for product, index, item in _per_axis(graph):
        shape = product.scope.shape(product.node.input[index])
        plain = shape is not None and len(shape) == 2 and item.axis == product.output_axis(index, 2)
        if not item.stored and not plain:
            yield label(product.node), f"{item.scales} scales along axis {item.axis} ({label(item.node)})"


def _per_axis(graph: QuantizedGraph) -> Iterator[tuple[QuantizedProduct, int, QuantizedFactor]]:
    """Yield the factors with scales along one axis, of products with both factors quantized."""
    for product in graph.products:
        if product.node.op_type not in ("Conv", "Gemm", "MatMul") or len(product.quantized) < 2:
            continue
        for index, side in enumerate(product.sides):
            item = side.quantized
            if item is not None and item.axis is not None and not item.blocks:
                yield product, index, item


def one_side(graph: QuantizedGraph) -> Findings:
    """A product with one quantized factor is computed in float.

    The quantized factor is dequantized first, inside the kernel or in a separate one. Weight-only INT4 is meant to work so.
    Only operators that move values, or scale all of them by one factor, may stand between DequantizeLinear and a product.
    """
    for product in graph.products:
        if len(product.quantized) != 1 or _is_weight_only(product):
            continue
        index = 0 if product.sides[0].quantized is None else 1
        barrier = product.sides[index].barrier
        why = f": {barrier.op_type} ({label(barrier)}) stands before it" if barrier is not None else ""
        yield label(product.node), f"{product.node.input[index]} is not quantized, the other factor is{why}"


def _is_weight_only(product: QuantizedProduct) -> bool:
    item = product.quantized[0]
    return item.code_type == TensorProto.INT4 and item.stored


def computed_scale(graph: QuantizedGraph) -> Findings:
    """A scale that is computed from an input makes the product behind it one in float.

    Integer kernels get their scales when the engine is built.
    """
    seen: set[str] = set()
    for scope, node in graph.of_kind(QUANTIZE, DEQUANTIZE):
        name = node.input[1]
        if name not in seen and scope.is_computed(name):
            seen.add(name)
            yield label(node), f"{name} is computed"


def transposed_convolution(graph: QuantizedGraph) -> Findings:
    """ConvTranspose is computed in float whatever its inputs are."""
    for product in graph.products:
        if product.node.op_type == "ConvTranspose" and len(product.quantized) == 2:
            yield label(product.node), f"both inputs of {type_name(product.quantized[0].code_type)}"


def apart(graph: QuantizedGraph) -> Findings:
    """INT4 weights that are one block along K, per channel, per tensor, of a Conv, or of an odd row, are dequantized apart.

    A separate kernel writes them out in float for each request, and a float product reads that. With two or more blocks of 8 to
    512 along an axis, and rows of even length, one kernel reads the INT4 weights directly.
    """
    for product in graph.products:
        if len(product.quantized) != 1 or not _is_weight_only(product):
            continue
        item = product.quantized[0]
        if reason := _why_apart(product, item):
            yield label(product.node), reason


def _why_apart(product: QuantizedProduct, item: QuantizedFactor) -> str:
    if product.node.op_type == "Conv":
        return "INT4 weights of a Conv"
    if not item.blocks:
        return "INT4 weights per channel" if item.scales > 1 else "INT4 weights per tensor"
    if item.blocks == 1:
        return "INT4 weights in one block for all of K"
    if item.dims and item.dims[-1] % 2:
        return f"INT4 weights in rows of {item.dims[-1]}, an odd number"
    return ""


FLOAT_RULES: tuple[Rule, ...] = (
    Rule("TRT201", "weight-axis", "float", weight_axis, "give scales per output channel, or one for all"),
    Rule("TRT202", "activation-axis", "float", activation_axis, "quantize activations per tensor"),
    Rule("TRT203", "one-side", "float", one_side, "quantize both factors right before the product, or neither"),
    Rule("TRT204", "computed-scale", "float", computed_scale, "calibrate, and store the scales as constants"),
    Rule("TRT205", "transposed-convolution", "float", transposed_convolution, "leave ConvTranspose in float16"),
    Rule(
        "TRT206",
        "int4-apart",
        "float",
        apart,
        "use at least two blocks of 64 or 128, or leave it in float16",
    ),
)

"""TensorRT rules about products that the engine silently multiplies in float, and avoidable work around products.

See `tasks/engines/tensorrt/rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE, Scope, is_standard, label, type_name
from validators.graph.lint import Findings, Rule
from validators.graph.quantized_graph import (
    PRODUCTS,
    QuantizedFactor,
    QuantizedGraph,
    QuantizedProduct,
    passes,
)

FP8 = TensorProto.FLOAT8E4M3FN


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


def int4_apart(graph: QuantizedGraph) -> Findings:
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


def float32_base(graph: QuantizedGraph) -> Findings:
    """Products whose scales are of FLOAT give float32, and all that is not quantized runs in it.

    Types are those of the file: TensorRT does not lower to float16 on its own.
    """
    found = [item for item in graph.products if item.quantized and item.quantized[0].float_type == TensorProto.FLOAT]
    if found:
        yield (
            label(found[0].node),
            f"{len(found)} of {len(graph.products)} products with scales of FLOAT, this the first",
        )


def idle_pair(graph: QuantizedGraph) -> Findings:
    """A pair of QuantizeLinear and DequantizeLinear that no product reads rounds for nothing.

    The surrounding kernel computes it: between a Conv and its Relu, before a sum, or at an output. It makes nothing run in
    integers.
    """
    for scope, node in graph.of_kind(QUANTIZE):
        if scope.constant(node.input[0]) is not None:
            continue
        ends = list(_dequantized(scope, node.output[0]))
        if ends and not any(_reaches_product(where, end.output[0]) for where, end in ends):
            made = scope.producer(node.input[0])
            read = sorted({reader.op_type for where, end in ends for _, reader, _ in where.read_by(end.output[0])})
            yield label(node), f"between {made.op_type if made else 'an input'} and {', '.join(read) or 'an output'}"


def _dequantized(scope: Scope, name: str) -> Iterator[tuple[Scope, onnx.NodeProto]]:
    """Yield every DequantizeLinear of a quantized tensor, also downstream of operators that move it."""
    for where, node, _ in scope.read_by(name):
        if node.op_type == DEQUANTIZE:
            yield where, node
        elif passes(where, node) or node.op_type == "Concat":
            for output in node.output:
                yield from _dequantized(where, output)


def _reaches_product(scope: Scope, name: str) -> bool:
    for where, node, index in scope.read_by(name):
        # A function or plugin may multiply it.
        if not is_standard(node) or (node.op_type in PRODUCTS and index < 2):
            return True
        if (passes(where, node) or node.op_type == "Concat") and any(
            _reaches_product(where, out) for out in node.output
        ):
            return True
    return False


def two_scales(graph: QuantizedGraph) -> Findings:
    """A tensor that is quantized twice with different scales is written twice.

    Pairs with equal scales are merged, so each reader may have its own pair.
    """
    for scope in graph.scopes:
        for name, readers in scope.readers.items():
            found: dict[bytes, onnx.NodeProto] = {}
            for where, node, index in readers:
                scale = where.constant(node.input[1]) if node.op_type == QUANTIZE and index == 0 else None
                if scale is not None:
                    found.setdefault(where.numbers(scale).tobytes(), node)
            if len(found) > 1:
                yield label(list(found.values())[1]), f"{name} with {len(found)} scales"


def padded_channels(graph: QuantizedGraph) -> Findings:
    """Quantized channels are padded by a copy: of Conv to a multiple of 4 a group, of products to an even number.

    A depthwise convolution has one channel per group, and is always padded.
    """
    for product in graph.products:
        if len(product.quantized) < 2 or product.node.op_type == "ConvTranspose":
            continue
        for item in product.quantized:
            if not item.stored or len(item.dims) < 2:
                continue
            if product.node.op_type == "Conv":
                if item.dims[1] % 4:
                    yield label(product.node), f"{item.dims[1]} channels a group"
            elif any(dim % 2 for dim in item.dims[-2:]):
                yield label(product.node), f"a matrix of {' x '.join(map(str, item.dims[-2:]))}"


def attention(graph: QuantizedGraph) -> Findings:
    """Quantized attention is one kernel only with all four factors of FP8, float16 around them, and a fixed sequence.

    In float16 it is one kernel, for sequences of any length. INT8, FP8 in only one of its two products, float32 around FP8, or
    a dynamic sequence split it into three or more kernels. The batch may be dynamic.
    """
    products = {id(product.node): product for product in graph.products}
    for scope, softmax in graph.of_kind("Softmax"):
        first = _product_before(scope, softmax, products)
        second = _product_behind(scope, softmax.output[0], products)
        if first is None or second is None or not (first.quantized or second.quantized):
            continue
        if reason := _why_not_fused(first, second, scope.shape(softmax.output[0])):
            yield label(softmax), reason


def _why_not_fused(first: QuantizedProduct, second: QuantizedProduct, shape: list[int] | None) -> str:
    factors = [*first.quantized, *second.quantized]
    if len(factors) < 4:
        return f"{len(factors)} of the 4 factors of attention are quantized"
    kinds = {item.code_type for item in factors}
    if kinds != {FP8}:
        return f"attention in {', '.join(sorted(map(type_name, kinds)))}"
    floats = {item.float_type for item in factors} - {TensorProto.FLOAT16}
    if floats:
        return f"attention in FP8 with scales of {', '.join(sorted(map(type_name, floats)))}"
    if shape is not None and not all(shape[-2:]):
        return "attention in FP8 over a dynamic sequence"
    return ""


def _product_before(
    scope: Scope, node: onnx.NodeProto, products: dict[int, QuantizedProduct]
) -> QuantizedProduct | None:
    """Return the product whose scaled and masked result a Softmax reads."""
    made = scope.producer(node.input[0])
    while made is not None and made.op_type in ("Add", "Cast", "Div", "Mul", "Where"):
        # One side may be the mask, which is not a product.
        sources = [scope.producer(name) for name in made.input if name]
        made = next((item for item in sources if item is not None and item.op_type != "Constant"), None)
    return products.get(id(made)) if made is not None and made.op_type == "MatMul" else None


def _product_behind(scope: Scope, name: str, products: dict[int, QuantizedProduct]) -> QuantizedProduct | None:
    for where, node, index in scope.read_by(name):
        if node.op_type == "MatMul" and index == 0:
            return products.get(id(node))
        if node.op_type in (QUANTIZE, DEQUANTIZE) or passes(where, node):
            return _product_behind(where, node.output[0], products)
    return None


PRODUCT_RULES: tuple[Rule, ...] = (
    Rule("TRT201", "float", weight_axis, "give scales per output channel, or one for all"),
    Rule("TRT202", "float", activation_axis, "quantize activations per tensor"),
    Rule("TRT203", "float", one_side, "quantize both factors right before the product, or neither"),
    Rule("TRT204", "float", computed_scale, "calibrate, and store the scales as constants"),
    Rule("TRT205", "float", transposed_convolution, "leave ConvTranspose in float16"),
    Rule("TRT206", "float", int4_apart, "use at least two blocks of 64 or 128, or leave it in float16"),
    Rule("TRT301", "slow", float32_base, "convert the model to float16 first, scales and all"),
    Rule("TRT302", "slow", idle_pair, "quantize only the inputs of Conv, MatMul and Gemm"),
    Rule("TRT303", "slow", two_scales, "give all readers of a tensor one scale"),
    Rule("TRT304", "slow", padded_channels, "leave it in float16, or use a multiple of 4 channels"),
    Rule("TRT305", "slow", attention, "quantize none of attention's products, or all four factors in FP8"),
)

"""Rules about Q/DQ graphs in ONNX Runtime, for the CPU provider and for the CUDA provider.

The CPU rules come from the optimized graphs and the numbers of ONNX Runtime 1.32.0 at its default optimization;
`tests/unit/validators/graph/test_ort_rules.py` reproduces them. They explain what a session shows (`validators/graph/lint.py`)
and stand alone where there is none. `pairs.py` lists the full requirements of each kernel. The CUDA
rule comes from the provider's list of kernels and is not verified by a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE, Scope, attribute, is_standard, label, type_name
from validators.graph.lint import Findings, Rule
from validators.graph.quantized_graph import QuantizedFactor, QuantizedGraph, QuantizedProduct, code_type, trace

FP8 = TensorProto.FLOAT8E4M3FN
BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
NBITS = BYTES | {TensorProto.INT4, TensorProto.UINT4}
# The smallest block that MatMulNBits takes; others are powers of 2.
LEAST_BLOCK = 16
# The largest INT8 weight whose products with 8-bit activations add up in 16 bits.
SEVEN_BITS = 64
# Operators that move values, with which the runtime swaps a pair.
SWAPPED = ("MaxPool", "Pad", "Reshape", "Slice", "Squeeze", "Unsqueeze")


def _pairs(graph: QuantizedGraph, *kinds: str) -> Iterator[QuantizedProduct]:
    """Return the products of these operators with both factors quantized."""
    return (item for item in graph.products if item.node.op_type in kinds and len(item.quantized) == 2)


def fp8(graph: QuantizedGraph) -> Findings:
    """A product in FP8 has no kernel: releases before 1.32 do not load it, newer ones compute it in float32.

    Before 1.32 it is fused to an integer kernel that has no such type; at basic optimization it loads and computes in float32
    there, too, which is valid for accuracy but not for latency.
    """
    for product in _pairs(graph, "Conv", "MatMul"):
        if any(item.code_type == FP8 for item in product.quantized):
            yield label(product.node), "both factors in E4M3"


def blocks(graph: QuantizedGraph) -> Findings:
    """A Conv or MatMul of two quantized factors, one of them in blocks, fails at the first request.

    It is fused to an integer kernel that takes one scale per output channel, and reads other scales without a word if the
    request has as many rows as there are blocks. With a float activation, blocks along K become MatMulNBits.
    """
    for product in _pairs(graph, "Conv", "MatMul"):
        for item in product.quantized:
            if item.blocks and item.code_type in BYTES:
                yield label(product.node), f"{item.blocks} blocks of {label(item.node)}, and both factors quantized"


def axis_of_sum(graph: QuantizedGraph) -> Findings:
    """A product with scales along an axis other than its output channels' fails at the first request, or gives wrong numbers.

    It is fused to an integer kernel that reads the scales as those of the output channels. If the counts match, the runtime
    reports nothing.
    """
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        for index, item in enumerate(product.sides):
            factor = item.quantized
            if factor is None or factor.axis is None or factor.blocks or factor.code_type not in BYTES:
                continue
            if not index or not factor.stored or factor.axis != product.output_axis(index, len(factor.dims)):
                yield label(product.node), f"{factor.scales} scales along axis {factor.axis} ({label(factor.node)})"


def saturation(graph: QuantizedGraph) -> Findings:
    """INT8 weights of more than 7 bits saturate in products on x86 processors without VNNI.

    vpmaddubsw adds pairs of products in 16 bits. UINT8 weights take another kernel, which is exact. This rule reads weights.
    """
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        factor = product.quantized[1]
        codes = factor.scope.constant(factor.node.input[0])
        if factor.code_type != TensorProto.INT8 or codes is None:
            continue
        largest = int(np.abs(factor.scope.numbers(codes)).max(initial=0))
        if largest > SEVEN_BITS:
            yield label(product.node), f"weights up to {largest} ({label(factor.node)})"


def gemm_bias_scale(graph: QuantizedGraph) -> Findings:
    """A Gemm with an INT32 bias of another scale than that of its factors gives wrong numbers.

    QGemm adds the bias to its sums without reading the scale.
    """
    for product, found in _foreign_biases(graph):
        if product.node.op_type == "Gemm":
            yield label(product.node), found


def _foreign_biases(graph: QuantizedGraph) -> Iterator[tuple[QuantizedProduct, str]]:
    """Yield products whose INT32 bias has another scale than the product of those of both factors, to 1 % as the runtime."""
    for product in _pairs(graph, "Conv", "Gemm"):
        bias, scales = _bias(product), [item.scale for item in product.quantized]
        if bias is None or bias.op_type != DEQUANTIZE or code_type(product.scope, bias) != TensorProto.INT32:
            continue
        numbers = [product.scope.numbers(item) for item in (*scales, product.scope.constant(bias.input[1])) if item]
        if len(numbers) == 3 and not np.allclose(numbers[2], numbers[0] * numbers[1], rtol=0.01, atol=0):
            yield product, f"the scale of the bias ({label(bias)}) is not that of the factors"


def _bias(product: QuantizedProduct) -> onnx.NodeProto | None:
    return product.scope.producer(product.node.input[2]) if len(product.node.input) > 2 else None


def float_output(graph: QuantizedGraph) -> Findings:
    """A Conv of quantized inputs whose output is also read in float, or not quantized at all, is computed in float.

    Its integer kernel outputs integers only, so a file made for TensorRT runs slower than float here.
    """
    for product in _pairs(graph, "Conv"):
        if not _ends_quantized(product):
            yield label(product.node), f"{product.node.output[0]} is not quantized, or not for all its readers"


def _ends_quantized(product: QuantizedProduct) -> bool:
    """Return True if one QuantizeLinear, behind an activation or not, is all that reads the output of a product."""
    scope, name = product.scope, product.node.output[0]
    readers = scope.read_by(name)
    if len(readers) == 1 and readers[0][1].op_type in ("Relu", "Clip") and not _leaves(scope, name):
        name = readers[0][1].output[0]
        readers = scope.read_by(name)
    return len(readers) == 1 and readers[0][1].op_type == QUANTIZE and not _leaves(scope, name)


def _leaves(scope: Scope, name: str) -> bool:
    """Return True if a tensor is an output of the graph."""
    outputs = scope.graph.output
    return name in {item if isinstance(item, str) else item.name for item in outputs}


def no_kernel(graph: QuantizedGraph) -> Findings:
    """A product of other types than INT8 and UINT8, or with an INT8 constant as its first factor, is computed in float."""
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        types = [item.code_type for item in product.quantized]
        first = product.quantized[0]
        if FP8 in types and product.node.op_type != "Gemm":
            continue
        if not set(types) <= BYTES:
            yield label(product.node), " and ".join(map(type_name, types))
        elif first.stored and first.code_type == TensorProto.INT8:
            yield label(product.node), f"the first factor is a constant ({label(first.node)})"


def float_operator(graph: QuantizedGraph) -> Findings:
    """ConvTranspose, Einsum, GRU, LSTM and RNN are computed in float whatever their inputs are."""
    for scope, node in graph.of_kind("ConvTranspose", "Einsum", "GRU", "LSTM", "RNN"):
        if is_standard(node) and any(trace(scope, node, index).quantized for index in range(len(node.input))):
            yield label(node), f"quantized inputs of {node.op_type}"


def one_side(graph: QuantizedGraph) -> Findings:
    """A product with one quantized factor is computed in float, unless its weight has one scale or blocks along K.

    MatMulNBits reads such a weight, of a MatMul or of a Gemm without transB. Any other is dequantized in each request.
    """
    for product in graph.products:
        if product.node.op_type in ("Conv", "Gemm", "MatMul") and len(product.quantized) == 1:
            item = product.quantized[0]
            if not item.stored:
                yield label(product.node), "one factor is not quantized"
            elif not _is_nbits(product, item):
                yield label(product.node), f"the weight alone is quantized ({label(item.node)})"


def _is_nbits(product: QuantizedProduct, item: QuantizedFactor) -> bool:
    plain = product.node.op_type == "MatMul" or (
        not attribute(product.node, "transB", 0) and attribute(product.node, "alpha", 1.0) == 1.0
    )
    if product.sides[1].quantized is None or not plain or len(item.dims) != 2 or item.code_type not in NBITS:
        return False
    size = attribute(item.node, "block_size", 0)
    along_k = item.blocks and item.axis == 0 and product.node.input[1] == item.node.output[0]
    return item.scales == 1 or bool(along_k and size >= LEAST_BLOCK and size & (size - 1) == 0)


def gemm_zero_point(graph: QuantizedGraph) -> Findings:
    """A Gemm with a factor whose DequantizeLinear names no zero point is computed in float.

    Its kernel has an input for each zero point, and the runtime supplies no default; MatMul needs none.
    """
    for product in _pairs(graph, "Gemm"):
        bare = [item for item in product.quantized if len(item.node.input) < 3 and item.code_type in BYTES]
        if bare:
            yield label(product.node), f"no zero point in {label(bare[0].node)}"


def float_bias(graph: QuantizedGraph) -> Findings:
    """A Gemm with a float bias and a float output, or a MatMul of two axes with an Add behind it, is computed in float.

    The runtime makes a Gemm of MatMul and Add before it looks for pairs. It quantizes a bias itself only where the output is
    quantized, and not that of an Add.
    """
    for product in _pairs(graph, "Gemm", "MatMul"):
        scope, node = product.scope, product.node
        if node.op_type == "MatMul":
            readers = scope.read_by(node.output[0])
            if len(readers) == 1 and _becomes_bias(scope, readers[0][1], node.output[0]):
                yield label(node), f"{label(readers[0][1])} adds a bias"
        elif len(node.input) > 2 and node.input[2]:
            bias = _bias(product)
            whole = bias is not None and bias.op_type == DEQUANTIZE and code_type(scope, bias) == TensorProto.INT32
            if not whole and not _ends_quantized(product):
                yield label(node), f"the bias {node.input[2]} is not of INT32"


def _becomes_bias(scope: Scope, node: onnx.NodeProto, sum_name: str) -> bool:
    """Return True if a node adds a vector to the product of two matrices."""
    if node.op_type != "Add" or len(scope.shape(sum_name) or ()) != 2:
        return False
    other = next((name for name in node.input if name != sum_name), sum_name)
    return len(scope.shape(other) or (0, 0)) == 1


def bias_scale(graph: QuantizedGraph) -> Findings:
    """A Conv with an INT32 bias of another scale than the product of those of its factors is computed in float."""
    for product, found in _foreign_biases(graph):
        if product.node.op_type == "Conv":
            yield label(product.node), found


def half_scales(graph: QuantizedGraph) -> Findings:
    """A product whose scales are of FLOAT16 is computed in float32, between conversions."""
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        half = [item for item in product.quantized if item.float_type == TensorProto.FLOAT16]
        if half:
            yield label(product.node), f"scales of FLOAT16 ({label(half[0].node)})"


def between(graph: QuantizedGraph) -> Findings:
    """An operator between DequantizeLinear and a product makes it one in float, unless it swaps places with the pair.

    Identity, MaxPool, Pad, Reshape, Slice, Squeeze, Transpose and Unsqueeze do behind a pair, Transpose alone behind a stored
    weight.
    """
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        for item in product.quantized:
            stuck = [step for step in item.path if step not in ("Identity", "Transpose", *SWAPPED * (not item.stored))]
            if stuck:
                yield label(product.node), f"{stuck[0]} behind {label(item.node)}"


def no_integers(graph: QuantizedGraph) -> Findings:
    """The CUDA provider has no kernels for quantized products: they are dequantized and computed in float, or on the CPU.

    Q/DQ pairs are fused to QLinearConv and QLinearMatMul, which only the CPU provider implements.
    """
    for product in graph.products:
        if len(product.quantized) == 2:
            yield label(product.node), " and ".join(type_name(item.code_type) for item in product.quantized)


CPU_RULES: tuple[Rule, ...] = (
    Rule("CPU001", "fails", fp8, "load it at basic optimization, for accuracy alone"),
    Rule("CPU002", "fails", blocks, "leave the activation in float, or give scales per output channel"),
    Rule("CPU101", "wrong", axis_of_sum, "give scales per output channel, and activations one scale"),
    Rule(
        "CPU102",
        "wrong",
        saturation,
        "quantize weights to 7 bits, to UINT8, or run on a processor with VNNI",
        without_vnni=True,
    ),
    Rule("CPU103", "wrong", gemm_bias_scale, "give the bias the product of both factors' scales"),
    Rule("CPU201", "float", float_output, "quantize the output, once, and let all its readers read that"),
    Rule("CPU202", "float", no_kernel, "quantize both factors to 8 bits, the constant as second factor"),
    Rule("CPU203", "float", float_operator, "leave its inputs in float, or express it by MatMul"),
    Rule("CPU204", "float", one_side, "quantize both factors, or a weight of MatMul in blocks along K"),
    Rule("CPU205", "float", gemm_zero_point, "store zero points, even if they are zeros"),
    Rule("CPU206", "float", float_bias, "give a Gemm a bias of INT32 with the product of both scales"),
    Rule("CPU207", "float", bias_scale, "give the bias the product of both factors' scales"),
    Rule("CPU208", "float", half_scales, "quantize the float32 model, so that scales are of FLOAT"),
    Rule("CPU209", "float", between, "put the pair right before the product, or store the weight as it is read"),
)
CUDA_RULES: tuple[Rule, ...] = (
    Rule("CUDA201", "float", no_integers, "use float16, INT4 weights as MatMulNBits, or the target tensorrt"),
)

"""Rules about Q/DQ graphs in ONNX Runtime, for the CPU provider and for the CUDA provider.

The CPU rules come from the optimized graphs and the numbers of ONNX Runtime 1.31.1 and 1.32.0 at its default optimization;
`tests/unit/validators/graph/test_ort_rules.py` reproduces them. `tasks/ptq/eight_bit/placement.py` lists the full requirements
of each kernel. The CUDA rule comes from the provider's list of kernels and is not verified by a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from validators.graph.graph_scope import QUANTIZE, label, type_name
from validators.graph.lint import Rule
from validators.graph.quantized_graph import QuantizedGraph, QuantizedProduct

Findings = Iterator[tuple[str, str]]
FP8 = TensorProto.FLOAT8E4M3FN
BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})


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


def axis_of_sum(graph: QuantizedGraph) -> Findings:
    """A MatMul with scales along an axis that is summed over fails at the first request, or gives wrong numbers.

    It is fused to an integer kernel that reads the scales as those of the output channels. If the counts match, the runtime
    reports nothing.
    """
    for product in _pairs(graph, "MatMul"):
        for index, item in enumerate(product.sides):
            factor = item.quantized
            if factor is None or factor.axis is None or factor.blocks or factor.code_type not in BYTES:
                continue
            if not factor.stored or factor.axis != product.output_axis(index, len(factor.dims)):
                yield label(product.node), f"{factor.scales} scales along axis {factor.axis} ({label(factor.node)})"


def float_output(graph: QuantizedGraph) -> Findings:
    """A Conv of quantized inputs whose output is not quantized is computed in float.

    Its integer kernel outputs integers only, so a file made for TensorRT runs slower than float here.
    """
    for product in _pairs(graph, "Conv"):
        if not _ends_quantized(product):
            yield label(product.node), f"{product.node.output[0]} is not quantized"


def _ends_quantized(product: QuantizedProduct) -> bool:
    readers = product.scope.read_by(product.node.output[0])
    behind = [
        reader
        for scope, node, _ in readers
        for _, reader, _ in (scope.read_by(node.output[0]) if node.op_type in ("Relu", "Clip") else [(scope, node, 0)])
    ]
    return any(reader.op_type == QUANTIZE for reader in behind)


def no_kernel(graph: QuantizedGraph) -> Findings:
    """A product of other types than INT8 and UINT8, as of INT4 or 16 bits beside them, is computed in float."""
    for product in _pairs(graph, "Conv", "Gemm", "MatMul"):
        types = [item.code_type for item in product.quantized]
        if FP8 not in types and not set(types) <= BYTES:
            yield label(product.node), " and ".join(map(type_name, types))


def transposed(graph: QuantizedGraph) -> Findings:
    """ConvTranspose is computed in float whatever its inputs are."""
    for product in _pairs(graph, "ConvTranspose"):
        yield label(product.node), "both inputs are quantized"


def float_weight(graph: QuantizedGraph) -> Findings:
    """A product whose activation alone is quantized is computed in float."""
    for product in graph.products:
        if len(product.quantized) == 1 and not product.quantized[0].stored:
            yield label(product.node), "one factor is not quantized"


def gemm_zero_point(graph: QuantizedGraph) -> Findings:
    """A Gemm with a factor whose DequantizeLinear names no zero point is computed in float.

    Its kernel has an input for each zero point, and the runtime supplies no default; MatMul needs none.
    """
    for product in _pairs(graph, "Gemm"):
        bare = [item for item in product.quantized if len(item.node.input) < 3 and item.code_type in BYTES]
        if bare:
            yield label(product.node), f"no zero point in {label(bare[0].node)}"


def no_integers(graph: QuantizedGraph) -> Findings:
    """The CUDA provider has no kernels for quantized products: they are dequantized and computed in float, or on the CPU.

    Q/DQ pairs are fused to QLinearConv and QLinearMatMul, which only the CPU provider implements.
    """
    for product in graph.products:
        if len(product.quantized) == 2:
            yield label(product.node), " and ".join(type_name(item.code_type) for item in product.quantized)


CPU_RULES: tuple[Rule, ...] = (
    Rule("CPU001", "fp8", "fails", fp8, "load it at basic optimization, for accuracy alone"),
    Rule("CPU101", "axis-of-sum", "wrong", axis_of_sum, "give scales per output channel, and activations one scale"),
    Rule(
        "CPU201",
        "float-output",
        "float",
        float_output,
        "remake the file for this runtime, which quantizes the output as well",
    ),
    Rule("CPU202", "no-kernel", "float", no_kernel, "quantize both factors to 8 bits, or weights to INT4 alone"),
    Rule("CPU203", "transposed-convolution", "float", transposed, "leave ConvTranspose in float"),
    Rule("CPU204", "float-weight", "float", float_weight, "quantize the weight as well"),
    Rule("CPU205", "gemm-zero-point", "float", gemm_zero_point, "store zero points, even if they are zeros"),
)
CUDA_RULES: tuple[Rule, ...] = (
    Rule(
        "CUDA201",
        "no-integers",
        "float",
        no_integers,
        "use float16, INT4 weights as MatMulNBits, or the target tensorrt",
    ),
)

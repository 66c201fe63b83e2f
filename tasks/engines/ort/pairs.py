"""Q/DQ pairs for ONNX Runtime's CPU provider.

ONNX Runtime replaces a node by an integer kernel when it finds DequantizeLinear on its inputs and, for most
kernels, QuantizeLinear on its output. The requirements of each kernel were read from sessions' optimized graphs of one node
each, version 1.31.1:

- Conv: integer input and weight, an INT32 bias with scale input scale * weight scale, **and** an integer output for every
  reader; else it stays in float. Gemm: the same, but the output may be float for all readers. MatMul: as Gemm, without bias.
- A product before Relu or Clip runs in integers only with an integer output after that activation.
- MatMul of rank 2 before a float Add becomes a float Gemm before integer kernels are matched. It must be rewritten to a Gemm
  with an INT32 bias (`fuse_bias`). At rank 3 the product stays an integer one.
- Weights per channel: axis 0 of Conv, the output axis of a rank-2 product. A batch of matrices runs per tensor only.
- Add, Mul, Concat, Sigmoid, ... (`KERNELS`): integer input and output, each with its own scale, so that residual additions
  and concatenations need no shared range.
- INT8 activations: nodes that share an input tensor stay in float on x86. There the runtime first converts INT8 to UINT8, and
  does so only for pairs with one reader. UINT8 has no such exception.
- MaxPool, Reshape, ... (`PASS_THROUGH`) only move numbers: the output has the scale and zero point of the input.
- Relu and Clip: saturation replaces them when the output range ends at their bounds, so they are removed.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from tasks.ptq.eight_bit.placement import (
    PASS_THROUGH,
    GraphView,
    PairRules,
    Placement,
    PlacementTask,
    left_by_operator,
    read_places,
    split_products,
)
from tasks.ptq.graph.edits import attribute
from tasks.ptq.graph.fuse_bias import fuse_bias

# Operators with an integer kernel for any scales.
KERNELS = frozenset({"Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool"})


def place_for_ort(task: PlacementTask) -> Placement:
    """Return the plan for a graph.

    `every_operator` adds products of two activations and the operators of `KERNELS` and `PASS_THROUGH` between integer kernels:
    all inputs are integers and some reader takes integers. Elsewhere a conversion would serve that node alone.
    """
    view, left = task.view, left_by_operator(task.view.graph)

    def why_float(node: onnx.NodeProto) -> str:
        reason = task.why_not(node)
        if not reason and len(node.input) > 2 and node.input[2] and not _is_bias(view, node):
            reason = "its bias is no constant of one number a channel"
        if not reason and node.op_type == "Conv":
            reason = task.lacking_range([_result(task, node)[0]])
        return reason

    products = split_products(view, left, why_float)
    found = {node.name: _result(task, node) for node in products}
    results = {name: tensor for name, (tensor, _) in found.items()}
    outputs = {results[node.name] for node in products if node.op_type == "Conv"}
    chain = _chain(task, outputs, products) if task.every_operator else []
    for node in chain:
        outputs.update(filter(None, node.output))
    integer = {node.name for node in [*products, *chain]}
    for node in products:
        # A float output of a product costs nothing, with two exceptions. With float and integer readers the runtime picks no
        # integer kernel at all. After a Relu or Clip it needs an integer output behind that.
        readers = view.readers.get(results[node.name], [])
        in_float = view.activation_behind(node) if results[node.name] in task.ranges else None
        if (
            found[node.name][1]
            or in_float
            or any(reader.name in integer and index in view.activations(reader) for reader, index in readers)
        ):
            outputs.add(results[node.name])
    return replace(
        task.plan(integer, left, KERNELS | PASS_THROUGH),
        outputs=frozenset(outputs),
        inputs=read_places(view, products, outputs),
        shares={name: node.input[0] for node in chain if node.op_type in PASS_THROUGH for name in node.output if name},
        folded=frozenset(activation for tensor, activation in found.values() if activation and tensor in outputs),
    )


def _result(task: PlacementTask, node: onnx.NodeProto) -> tuple[str, str]:
    """Return the output tensor of a node's integer kernel, and the name of the activation folded into it ("" for none)."""
    activation = task.view.folds(node)
    if activation is None or activation.name in task.keep_float or activation.output[0] not in task.ranges:
        return node.output[0], ""
    return activation.output[0], activation.name


def _is_bias(view: GraphView, node: onnx.NodeProto) -> bool:
    bias, weight = view.constants.get(node.input[2]), view.constants.get(node.input[1])
    if bias is None or weight is None:
        return False
    channels = weight.dims[0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1]
    return list(bias.dims) in ([channels], [1, channels])


def _chain(task: PlacementTask, made: set[str], products: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes of `KERNELS` and `PASS_THROUGH` that read integers only and have an integer reader."""
    view, integers = task.view, set(made)
    candidates = []
    for node in view.graph.node:
        passes = node.op_type in PASS_THROUGH
        if node.domain or node.name in task.keep_float or not (passes or node.op_type in KERNELS):
            continue
        if node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1]:
            continue  # its second output, the indices of the largest, is not a quantized tensor
        reads = [node.input[index] for index in view.activations(node)]
        if reads and all(name in integers for name in reads) and (passes or node.output[0] in task.ranges):
            candidates.append(node)
            integers.update(filter(None, node.output))
    wanted = {node.name for node in products}
    kept = []
    for node in reversed(candidates):
        readers = [pair for name in node.output for pair in view.readers.get(name, [])]
        if any(reader.name in wanted and index in view.activations(reader) for reader, index in readers):
            wanted.add(node.name)
            kept.append(node)
    return kept[::-1]


PAIRS = PairRules(place=place_for_ort, prepare=fuse_bias, symmetric="never", int32_bias=True, rest_at_run_time=True)

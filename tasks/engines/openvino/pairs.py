"""Q/DQ pairs for OpenVINO: those that its INT8 kernels need.

OpenVINO's low precision transformations make an operator compute in integers when QuantizeLinear and DequantizeLinear stand
on its inputs; outputs need none (OpenVINO documentation, "Low Precision Transformations"; "Quantized models compute and
restrictions"). The rules are those of its own quantizer for CPUs (NNCF, `hardware/configs/cpu.json` and "Post-training
quantization": symmetric preset), as far as what the provider ran said the same: the kernels that its version 1.8.1 names in a
profile, of an encoder and of a CNN.

- Both inputs of Conv, MatMul and Gemm with constant weights; weights symmetric INT8, per output channel.
- Zero points are 0: UINT8 for what is never negative, INT8 from -127 for the rest. With other zero points the inputs of
  products of two activations are made float again by three operators, and the products run in float.
- Biases stay float: they are added to the sums in the kernel.
- `-all`: products of two activations, such as queries and keys; and sums and concatenations of what integer kernels made, for
  those to come: both inputs of a residual sum, each with a scale of its own.
- A tensor that is quantized for others and added to a convolution's result is read as integers by the sum, too.
- Tables of embeddings: INT8 with a scale for each row, read as they are and made float row by row, as NNCF has them.
- Products with a softmax stay in float, as NNCF has them for transformers: its small numbers lose most in 8 bits.
  On MiniLM-L6 (959 samples) accuracy was 0.753 with them, 0.757 without, and 0.758 without any product of two activations.
- Gelu, SiLU, Sigmoid, Softmax, normalizations, and sums that they read, stay in float.
- Factors before a product become positive, and their signs move into its weights (`signs.py`); else the product stays in float.
- On processors that add pairs of products in 16 bits, weights have 7 bits, as its quantizer has it (NNCF, `OverflowFix`), and
  products of two activations, which have 8, stay in float.

INT8 with ranges at run time: the weights of MatMul and Gemm alone are stored as INT8, and OpenVINO quantizes the activations by
itself, in groups of `DYNAMIC_QUANTIZATION_GROUP_SIZE` channels, on x86 with VNNI (`useDynamicQuantizationImpl` of its CPU
plugin). Weights of convolutions would become float when the model is loaded.

Not taken: DynamicQuantizeLinear and MatMulInteger, which ran as float products between conversions, slower than the float
model; weights stored in float16, which become float32 when the model is loaded, as its plugin keeps them for language models
alone: a smaller file, no less memory and no faster; the runtime's fused operators, since it fuses attention, sums and
normalizations itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx

from tasks.engines.openvino.signs import has_negative_factors, make_factors_positive
from tasks.ptq.eight_bit.placement import (
    FLOATS,
    FOLDED,
    PASS_THROUGH,
    GraphView,
    PairRules,
    Placement,
    PlacementTask,
    read_places,
    split_products,
)
from tasks.ptq.graph.edits import attribute, custom_operators, operator_of

SUMS = frozenset({"Add", "Concat"})
SOFTMAX = "it reads a softmax, whose small numbers lose most in 8 bits"
NEGATIVE = "it reads a product with negative constants, which OpenVINO would merge into the quantization wrongly"
SATURATES = "sums of its products of two activations would saturate on an x86 processor without VNNI"
# Integers pass through these as they are: saturated, or in another place.
CARRIERS = FOLDED | PASS_THROUGH


def place_for_openvino(task: PlacementTask) -> Placement:
    """Return the plan for a graph. Weights have 7 bits on processors that add pairs of products in 16 bits."""
    view, left = task.view, custom_operators(task.view.graph)

    def why_float(node: onnx.NodeProto) -> str:
        reason = task.why_not(node) or _why_float(view, node)
        return SATURATES if not reason and task.bits == 7 and node.input[1] not in view.constants else reason

    products = split_products(view, left, why_float)
    sums = _sums(task, products) if task.every_operator else []
    integer = {node.name for node in [*products, *sums]} | _tables(view, task.keep_float, bool(products))
    places = read_places(view, [*products, *sums], ())
    return replace(task.plan(integer, left, SUMS), inputs=_with_residuals(view, products, places))


def place_weights(graph: onnx.GraphProto, keep_float: Collection[str] = ()) -> Placement:
    """Return the plan for INT8 weights alone, of each MatMul and Gemm with a constant weight of two axes."""
    view, left = GraphView(graph), custom_operators(graph)
    # No range is needed: what has one of no width cannot be left out for lack of it.
    task = PlacementTask(view, {name: (0.0, 0.0) for node in graph.node for name in node.input}, False, keep_float)

    def why_float(node: onnx.NodeProto) -> str:
        weight = view.constants.get(node.input[1])
        reason = task.why_not(node)
        if not reason and node.op_type not in ("MatMul", "Gemm"):
            reason = f"a {node.op_type} with INT8 weights alone runs in float"
        if not reason and weight is not None and len(weight.dims) != 2:
            reason = f"its weight has {len(weight.dims)} axes, and those of 2 alone stay integers"
        return reason

    products = split_products(view, left, why_float)
    integer = _tables(view, keep_float, bool(products)).union(node.name for node in products)
    return task.plan(integer, left, ())


def _tables(view: GraphView, keep_float: Collection[str], has_products: bool) -> set[str]:
    """Return the Gather nodes that look up rows of a constant which nothing else reads; none in a model without products."""
    found = set()
    for node in view.graph.node if has_products else ():
        if node.op_type != "Gather" or node.domain or node.name in keep_float or attribute(node, "axis", 0):
            continue
        table = view.constants.get(node.input[0])
        readers = view.readers.get(node.input[0], [])
        if (
            table is not None
            and table.data_type in FLOATS
            and len(table.dims) == 2
            and all(reader.op_type == "Gather" for reader, _ in readers)
        ):
            found.add(node.name)
    return found


def _why_float(view: GraphView, node: onnx.NodeProto) -> str:
    """Return why a product stays in float although it could run in integers, or ""."""
    for index in view.activations(node):
        tensor = node.input[index]
        while (maker := view.producer.get(tensor)) is not None and not maker.domain and maker.op_type in CARRIERS:
            tensor = maker.input[0]
        if maker is not None and not maker.domain and maker.op_type == "Softmax":
            return SOFTMAX
        if has_negative_factors(view, tensor):
            return NEGATIVE
    return ""


def _with_residuals(
    view: GraphView, products: list[onnx.NodeProto], places: dict[str, set[tuple[str, int]]]
) -> dict[str, set[tuple[str, int]]]:
    """Return the places with those of quantized tensors that are added to a convolution's result.

    OpenVINO adds such a tensor in the kernel of the convolution, and computes another function if the sum reads the float
    tensor and a product its integers (`tests/unit/tasks/ptq/test_engine_answers.py`).
    """
    made = {node.output[0] for node in products if node.op_type in ("Conv", "ConvTranspose")}
    found = {tensor: set(readers) for tensor, readers in places.items()}
    for node in view.graph.node:
        if operator_of(node) == "Add" and made.intersection(node.input):
            for index, tensor in enumerate(node.input):
                if tensor in found:
                    found[tensor].add((node.name, index))
    return found


def _sums(task: PlacementTask, products: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes of `SUMS` between integer kernels: such kernels write their inputs and read their outputs."""
    view, made = task.view, {node.output[0] for node in products}
    candidates = set()
    for node in view.graph.node:
        if node.domain:
            continue
        if node.op_type in CARRIERS and node.input[0] in made:
            made.update(node.output)
        elif node.op_type in SUMS and node.name not in task.keep_float and set(node.input) <= made & task.ranges.keys():
            candidates.add(node.name)
            made.update(node.output)
    read = {node.input[index] for node in products for index in view.activations(node)}
    kept = []
    for node in reversed(view.graph.node):
        if node.name in candidates and node.output[0] in read:
            kept.append(node)
            read.update(node.input)
        elif not node.domain and node.op_type in CARRIERS and read.intersection(node.output):
            read.add(node.input[0])
    return kept[::-1]


PAIRS = PairRules(
    place=place_for_openvino,
    prepare=make_factors_positive,
    symmetric="below zero",
    place_weights=place_weights,
    untied=True,
    # OpenVINO 2026.4 does not compile a look-up of INT4.
    table_bits=(8,),
)

"""Which kernels really ran, and for how many multiply-accumulates each: read from the runtime, never from the file."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from tasks.runtimes.ort import open_session, run_batches
from validators.datasets import Arrays
from validators.onnx_graph import KNOWN_DOMAINS
from validators.records import Coverage, SessionSettings

Shape = tuple[int, ...]
# (node, shapes of its inputs, shapes of all initializers, shape of its output) -> multiply-accumulates
MacRule = Callable[[onnx.NodeProto, list[Shape], dict[str, Shape], Shape], int]

# Kernels of ONNX Runtime that multiply 8-bit or 4-bit operands (or 4-bit weights, in MatMulNBits). The names are those of
# the operators in the optimized graph, as its profile prints them.
LOW_PRECISION_KERNELS = frozenset(
    {
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "QAttention",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "ConvInteger",
        "MatMulNBits",
    }
)
# Of what is not an operator of a library that was registered: with those that the runtime lays out anew for its kernels.
RUNTIME_DOMAINS = KNOWN_DOMAINS | {"com.microsoft.nchwc", "com.ms.internal.nhwc"}


def measure_coverage(model: Path, settings: SessionSettings, batch: Arrays) -> Coverage:
    """Run one request under the profiler and count multiply-accumulates by kernel.

    Shapes of activations come from the profile, shapes of weights from the optimized graph that the session wrote. What a
    custom operator multiplies is not known, and not counted.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        with open_session(
            model,
            settings,
            profile_prefix=Path(folder, "profile"),
            optimized_model=optimized,
            # It pads the channels of float convolutions to blocks of 8 or 16: the padding would be counted too.
            without=("NchwcTransformer",),
        ) as session:
            run_batches(session, [batch], session.get_outputs()[0].name)
            events = json.loads(Path(session.end_profiling()).read_text())
        graph = onnx.load(optimized, load_external_data=False).graph
    graphs = list(_graphs(graph))
    nodes = {node.name: node for part in graphs for node in part.node}
    weights = {tensor.name: tuple(tensor.dims) for part in graphs for tensor in part.initializer}
    by_kernel: Counter[str] = Counter()
    in_float: Counter[str] = Counter()
    providers: set[str] = set()
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        name = event["name"].removesuffix("_kernel_time")
        kernel = event["args"]["op_name"]
        providers.add(event["args"]["provider"])
        if name not in nodes or kernel not in MAC_RULES or nodes[name].domain not in RUNTIME_DOMAINS:
            continue
        macs = _count_macs(nodes[name], event["args"], weights)
        by_kernel[kernel] += macs
        if kernel not in LOW_PRECISION_KERNELS:
            in_float[name] += macs
    return Coverage(
        macs_by_kernel=dict(by_kernel),
        low_precision=tuple(sorted(LOW_PRECISION_KERNELS & set(by_kernel))),
        float_nodes=tuple(name for name, macs in in_float.most_common() if macs),
        providers=tuple(sorted(providers)),
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all bodies of If, Loop and Scan in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                yield from _graphs(body)


def _count_macs(node: onnx.NodeProto, args: dict[str, Any], weights: dict[str, Shape]) -> int:
    """MACs of one node: product of the output's shape times the length of the sum behind each element."""
    # The profile's list leaves out absent optional inputs and prepacked weights, so that only its first entry has a known
    # place; a weight's shape is looked up in the graph.
    inputs = _shapes(args["input_type_shape"])
    if node.input[0] in weights:
        inputs = [weights[node.input[0]], *inputs[1:]]
    outputs = _shapes(args["output_type_shape"])
    return MAC_RULES[node.op_type](node, inputs, weights, outputs[0]) if inputs and outputs else 0


def _shapes(entries: Sequence[dict[str, list[int]]]) -> list[Shape]:
    return [tuple(next(iter(entry.values()))) for entry in entries]


def _matmul(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(output) * inputs[0][-2 if transposed else -1]


def _matmul_nbits(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    depth: int = next(attribute.i for attribute in node.attribute if attribute.name == "K")
    return math.prod(output) * depth


def _conv(weight_input: int) -> MacRule:
    def count(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
        weight = weights.get(node.input[weight_input], ())
        return math.prod(output) * math.prod(weight[1:]) if weight else 0

    return count


def _conv_transpose(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Each element of the input meets the whole kernel of each output channel of its group."""
    weight = weights.get(node.input[1], ())
    return math.prod(inputs[0]) * math.prod(weight[1:]) if weight else 0


def _attention(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Scores and context. ONNX Runtime's own operator (com.microsoft) also has the input projection, B*S*D x 3H.

    The standard one (opset 23) takes queries, keys and values of shape (B, heads, S, D) or (B, S, heads*D).
    """
    if node.domain != "com.microsoft":
        length = inputs[1][-2]
        return math.prod(inputs[0]) * length + math.prod(output) * length
    batch, length, depth = inputs[0]
    hidden = output[-1]
    return batch * length * depth * 3 * hidden + 2 * batch * length * length * hidden


MAC_RULES: dict[str, MacRule] = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "FusedMatMul": _matmul,
    "FusedGemm": _matmul,
    "MatMulInteger": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "DynamicQuantizeMatMul": _matmul,
    "QLinearMatMul": _matmul,
    "QGemm": _matmul,
    "MatMulNBits": _matmul_nbits,
    "Conv": _conv(1),
    "FusedConv": _conv(1),
    "NhwcFusedConv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "Attention": _attention,
    "QAttention": _attention,
}

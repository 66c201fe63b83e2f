"""QuantizeLinear and DequantizeLinear nodes that ran although they were meant to be fused into other kernels.

Some must run: the conversions to integers before the first integer kernel, and back after the last. In the runtime's optimized
graph, these were meant to be gone:

- a quantization that no integer kernel reads before the next dequantization;
- a dequantization of such values, or of weights stored as integers;
- conversions around an operator whose operands are all dequantized and whose results are all quantized, or around a product of
  two dequantized operands: a node unit in ONNX Runtime (onnxruntime/core/optimizer/qdq_transformer) without a kernel.
"""

from __future__ import annotations

import onnx

from tasks.runtimes.macs import MAC_RULES, RUNTIME_DOMAINS
from validators.targets import facts_of_provider
from validators.untrusted.external_data import graphs_of

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
CONVERSIONS = (_QUANTIZE, _DEQUANTIZE)


def find_unfused(graph: onnx.GraphProto, provider: str) -> list[str]:
    """Return the names of the Q/DQ nodes in an optimized graph that were meant to be fused, in graph order."""
    wires = _Wires(graph, provider)
    named = {id(node): node.name for node in wires.nodes if node.op_type in CONVERSIONS}
    found = {id(node) for node in wires.nodes if node.op_type == _QUANTIZE and not wires.reach_integers(node)}
    found |= {id(node) for node in wires.nodes if node.op_type == _DEQUANTIZE and wires.source_is(node, found)}
    for node in wires.nodes:
        if wires.is_unit(node):
            found |= {id(wires.makers[name]) for name in node.input if name in wires.makers}
            found |= {id(reader) for name in node.output for reader in wires.readers.get(name, [])}
    return [name for key, name in named.items() if key in found]


class _Wires:
    """Producer and readers of each tensor of a graph and its bodies."""

    def __init__(self, graph: onnx.GraphProto, provider: str) -> None:
        graphs = list(graphs_of(graph))
        self.nodes = [node for part in graphs for node in part.node]
        self.stored = {tensor.name for part in graphs for tensor in part.initializer}
        self.outputs = {value.name for part in graphs for value in part.output}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.low = facts_of_provider(provider).low_precision
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in filter(None, node.input):
                self.readers.setdefault(name, []).append(node)

    def reach_integers(self, node: onnx.NodeProto) -> bool:
        """Return whether an integer kernel, an unknown operator or the caller reads the node's results as integers."""
        for name in node.output:
            if name in self.outputs:
                return True
            for reader in self.readers.get(name, []):
                if reader.op_type == _DEQUANTIZE:
                    continue
                if reader.op_type in self.low or reader.domain not in RUNTIME_DOMAINS or self.reach_integers(reader):
                    return True
        return False

    def source_is(self, node: onnx.NodeProto, quantizers: set[int]) -> bool:
        """Return whether the values that a node dequantizes are a stored constant or come from one of `quantizers`."""
        while node.input:
            name = node.input[0]
            if name not in self.makers:
                return name in self.stored
            node = self.makers[name]
            if node.op_type == _QUANTIZE:
                return id(node) in quantizers
            if node.op_type in self.low:
                return False
        return False

    def is_unit(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is the core of a node unit, between dequantized operands and quantized results."""
        made = [self.makers[name].op_type for name in node.input if name in self.makers]
        if node.op_type in (*CONVERSIONS, *self.low) or not made or set(made) != {_DEQUANTIZE}:
            return False
        if node.op_type in MAC_RULES and len(made) > 1:
            return True
        read_by = [reader.op_type for name in node.output for reader in self.readers.get(name, [])]
        return set(read_by) == {_QUANTIZE} and not self.outputs.intersection(node.output)

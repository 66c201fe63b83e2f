"""Choice of tensors to watch in a graph: those that a quantizer would fix a range for, and the one that represents a sample."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import onnx

from tasks.ptq.graph.edits import dependent_tensors, operator_of, weight_input
from validators.errors import JobError


@dataclass(frozen=True)
class Tap:
    """A float activation that a quantizer would fix a range for, and the nodes that read it."""

    tensor: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Taps:
    """The activations to watch, and the tensor whose values represent a sample.

    The features of `representation` lie on `channel_axis`; all other axes except the first are averaged.
    """

    watched: tuple[Tap, ...]
    representation: str
    channel_axis: int


def find_taps(graph: onnx.GraphProto, output: str, representation: str | None) -> Taps:
    """Return the taps of a float graph: the inputs of MatMul, Gemm and Conv that depend on the graph's inputs.

    The default representation is the input of the last weighted layer before `output`, which holds all that the model knows
    of a sample. In a graph without such a layer it is the output itself.

    Raises:
        JobError: `representation` is not a tensor of the graph that depends on its inputs.
    """
    depends = dependent_tensors(graph)
    inputs = [name for node in graph.node if weight_input(node) for name in node.input[:2]]
    watched = _tap(graph, [name for name in inputs if name in depends], weight_input)
    if representation is None:
        return Taps(watched, *_last_weighted_input(graph, output, depends))
    if representation not in depends:
        raise JobError(
            found=f"`calibration.representation` {representation!r}",
            expected="a tensor of the model that depends on its inputs",
            fix="name a tensor of the ONNX graph, or remove the key",
        )
    return Taps(watched, representation, _channel_axis(graph, representation))


def taps_of(graph: onnx.GraphProto, output: str, tensors: Iterable[str]) -> Taps:
    """Return taps for those of `tensors` that the graph has; the output represents a sample."""
    depends = dependent_tensors(graph)
    return Taps(_tap(graph, [name for name in tensors if name in depends]), output, -1)


def _tap(
    graph: onnx.GraphProto, tensors: Iterable[str], reads: Callable[[onnx.NodeProto], object] | None = None
) -> tuple[Tap, ...]:
    """Return each tensor once, with the nodes that read it; `reads` selects the nodes that count."""
    readers: dict[str, list[str]] = {name: [] for name in tensors}
    for place, node in enumerate(graph.node):
        if reads is None or reads(node):
            for name in dict.fromkeys(node.input):
                if name in readers:
                    readers[name].append(node.name or f"{node.op_type}_{place}")
    return tuple(Tap(tensor, tuple(nodes)) for tensor, nodes in readers.items())


def _last_weighted_input(graph: onnx.GraphProto, output: str, depends: Container[str]) -> tuple[str, int]:
    """Return the input of the weighted layer nearest to the output, and its channel axis."""
    makers = {name: node for node in graph.node for name in node.output}
    waiting, seen = deque([output]), {output}
    while waiting:
        node = makers.get(waiting.popleft())
        if node is None:
            continue
        active = [name for name in node.input if name in depends]
        if weight_input(node) and node.input[1] not in depends and active:
            return node.input[0], 1 if node.op_type == "Conv" else -1
        waiting.extend(name for name in active if name not in seen)
        seen.update(active)
    return output, -1


def _channel_axis(graph: onnx.GraphProto, tensor: str) -> int:
    """Return 1 for an input or output of a convolution, else the last axis."""
    beside = [node for node in graph.node if tensor in (*node.input, *node.output)]
    return 1 if any(operator_of(node) == "Conv" for node in beside) else -1

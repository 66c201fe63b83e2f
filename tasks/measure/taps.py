"""What to watch in a graph: the tensors that a quantizer would fix a range for, and the one that stands for a sample."""

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
    """The activations to watch, and the tensor whose values stand for a sample.

    The features of `representation` lie along `channel_axis`; over other axes but the first it is averaged.
    """

    watched: tuple[Tap, ...]
    representation: str
    channel_axis: int


def find_taps(graph: onnx.GraphProto, output: str, representation: str | None) -> Taps:
    """What to watch in a float graph: the inputs of MatMul, Gemm and Conv that depend on the graph's inputs.

    The representation is what the last layer with weights before `output` reads, unless the job names another tensor: the
    layer that decides reads all that the model knows of a sample. A graph without such a layer is known by its output.

    Raises:
        JobError: `representation` is no tensor of the graph.
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
            fix="name a tensor of the ONNX graph, or leave the key out",
        )
    return Taps(watched, representation, _channel_axis(graph, representation))


def taps_of(graph: onnx.GraphProto, output: str, tensors: Iterable[str]) -> Taps:
    """The given tensors to watch, as far as the graph has them; the output stands for a sample."""
    depends = dependent_tensors(graph)
    return Taps(_tap(graph, [name for name in tensors if name in depends]), output, -1)


def _tap(
    graph: onnx.GraphProto, tensors: Iterable[str], reads: Callable[[onnx.NodeProto], object] | None = None
) -> tuple[Tap, ...]:
    """Each tensor once, with the nodes (of some that count) that read it."""
    readers: dict[str, list[str]] = {name: [] for name in tensors}
    for place, node in enumerate(graph.node):
        if reads is None or reads(node):
            for name in dict.fromkeys(node.input):
                if name in readers:
                    readers[name].append(node.name or f"{node.op_type}_{place}")
    return tuple(Tap(tensor, tuple(nodes)) for tensor, nodes in readers.items())


def _last_weighted_input(graph: onnx.GraphProto, output: str, depends: Container[str]) -> tuple[str, int]:
    """What the weighted layer nearest before the output reads, and its channel axis."""
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
    """1 for what a convolution reads or makes, else the last."""
    beside = [node for node in graph.node if tensor in (*node.input, *node.output)]
    return 1 if any(operator_of(node) == "Conv" for node in beside) else -1

"""Products that INT8 or FP8 makes slower, by costs of that and the float model; a `-fast` candidate leaves them in float.

Costs are microseconds by the runtime's own timer: ONNX Runtime's profile, or TensorRT's on a GPU. Without a GPU, the layers
of engines are counted (`tasks.engines.tensorrt.costs`).

A kernel in float also needs conversions around it, which its own time does not show. So the slowest ones are left in float
together, the model is measured again, and half of them are tried next. NVIDIA ModelOpt keeps pairs by the same ratio.

Others may compute at the same time, so the shortest of `ROUNDS` in turn counts. They only choose
what is tried; the candidate is timed and judged as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tasks.ptq.graph.edits import WEIGHT_INPUT, scratch
from tasks.ptq.sensitivity import Quantize
from tasks.runtimes.kernel_times import node_times, profile, time_kernels
from tasks.runtimes.kernels import ROUNDS, WARM_UP, Costs
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# Least ratio of a float cost to an INT8 cost for a pair to stay, and of the model's cost before to after the others go.
WORTH = 1.02
# Variants that are measured: with all slow products in float, half of them, and a quarter.
ATTEMPTS = 3
REQUESTS = WARM_UP + 7

# Returns the costs of models, which take turns while they are measured.
Measure = Callable[[Sequence[Path]], list[Costs]]


@dataclass(frozen=True)
class SlowParts:
    """Nodes to leave in float, slowest in INT8 first, and the cost of a request before and after.

    Costs are microseconds in kernels or, if not `timed`, counts of layers.
    """

    nodes: tuple[str, ...] = ()
    before: float = 0.0
    after: float = 0.0
    timed: bool = True

    @property
    def changes(self) -> dict[str, int]:
        """The nodes among a variant's changes.

        >>> SlowParts(("head",), 3.0, 2.0).changes
        {'faster in float: head': 1}
        """
        label = "faster in float" if self.timed else "float in the engine even with pairs"
        return {f"{label}: {node}": 1 for node in self.nodes}


def find_slow_parts(model: Path, quantize: Quantize, measure: Measure) -> SlowParts:
    """Return the nodes of a float model whose INT8 kernels slow down a request; none if no attempt gains `WORTH`.

    Raises:
        CandidateRefused: the model cannot be quantized or run.
    """
    with scratch() as folder:
        path = folder / "int8.onnx"
        quantize(model, (), path)
        in_float, before = measure([model, path])
        found = SlowParts((), before.total, before.total, before.timed)
        slow = slow_nodes(onnx.load(model, load_external_data=False).graph, in_float.by_node, before.by_node)
        for attempt in range(ATTEMPTS):
            nodes = slow[: len(slow) >> attempt]
            if not nodes:
                break
            tried = folder / f"without{attempt}.onnx"
            quantize(model, nodes, tried)
            # Beside the first variant, since the machine may be slower by now.
            again, after = measure([path, tried])
            if again.total >= WORTH * after.total and after.total / again.total < found.after / found.before:
                found = SlowParts(nodes, again.total, after.total, before.timed)
        return found


def slow_nodes(graph: onnx.GraphProto, in_float: dict[str, float], in_int8: dict[str, float]) -> tuple[str, ...]:
    """Return the products that are not `WORTH` times as fast in INT8, the one that loses most first.

    >>> graph = onnx.helper.make_graph([onnx.helper.make_node("Gemm", ["x", "w"], [y], name=y) for y in "abc"], "g", [], [])
    >>> slow_nodes(graph, {"a": 3.0, "b": 9.0, "c": 5.0}, {"a": 4.0, "b": 3.0, "c": 8.0})
    ('c', 'a')
    """
    loses = {
        node.name: in_int8[node.name] - in_float[node.name]
        for node in graph.node
        if node.op_type in WEIGHT_INPUT
        and node.name in in_float
        and node.name in in_int8
        and in_float[node.name] < WORTH * in_int8[node.name]
    }
    return tuple(sorted(loses, key=lambda name: -loses[name]))


def profile_costs(models: Sequence[Path], batch: Arrays, settings: SessionSettings) -> list[Costs]:
    """Return the shortest times of kernels in ONNX Runtime's profiles over `ROUNDS` in which the models take turns.

    Raises:
        CandidateRefused: the runtime does not load or run a model.
    """
    shortest: list[dict[str, float]] = [{} for _ in models]
    for _ in range(ROUNDS):
        for times, path in zip(shortest, models, strict=True):
            for kernel in time_kernels(profile(path, settings, batch, requests=REQUESTS), REQUESTS):
                times[kernel.name] = min(kernel.microseconds, times.get(kernel.name, kernel.microseconds))
    graphs = [onnx.load(path, load_external_data=False).graph for path in models]
    return [Costs(node_times(graph, times), sum(times.values())) for graph, times in zip(graphs, shortest, strict=True)]

"""Products that INT8 makes slower, found by profiles of the INT8 and the float model; a `-fast` candidate leaves them in float.

A kernel in float also needs conversions around it, which its own time does not show. So the slowest ones are left in float
together, the model is profiled again, and half of them are tried next. NVIDIA ModelOpt keeps pairs by the same ratio.

Others may compute at the same time, so the shortest of `ROUNDS` in turn counts. They only choose
what is tried; the candidate is timed and judged as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tasks.ptq.graph.edits import WEIGHT_INPUT, scratch
from tasks.ptq.sensitivity import Quantize
from tasks.runtimes.kernel_times import node_times, profile, time_kernels
from tasks.runtimes.kernels import WARM_UP
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# Least ratio of a float time to an INT8 time for a pair to stay, and of the model's time before to after the others go.
WORTH = 1.02
# Variants that are profiled: with all slow products in float, half of them, and a quarter.
ATTEMPTS = 3
ROUNDS, REQUESTS = 2, WARM_UP + 7


@dataclass(frozen=True)
class SlowParts:
    """Nodes to leave in float, slowest in INT8 first, and the model's microseconds in kernels before and after."""

    nodes: tuple[str, ...] = ()
    before_us: float = 0.0
    after_us: float = 0.0


@dataclass(frozen=True)
class _Times:
    by_node: dict[str, float]
    total: float


def find_slow_parts(model: Path, quantize: Quantize, batch: Arrays, settings: SessionSettings) -> SlowParts:
    """Return the nodes of a float model whose INT8 kernels slow down a request; none if no attempt gains `WORTH`.

    Raises:
        CandidateRefused: the model cannot be quantized or run.
    """
    with scratch() as folder:
        path = folder / "int8.onnx"
        quantize(model, (), path)
        in_float, before = _times([model, path], batch, settings)
        found = SlowParts(before_us=before.total, after_us=before.total)
        slow = slow_nodes(onnx.load(model, load_external_data=False).graph, in_float.by_node, before.by_node)
        for attempt in range(ATTEMPTS):
            nodes = slow[: len(slow) >> attempt]
            if not nodes:
                break
            tried = folder / f"without{attempt}.onnx"
            quantize(model, nodes, tried)
            # Beside the first variant, since the machine may be slower by now.
            again, after = _times([path, tried], batch, settings)
            if again.total >= WORTH * after.total and after.total / again.total < found.after_us / found.before_us:
                found = SlowParts(nodes, again.total, after.total)
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


def _times(models: Sequence[Path], batch: Arrays, settings: SessionSettings) -> list[_Times]:
    """Return the shortest times of each model's kernels over `ROUNDS` in which the models take turns."""
    shortest: list[dict[str, float]] = [{} for _ in models]
    for _ in range(ROUNDS):
        for times, path in zip(shortest, models, strict=True):
            for kernel in time_kernels(profile(path, settings, batch, requests=REQUESTS), REQUESTS):
                times[kernel.name] = min(kernel.microseconds, times.get(kernel.name, kernel.microseconds))
    graphs = [onnx.load(path, load_external_data=False).graph for path in models]
    return [
        _Times(node_times(graph, times), sum(times.values())) for graph, times in zip(graphs, shortest, strict=True)
    ]

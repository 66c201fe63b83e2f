"""Kernels in the runtime's profile: which ran, on which provider, for how long.

ONNX Runtime derives kernel names from node names (observed with 1.31.1 on a CPU):

QGemm, QLinearMatMul, MatMulIntegerToFloat, DynamicQuantizeMatMul, QAttention    the node's
QLinearConv, and others that a layout pass copies                                `<node>_token_<number>`
Gemm, Conv with their activation                                                 `fused <node>`
Gemm of MatMul and Add, FusedMatMul with a factor                                `<node>/MatMulAddFusion`, `/MatMulScaleFusion/`
Either with a transposed input                                                   `<node>/MatmulTransposeFusion/`, or `/Gemm…`
Conv in float, in blocks of channels                                             `<tensor>_nchwc`, with the output of the
                                                                                 activation if that was fused
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import onnx

from tasks.runtimes.kernels import WARM_UP
from tasks.runtimes.ort import open_session, run_batches
from validators.records.measurements import KernelTime
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

_KERNEL = re.compile(r"^(?:fused )?(?P<node>.*?)(?:/(?:Gemm|Mat[Mm]ul)[A-Z][a-z]+Fusion/?)*(?:_token_\d+)?$")


class KernelEvent(NamedTuple):
    """One run of one kernel: its name, microseconds, and the profile's arguments (`op_name`, `provider`, shapes)."""

    name: str
    microseconds: float
    args: dict[str, Any]


def profile(
    model: Path, settings: SessionSettings, batch: Arrays, *, requests: int = 1, **options: Any
) -> list[dict[str, Any]]:
    """Return the profiler's events of `requests` requests; `options` are passed to `open_session`.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(model, settings, profile_prefix=Path(folder, "profile"), **options) as session,
    ):
        output = session.get_outputs()[0].name
        for _ in range(requests):
            run_batches(session, [batch], output)
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    return events


def kernel_events(events: Iterable[dict[str, Any]]) -> Iterator[KernelEvent]:
    """Yield every run of a kernel among the events of a profile, in order."""
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            yield KernelEvent(event["name"].removesuffix("_kernel_time"), float(event["dur"]), event["args"])


def time_kernels(events: Iterable[dict[str, Any]], requests: int) -> tuple[KernelTime, ...]:
    """Return each kernel of a profile of `requests` requests, without the first `WARM_UP` unless there are no others."""
    warm_up = WARM_UP if requests > WARM_UP else 0
    runs: dict[tuple[str, str, str], list[float]] = {}
    for name, microseconds, args in kernel_events(events):
        runs.setdefault((name, args.get("op_name", ""), args.get("provider", "")), []).append(microseconds)
    return tuple(
        KernelTime(*kernel, median(times[len(times) * warm_up // requests :]) * len(times) / requests)
        for kernel, times in runs.items()
    )


def node_times(graph: onnx.GraphProto, times: Mapping[str, float]) -> dict[str, float]:
    """Return the times of a graph's nodes, by name, from the times of its kernels; nodes without a known kernel are left out.

    >>> graph = onnx.helper.make_graph([onnx.helper.make_node("Gemm", ["x", "w"], ["y"], name="head")], "g", [], [])
    >>> node_times(graph, {"fused head": 8.0, "y_quantize": 2.0})
    {'head': 8.0}
    """
    by_node = {_KERNEL.sub(r"\g<node>", name): time for name, time in times.items()} | dict(times)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = {}
    for node in graph.node:
        known = next((by_node[name] for name in _kernel_names(node, readers) if name in by_node), None)
        if known is not None:
            found[node.name] = known
    return found


def _kernel_names(node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]]) -> Iterable[str]:
    yield node.name
    if node.op_type == "Conv":
        yield f"{node.output[0]}_nchwc"
        behind = readers.get(node.output[0], [])
        if len(behind) == 1:
            yield f"{behind[0].output[0]}_nchwc"

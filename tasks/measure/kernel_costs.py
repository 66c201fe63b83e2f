"""Time of each node of a variant under the profiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from tasks.measure.request import request_batch
from tasks.runtimes.kernel_times import kernel_times, node_times
from validators.job.job_measurement import OperatingPoint
from validators.records.run import Variant
from validators.samples.run_inputs import Evidence


@dataclass(frozen=True)
class KernelCosts:
    """Microseconds a request under the profiler: of the nodes of which a kernel is known, and of all kernels."""

    by_node: dict[str, float]
    total: float


def make_kernel_costs(variant: Variant, evidence: Evidence, point: OperatingPoint, _: Path) -> KernelCosts:
    """Profile one request shape under the settings that the variant is measured with."""
    times = kernel_times(variant.path, variant.session, request_batch(evidence, point))
    graph = onnx.load(variant.path, load_external_data=False).graph
    return KernelCosts(node_times(graph, times), sum(times.values()))

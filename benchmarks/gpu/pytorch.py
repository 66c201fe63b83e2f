"""The cells of PyTorch: launches of a process whose modes take turns, and the metric of each mode."""

from __future__ import annotations

import statistics
from typing import Any

from gpu.apart import apart
from gpu.inventory import versions
from gpu.make import Workshop
from gpu.pytorch_modes import MODES, Launch, measure_launch, rows_of_module
from gpu.record import REFUSED
from gpu.session import CONFIDENCE, PYTORCH, Check, accuracy, achieved, interval
from tasks.measure.latency.ratio import ratio_estimate

HALF = "fp16"


def measure_pytorch(check: Check, workshop: Workshop, model: str, device: str) -> None:
    """The metric of each mode, then the latency of all modes at each batch size, the modes in turn."""
    bundle = workshop.bundle
    for mode in MODES:

        def artifact(mode: str = mode) -> dict[str, Any]:
            rows, value = apart(rows_of_module, bundle, mode, device, seconds=check.options.seconds)
            return {"versions": versions(), **accuracy(bundle, workshop.reference(), rows, value)}

        check.figure("artifacts", f"{PYTORCH}/{model}/{mode}", artifact)
    for batch in check.options.batches or bundle.notes.batch_sizes:
        keys = {mode: f"{PYTORCH}/{model}/b{batch}/{mode}" for mode in MODES}
        if all(check.results.has("cells", key) for key in keys.values()) and not check.options.again:
            continue
        launches: list[Launch] = []

        # All modes come of the same launches, so that the first one that is asked for makes them.
        for mode, key in keys.items():

            def cell(mode: str = mode, launches: list[Launch] = launches, batch: int = batch) -> dict[str, Any]:
                while len(launches) < check.options.launches:
                    launches.append(apart(measure_launch, bundle, batch, MODES, device, seconds=check.options.seconds))
                return describe_launches(workshop, launches, mode, batch)

            check.figure("cells", key, cell)


def describe_launches(workshop: Workshop, launches: list[Launch], mode: str, batch: int) -> dict[str, Any]:
    """The median over all blocks, and the ratio to float16 with an interval over launches."""
    for launch in launches:
        if mode in launch.refused:
            return {REFUSED: {"kind": "unsupported", "reason": launch.refused[mode]}}
    p50_ms = statistics.median(ms for launch in launches for ms in launch.blocks_ms[mode])
    others = [other for other in (HALF, MODES[0]) if other != mode]
    against = next((other for other in others if all(other in launch.blocks_ms for launch in launches)), mode)
    ratios = [
        [other / one for other, one in zip(launch.blocks_ms[against], launch.blocks_ms[mode], strict=True)]
        for launch in launches
    ]
    weights = workshop.bundle.source.stat().st_size // (1 if mode == MODES[0] else 2)
    memory = [launch.memory_mb[mode] for launch in launches]
    return {
        "batch_size": batch,
        "p50_ms": p50_ms,
        "against": against,
        "speedup": interval(ratio_estimate(ratios, CONFIDENCE)),
        "launches": len(launches),
        "allocated_gpu_memory_mb": max((mb for mb in memory if mb is not None), default=None),
        **achieved(batch * workshop.reference().macs, weights, p50_ms),
    }

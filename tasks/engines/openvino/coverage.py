"""Coverage of a model that OpenVINO runs, read from the graph that it executes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import onnx

from tasks.engines.openvino.ir import graph_of_ir
from tasks.engines.openvino.kernels import (
    ALONE,
    as_asked,
    executed_steps,
    kernel_times,
    kernels_by_node,
    products_behind,
)
from tasks.engines.openvino.session import open_model
from tasks.runtimes.coverage import macs_as_written, sum_up
from tasks.runtimes.kernels import PROFILED, WARM_UP, Kernel
from tasks.runtimes.runner import ModelRunner
from validators.records.measurements import UNNAMED, Coverage
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays


def measure(
    model: Path,
    settings: SessionSettings,
    batch: Arrays,
    folder: Path | None,
    open_it: Callable[[Path, SessionSettings], AbstractContextManager[ModelRunner]] = open_model,
) -> Coverage:
    """Return the coverage of a request: multiply-accumulates of the file's nodes, by the kernel that OpenVINO ran for each.

    A product that no executed step names has unknown precision. Times are those of OpenVINO's counters. The list of all
    kernels is written into `folder`.

    Raises:
        CandidateRefused: OpenVINO, or ONNX Runtime, which counts, does not load or run the model.
    """
    if model.suffix == ".xml":
        graph, counted = graph_of_ir(model, batch)
    else:
        graph, counted = onnx.load(model, load_external_data=False).graph, Counter[str]()
        for name, macs in macs_as_written(model, batch):
            counted[name] += macs
    profiled = replace(settings, provider_options=settings.provider_options | {"PERF_COUNT": "YES"})
    with open_it(model, profiled) as runner:
        names = [output.name for output in runner.outputs]
        request = partial(runner.run, batch, names)
        steps = executed_steps(runner.model.compiled, request, requests=PROFILED - WARM_UP, warm_up=WARM_UP)
    kernels = as_asked(graph, kernels_by_node(steps, products_behind(graph, counted)))
    unnamed = Kernel(UNNAMED, is_low_precision=False)
    found = {name: kernels.get(name, unnamed) for name, macs in counted.most_common() if macs}
    times = Counter[str]()
    # The time of a kernel that computed some product in float unasked counts as float.
    unasked = {kernel.name.removesuffix(ALONE): kernel for kernel in found.values() if kernel.name.endswith(ALONE)}
    ran = [unasked.get(step.kernel.name, step.kernel) for step in steps] + list(found.values())
    for step, kernel in zip(steps, ran, strict=False):
        times[kernel.name] += step.microseconds  # type: ignore[assignment]  # a counter of floats
    path = None
    if folder is not None:
        path = folder / "kernels.json"
        path.write_text(json.dumps([asdict(kernel) for kernel in kernel_times(steps)], indent=1), encoding="utf-8")
    return replace(
        sum_up([(name, counted[name], kernel) for name, kernel in found.items()], (settings.provider,)),
        low_precision=tuple(sorted({kernel.name for kernel in ran if kernel.is_low_precision})),
        half_precision=tuple(sorted({kernel.name for kernel in ran if kernel.is_half})),
        us_by_kernel=dict(times),
        kernels_path=path,
    )

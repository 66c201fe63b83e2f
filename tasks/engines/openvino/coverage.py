"""Coverage of a model that OpenVINO runs, read from the graph that it executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from tasks.engines.openvino.ir import graph_of_ir
from tasks.engines.openvino.kernels import (
    ALONE,
    ExecutedStep,
    as_asked,
    executed_steps,
    kernels_by_node,
    product_times,
    products_behind,
)
from tasks.engines.openvino.session import open_model
from tasks.engines.openvino.shipped.model import PROVIDER
from tasks.runtimes.coverage import macs_as_written, sum_up
from tasks.runtimes.kernels import PROFILED, ROUNDS, WARM_UP, Costs, Kernel, write_kernels
from tasks.runtimes.runner import ModelRunner
from validators.records.measurements import UNNAMED, Coverage, KernelTime
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# Blocks of requests, of which the one with the shortest time counts: others may compute at the same time.
BLOCKS = 4


def profile(
    model: Path,
    settings: SessionSettings,
    batch: Arrays,
    open_it: Callable[[Path, SessionSettings], AbstractContextManager[ModelRunner]] = open_model,
    blocks: int = 1,
) -> tuple[ExecutedStep, ...]:
    """Return the executed steps of a request with their times; see `executed_steps`.

    Raises:
        CandidateRefused: OpenVINO does not load or run the model.
    """
    profiled = replace(settings, provider_options=settings.provider_options | {"PERF_COUNT": "YES"})
    with open_it(model, profiled) as runner:
        names = [output.name for output in runner.outputs]
        request = partial(runner.run, batch, names)
        counts = {"requests": PROFILED - WARM_UP, "warm_up": WARM_UP, "blocks": blocks}
        return executed_steps(runner.model.compiled, request, **counts)


def profile_costs(models: Sequence[Path], batch: Arrays, settings: SessionSettings) -> list[Costs]:
    """Return the shortest times of the steps behind each product over `ROUNDS` in which the models take turns.

    Raises:
        CandidateRefused: OpenVINO does not load or run a model.
    """
    shortest: list[dict[str, ExecutedStep]] = [{} for _ in models]
    for _ in range(ROUNDS):
        for steps, path in zip(shortest, models, strict=True):
            for step in profile(path, settings, batch, blocks=BLOCKS):
                before = steps.get(step.name)
                steps[step.name] = step if before is None or step.microseconds < before.microseconds else before
    costs = []
    for steps, path in zip(shortest, models, strict=True):
        graph = onnx.load(path, load_external_data=False).graph
        products = {name for name, macs in macs_as_written(path, batch) if macs}
        times = product_times(steps.values(), products_behind(graph, products))
        costs.append(Costs(times, sum(step.microseconds for step in steps.values())))
    return costs


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
    steps = profile(model, settings, batch, open_it)
    kernels = as_asked(graph, kernels_by_node(steps, products_behind(graph, counted)))
    unnamed = Kernel(UNNAMED, is_low_precision=False)
    found = {name: kernels.get(name, unnamed) for name, macs in counted.most_common() if macs}
    times = Counter[str]()
    # The time of a kernel that computed some product in float unasked counts as float.
    unasked = {kernel.name.removesuffix(ALONE): kernel for kernel in found.values() if kernel.name.endswith(ALONE)}
    ran = [unasked.get(step.kernel.name, step.kernel) for step in steps] + list(found.values())
    for step, kernel in zip(steps, ran, strict=False):
        times[kernel.name] += step.microseconds  # type: ignore[assignment]  # a counter of floats
    run = [KernelTime(step.name, step.kernel.name, PROVIDER, step.microseconds) for step in steps]
    return replace(
        sum_up([(name, counted[name], kernel) for name, kernel in found.items()], (settings.provider,)),
        low_precision=tuple(sorted({kernel.name for kernel in ran if kernel.is_low_precision})),
        half_precision=tuple(sorted({kernel.name for kernel in ran if kernel.is_half})),
        us_by_kernel=dict(times),
        kernels_path=write_kernels(folder, run),
    )

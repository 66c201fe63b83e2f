"""Coverage and kernels of one request as entries of the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from tasks.measure.request import request_batch
from tasks.runtimes.coverage import measure_coverage, profile_kernels
from tasks.runtimes.engines.coverage import coverage_of_layers
from tasks.runtimes.engines.layers import parse_layers_json, with_times
from tasks.runtimes.engines.runner import inspect_engine
from validators.job.job_measurement import OperatingPoint
from validators.providers import TENSORRT
from validators.records.measurements import Coverage, KernelProfile
from validators.records.run import Variant
from validators.samples.datasets import Arrays
from validators.samples.run_inputs import Evidence


def make_coverage(
    variant: Variant,
    evidence: Evidence,
    point: OperatingPoint,
    baseline_kernels: Callable[[], KernelProfile | None],
    folder: Path,
) -> Coverage:
    """Measure what ran in low precision, beside the kernels of the baseline where these can be compared."""
    batch = request_batch(evidence, point)
    if variant.engine is not None:
        return _engine_coverage(variant, batch, folder)
    return measure_coverage(variant.path, variant.session, batch, baseline=baseline_kernels(), folder=folder)


def make_kernels(baseline: Variant, evidence: Evidence, point: OperatingPoint, _: Path) -> KernelProfile:
    """Profile the kernels of the baseline."""
    return profile_kernels(baseline.path, baseline.session, request_batch(evidence, point))


def _engine_coverage(variant: Variant, batch: Arrays, folder: Path) -> Coverage:
    """Return the coverage by the layers that the builder or, if the engine runs here, the inspector (with times) reported."""
    assert variant.engine is not None
    layers = variant.engine.layers
    if variant.session.provider == TENSORRT:
        told, milliseconds = inspect_engine(variant.engine.path, batch)
        layers = with_times(parse_layers_json(told), milliseconds)
    kernels = folder / "kernels.json"
    kernels.write_text(json.dumps([asdict(layer) for layer in layers], indent=1), encoding="utf-8")
    return replace(coverage_of_layers(variant.path, layers, batch), kernels_path=kernels)

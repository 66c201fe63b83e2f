"""Coverage and kernels of one request as entries of the store."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tasks.measure.request import request_batch
from tasks.runtimes.coverage import measure_coverage, profile_kernels
from validators.job.candidate_name import decode
from validators.job.job_measurement import OperatingPoint
from validators.records.measurements import Coverage, KernelProfile
from validators.records.run import Variant
from validators.samples.evidence import Evidence
from validators.targets import facts_of


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
        found: Coverage = import_module(facts_of(decode(variant.candidate).target).coverage).measure(
            variant, batch, folder
        )
        return found
    return measure_coverage(variant.path, variant.session, batch, baseline=baseline_kernels(), folder=folder)


def make_kernels(baseline: Variant, evidence: Evidence, point: OperatingPoint, _: Path) -> KernelProfile:
    """Profile the kernels of the baseline."""
    return profile_kernels(baseline.path, baseline.session, request_batch(evidence, point))

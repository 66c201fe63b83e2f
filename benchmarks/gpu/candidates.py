"""The cells of ONNX Runtime and TensorRT: each candidate made, looked at, and timed in turn with float16."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from gpu.answers import inspect
from gpu.apart import apart
from gpu.bundle import Bundle
from gpu.inventory import versions
from gpu.make import FLOAT, Workshop
from gpu.record import REFUSED
from gpu.session import CONFIDENCE, Check, accuracy, described_coverage, described_latency, refusal
from gpu.trtexec import measure_trtexec
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant
from validators.errors import CandidateRefused
from validators.job.job_measurement import Measurement
from validators.records.run import Variant
from validators.targets import facts_of

HALF = "fp16"
# In a rehearsal, what goes through the same steps on the CPU provider; fp16 is refused there, as it should be.
REHEARSED = ("fp16@ort-cpu", "int8-static-minmax-pc@ort-cpu", "int4-g32-rtn@ort-cpu")


def measure_target(check: Check, workshop: Workshop, target: str, model: str) -> None:
    """All candidates of a target, the float ones first: float16 is what the others are held against."""
    names = REHEARSED if target == "ort-cpu" else facts_of(target).default_candidates
    labels = list(dict.fromkeys([FLOAT, HALF, *(name.rpartition("@")[0] for name in names)]))
    made: dict[str, Variant] = {}

    def artifact(label: str) -> dict[str, Any] | None:
        def describe() -> dict[str, Any]:
            made[label] = workshop.variant(label, target)
            return describe_variant(workshop, made[label], check.options.seconds)

        return check.figure("artifacts", f"{target}/{model}/{label}", describe)

    half = artifact(HALF)
    for label in labels:
        found = artifact(label)
        if found is None or half is None:
            return
        against = FLOAT if label == HALF or REFUSED in half else HALF
        for batch in check.options.batches or workshop.bundle.notes.batch_sizes:
            cell = partial(_cell, check, workshop, target, made, found, label, against, batch)
            check.figure("cells", f"{target}/{model}/b{batch}/{label}", cell)


def describe_variant(workshop: Workshop, variant: Variant, seconds: float) -> dict[str, Any]:
    """Size, coverage, and the metric with its drop against the source on the CPU."""
    bundle, reference = workshop.bundle, workshop.reference()
    seen = apart(inspect, variant, bundle, bundle.notes.batch_sizes[0], seconds=seconds)
    return {
        "size_bytes": variant.size_bytes,
        "engine_bytes": variant.engine.path.stat().st_size if variant.engine else None,
        "proof": variant.proof,
        "changes": variant.changes,
        "notes": list(variant.notes),
        "provider": variant.session.provider,
        "versions": versions(),
        "coverage": described_coverage(seen.coverage),
        **accuracy(bundle, reference, seen.rows, seen.value),
    }


def _cell(
    check: Check,
    workshop: Workshop,
    target: str,
    made: dict[str, Variant],
    artifact: dict[str, Any],
    label: str,
    against: str,
    batch: int,
) -> dict[str, Any]:
    """Latency of a candidate in turn with float16, or with float32 where it is float16 itself or there is none."""
    if REFUSED in artifact:
        return {REFUSED: artifact[REFUSED]}
    for name in (label, against):
        if name not in made:
            made[name] = workshop.variant(name, target)
    one, other = made[label], made[against]
    options = check.options
    measurement = Measurement(
        batch_sizes=(batch,),
        launches=options.launches,
        block_seconds=options.block_seconds,
        max_other_load=None if options.rehearsal else 0.15,
    )
    folder = options.work / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    latency = compare_latency(
        Contestant(other.loaded, other.session),
        Contestant(one.loaded, one.session),
        [workshop.bundle.request(batch)],
        measurement,
        confidence=CONFIDENCE,
        samples_path=folder / f"{target}-{workshop.bundle.notes.name}-b{batch}-{label}.npz",
    )
    cell = described_latency(latency, against, batch * workshop.reference().macs, one.loaded.stat().st_size)
    if one.engine is not None:
        cell["trtexec"] = _trtexec(one.engine.path, workshop.bundle, batch)
    return cell


def _trtexec(plan: Path, bundle: Bundle, batch: int) -> dict[str, Any]:
    shapes = {name: array.shape for name, array in bundle.request(batch).items()}
    try:
        return dict(measure_trtexec(plan, shapes))
    except CandidateRefused as error:
        return refusal(error)

"""One part of a check after the other: ceilings, then each model with each runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gpu.bundle import unpack
from gpu.candidates import measure_target
from gpu.make import Workshop
from gpu.pytorch import measure_pytorch
from gpu.record import REFUSED, Results
from gpu.session import CEILINGS, PYTORCH, Check, Options, begin, end, measure_limits, packed
from tasks.measure.inventory import take_inventory
from tasks.storage.store import Store

# What a rehearsal runs on: a processor takes minutes for a figure that says nothing.
REHEARSED_BATCHES = 2


def run_check(options: Options, results: Results, say: Callable[[str], None]) -> int:
    """Measure what is missing of the parts asked for; returns how many figures the time did not reach for."""
    check = Check(options, results, say)
    part, device = begin(check, options.parts), options.device
    targets = ("ort-cuda", "tensorrt")
    if CEILINGS in options.parts:
        measure_limits(check)
    for name in packed(check):
        workshop = open_workshop(check, name)
        models = check.figure("models", name, lambda: describe_model(workshop))  # noqa: B023  # called at once
        if models is None or REFUSED in models:
            continue
        for target in targets:
            if target in options.parts:
                # The rehearsal's processor stands in for ONNX Runtime's GPU.
                stands_in = options.rehearsal and target == "ort-cuda"
                measure_target(check, workshop, "ort-cpu" if stands_in else target, name)
        if PYTORCH in options.parts:
            measure_pytorch(check, workshop, name, device)
    return end(check, part)


def open_workshop(check: Check, name: str) -> Workshop:
    """Where the model's candidates are made.

    Raises:
        DataError: there is no bundle of the model.
    """
    options = check.options
    bundle = unpack(options.bundle / f"{name}.zip", options.work / "bundles")
    if options.rehearsal:
        bundle = bundle.shortened(REHEARSED_BATCHES * bundle.notes.evaluation_batch)
    gpu = None if options.rehearsal else take_inventory("ort-cuda").gpu
    return Workshop(Store(options.work / "store"), bundle, gpu, seconds=options.seconds)


def describe_model(workshop: Workshop) -> dict[str, Any]:
    """The model's notes with what its source comes to on the CPU."""
    notes, reference = workshop.bundle.notes, workshop.reference()
    about = asdict(notes)
    del about["rounded"], about["module"]
    return about | {
        "source": "weights rounded to float16 and widened to float32",
        "arrays_rounded": len(notes.rounded),
        "cpu_value": reference.value,
        "macs_a_sample": reference.macs,
        "calibration_samples": len(workshop.bundle.calibration),
        "evaluation_samples": len(workshop.bundle.evaluation),
    }

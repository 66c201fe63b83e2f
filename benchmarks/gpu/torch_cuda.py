"""The cells of `torch-cuda` for the trained models of a bundle: each form compiled, answered with, and timed beside fp16."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu.apart import apart
from gpu.bundle import Bundle, unpack
from gpu.forms import RECIPES, TARGET, compile_form, describe_package, export_program, settings_of
from gpu.inventory import versions
from gpu.modules import build_module
from gpu.record import REFUSED, Results
from gpu.session import CEILINGS, CONFIDENCE, Check, Options, begin, described_latency, end, measure_limits, packed
from tasks.engines.inductor.shipped.model import InductorModel
from tasks.measure.inventory import usable_cores
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant
from tasks.measure.metrics.perplexity import perplexity, score_batches
from validators.digests import digest_file
from validators.samples.datasets import TensorSpec

# The others are held against float16, which is held against float32.
HALF, FLOAT = "fp16", "fp32-fused"
BATCHES = (1, 8, 32, 128)
# Requests and evaluation samples of a rehearsal.
REHEARSED = 16


def run_torch(options: Options, results: Results, say: Any) -> int:
    """Measure what is missing: ceilings, then the models; returns how many figures the time did not reach for."""
    check = Check(options, results, say)
    part = begin(check, (CEILINGS, TARGET))
    measure_limits(check)
    for name in packed(check):
        bundle = unpack(options.bundle / f"{name}.zip", options.work / "bundles", with_onnx=False)
        if options.rehearsal:
            bundle = bundle.shortened(REHEARSED)
        _measure_model(check, bundle, options.device)
    return end(check, part)


def _measure_model(check: Check, bundle: Bundle, device: str) -> None:
    folder = check.options.work / TARGET / bundle.notes.name / digest_file(bundle.evaluation.file.path)[:16]
    folder.mkdir(parents=True, exist_ok=True)

    def artifact(label: str) -> dict[str, Any] | None:
        def describe() -> dict[str, Any]:
            seconds = _compile(bundle, folder, label, device)
            package = folder / f"{label}.pt2"
            found = apart(_value, bundle, package, seconds=check.options.seconds)
            found |= describe_package(label, package, bundle.request(2), device)
            return found | {"compile_seconds": seconds, "versions": versions()}

        return check.figure("artifacts", f"{TARGET}/{bundle.notes.name}/{label}", describe)

    # One compilation and its timings at a time: a run that is cut off has figures of the first forms.
    made: dict[str, Any] = {label: artifact(label) for label in (FLOAT, HALF)}
    for label in check.options.forms or RECIPES:
        made[label] = found = made.get(label) or artifact(label)
        for batch in check.options.batches or BATCHES:
            if found is None or made[HALF] is None:
                continue
            against = FLOAT if label == HALF or REFUSED in made[HALF] else HALF
            cell = partial(_cell, check, bundle, folder, label, against, batch, found)
            check.figure("cells", f"{TARGET}/{bundle.notes.name}/b{batch}/{label}", cell)


def _compile(bundle: Bundle, folder: Path, label: str, device: str) -> float:
    """Write the package of a form, unless it is there; return the seconds of its compilation."""
    package, seconds = folder / f"{label}.pt2", folder / f"{label}.seconds"
    if package.exists() and seconds.exists():
        return float(seconds.read_text(encoding="utf-8"))
    program = folder / "program.pt2"
    if not program.exists():
        export_program(partial(build_module, bundle), bundle.request(2), bundle.notes.dims, program)
    took = float(compile_form(label, program, bundle.request(2), folder, device)["seconds"])
    seconds.write_text(str(took), encoding="utf-8")
    return took


def _value(bundle: Bundle, package: Path) -> dict[str, Any]:
    """The metric: accuracy, or the perplexity of each next token."""
    model = InductorModel(package, usable_cores())
    samples = bundle.evaluation
    outputs = (model.run(batch)[0] for batch in samples.batches(bundle.notes.evaluation_batch))
    if bundle.notes.metric == "accuracy":
        value = float((np.concatenate(list(outputs)).argmax(axis=1) == samples.labels).mean())
    else:
        value = perplexity(score_batches(outputs, samples, TensorSpec(bundle.notes.output, "float32", ())))
    return {"metric": bundle.notes.metric, "value": value, "samples": len(samples)}


def _cell(
    check: Check, bundle: Bundle, folder: Path, label: str, against: str, batch: int, artifact: dict[str, Any]
) -> dict[str, Any]:
    """Latency of a form in turn with float16, or of float16 with float32."""
    if REFUSED in artifact:
        return {REFUSED: artifact[REFUSED]}
    options = check.options
    # The job's own class needs pydantic.
    measurement: Any = SimpleNamespace(
        launches=options.launches,
        blocks=3,
        block_seconds=options.block_seconds,
        block_count=10,
        warmup_seconds=0.1,
        warmup_limit_seconds=0.6,
        max_other_load=None if options.rehearsal else 0.15,
        clients=0,
        preprocess=None,
        postprocess=None,
    )
    sides = [Contestant(folder / f"{name}.pt2", settings_of(options.device, name)) for name in (against, label)]
    latency = compare_latency(
        *sides,
        [bundle.request(batch)],
        measurement,
        confidence=CONFIDENCE,
        samples_path=folder / f"b{batch}-{label}.npz",
    )
    return described_latency(latency, against, batch * artifact["macs_a_sample"], artifact["size_bytes"])

"""The cells of `torch-cuda`, for which PyTorch is enough: each form of a model compiled, answered with, and timed beside fp16.

It imports neither ONNX nor pydantic nor scipy, so that it runs on a machine that has PyTorch and nothing else of quantgate's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu.apart import apart
from gpu.bundle import Bundle, unpack
from gpu.inventory import versions
from gpu.modules import build_module
from gpu.record import REFUSED, Results
from gpu.session import CEILINGS, CONFIDENCE, Check, Options, begin, end, interval, measure_limits
from tasks.measure.inventory import usable_cores
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant
from tasks.measure.metrics.perplexity import perplexity, score_batches
from tasks.ptq.inductor.compiler import run_compiler
from tasks.runtimes.confined import WRITTEN_BYTES, WRITTEN_SIZES
from tasks.runtimes.inductor.coverage import measure_inductor
from tasks.runtimes.inductor.package import InductorModel
from validators.digests import digest_file
from validators.providers import INDUCTOR, INDUCTOR_CUDA
from validators.records.run import SessionSettings
from validators.samples.datasets import TensorSpec

TARGET, HALF, FLOAT = "torch-cuda", "fp16", "fp32-fused"
BATCHES = (1, 8, 32, 128)
# Requests and evaluation samples of a rehearsal.
REHEARSED = 16
_PLAIN = {"dynamic": False, "granularity": None, "block_size": None, "weight_method": None, "asymmetric": False}


def _recipe(precision: str, **fields: Any) -> dict[str, Any]:
    return _PLAIN | {"precision": precision} | fields


# The default candidates without GPTQ, which needs SciPy; their grammar needs pydantic. The others are held against float16,
# which is first.
RECIPES: Mapping[str, dict[str, Any]] = {
    "fp16": _recipe("fp16"),
    "fp32-fused": _recipe("fp32"),
    "bf16": _recipe("bf16"),
    "int8-dynamic-pc": _recipe("int8", dynamic=True, granularity="pc"),
    "fp8-amax-pc": _recipe("fp8", granularity="pc"),
    "fp8-amax-pt": _recipe("fp8", granularity="pt"),
    "int4-g128-rtn": _recipe("int4", block_size=128, weight_method="rtn"),
    "int4-g64-hqq-asym": _recipe("int4", block_size=64, weight_method="hqq", asymmetric=True),
}


def run_torch(options: Options, results: Results, say: Any) -> int:
    """Measure what is missing: ceilings, then the models; returns how many figures the time did not reach for."""
    check = Check(options, results, say)
    part = begin(check, (CEILINGS, TARGET))
    measure_limits(check)
    for name in options.models:
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
            found = apart(_describe, bundle, folder / f"{label}.pt2", device, seconds=check.options.seconds)
            return found | {"compile_seconds": seconds, "versions": versions()}

        return check.figure("artifacts", f"{TARGET}/{bundle.notes.name}/{label}", describe)

    # All small batches before the large ones: a run that is cut off has some of each model.
    made = {label: artifact(label) for label in RECIPES}
    for batch in check.options.batches or BATCHES:
        for label, found in made.items():
            if found is None or made[HALF] is None:
                continue
            against = FLOAT if label == HALF or REFUSED in (made[HALF] or {}) else HALF

            def cell(
                label: str = label, found: Any = found, against: str = against, batch: int = batch
            ) -> dict[str, Any]:
                if REFUSED in found:
                    return {REFUSED: found[REFUSED]}
                return _cell(check, bundle, folder, label, against, batch, found)

            check.figure("cells", f"{TARGET}/{bundle.notes.name}/b{batch}/{label}", cell)


def _compile(bundle: Bundle, folder: Path, label: str, device: str) -> float:
    """Write the package of a form, unless it is there; return the seconds of its compilation."""
    package, seconds = folder / f"{label}.pt2", folder / f"{label}.seconds"
    if package.exists() and seconds.exists():
        return float(seconds.read_text(encoding="utf-8"))
    program = folder / "program.pt2"
    if not program.exists():
        apart(_export, bundle, program, seconds=600.0)
    batch = folder / "batch.npz"
    np.savez(batch, **bundle.request(2))  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
    order = {
        "folder": str(folder),
        "program": str(program),
        "package": str(package),
        "recipe": RECIPES[label],
        "device": device,
        "for_gpu": True,
        "weight_bits": 8,
        "threads": usable_cores(),
        "batches": [str(batch)],
        "inputs": list(bundle.request(1)),
        "outputs": [bundle.notes.output],
        "written_bytes": program.stat().st_size * WRITTEN_SIZES + WRITTEN_BYTES,
    }
    took = float(run_compiler(order, folder)["seconds"])
    seconds.write_text(str(took), encoding="utf-8")
    return took


def _export(bundle: Bundle, path: Path) -> None:
    """Write the model's program; its batch is dynamic, and so are the axes that requests cut."""
    import torch

    module = build_module(bundle)
    inputs = [torch.from_numpy(array) for array in bundle.request(2).values()]
    dynamic = torch.export.Dim.DYNAMIC
    shapes = [{0: dynamic} | ({1: dynamic} if name in bundle.notes.dims else {}) for name in bundle.request(1)]
    with torch.no_grad():
        torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=tuple(shapes)), path)


def _settings(device: str, label: str) -> SessionSettings:
    precision = {"fp32-fused": "f32", "fp16": "fp16"}.get(label, "bf16")
    provider = INDUCTOR if device == "cpu" else INDUCTOR_CUDA
    return SessionSettings(provider, usable_cores(), provider_options={"precision": precision})


def _describe(bundle: Bundle, package: Path, device: str) -> dict[str, Any]:
    """Size, coverage and the metric: accuracy, or the perplexity of each next token."""
    label = package.stem
    coverage = measure_inductor(package, _settings(device, label), bundle.request(2), None)
    model = InductorModel(package, usable_cores())
    samples = bundle.evaluation
    outputs = (model.run(batch)[0] for batch in samples.batches(bundle.notes.evaluation_batch))
    if bundle.notes.metric == "accuracy":
        value = float((np.concatenate(list(outputs)).argmax(axis=1) == samples.labels).mean())
    else:
        value = perplexity(score_batches(outputs, samples, TensorSpec(bundle.notes.output, "float32", ())))
    return {
        "size_bytes": package.stat().st_size,
        "metric": bundle.notes.metric,
        "value": value,
        "samples": len(bundle.evaluation),
        "macs_a_sample": sum(coverage.macs_by_kernel.values()) // 2,
        "coverage": {
            "low": coverage.share,
            "half_or_lower": coverage.half_share,
            "unknown": coverage.unknown,
            "macs_by_kernel": coverage.macs_by_kernel,
            "us_by_kernel": coverage.us_by_kernel,
            "providers": list(coverage.providers),
        },
    }


def _cell(
    check: Check, bundle: Bundle, folder: Path, label: str, against: str, batch: int, artifact: dict[str, Any]
) -> dict[str, Any]:
    """Latency of a form in turn with float16, or of float16 with float32."""
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
    sides = [Contestant(folder / f"{name}.pt2", _settings(options.device, name)) for name in (against, label)]
    latency = compare_latency(
        *sides,
        [bundle.request(batch)],
        measurement,
        confidence=CONFIDENCE,
        samples_path=folder / f"b{batch}-{label}.npz",
    )
    cell = asdict(latency)
    del cell["samples_path"]
    seconds = latency.p50_ms / 1e3
    return cell | {
        "against": against,
        "speedup": interval(latency.speedup),
        "tflop_per_s": 2 * artifact["macs_a_sample"] * batch / seconds / 1e12,
        "weights_gb_per_s": artifact["size_bytes"] / seconds / 1e9,
    }

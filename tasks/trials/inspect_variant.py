"""Step 5, between making and accuracy: what of a variant really ran in low precision, and whether its answers are sane."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE
from tasks.measure.sanity import RUNS, ask
from tasks.run.context import MEASURE_CODE, Evidence, Given, Run
from tasks.runtimes.coverage import measure_coverage, profile_kernels
from tasks.runtimes.engines.coverage import coverage_of_layers
from tasks.runtimes.engines.layers import parse_layers_json, with_times
from tasks.runtimes.engines.runner import inspect_engine
from tasks.trials.measure_baseline import baseline_variant
from tasks.trials.request import request_batch
from validators.providers import TENSORRT
from validators.records.measurements import Coverage, KernelProfile, Sanity
from validators.records.run import Inventory, Variant
from validators.samples.datasets import Arrays

# Enough to tell a constant answer, and a random one; samples of perplexity are whole windows of text.
SANITY_SAMPLES, SANITY_WINDOWS = 8, 2


def coverage_of(run: Run, given: Given, inventory: Inventory, variant: Variant) -> tuple[Coverage, bool]:
    """What ran in low precision, beside the kernels of the baseline; and whether it was in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """

    baseline = baseline_variant(run, given, inventory)

    def measure(folder: Path) -> Coverage:
        if variant.engine is not None:
            return _engine_coverage(variant, _request(run, given), folder)
        # Kernels of two providers are not to be compared.
        same = baseline.session.provider == variant.session.provider
        before = _baseline_kernels(run, given, inventory, baseline) if same else None
        return measure_coverage(variant.path, variant.session, _request(run, given), baseline=before, folder=folder)

    key = (variant.measured_as, baseline.measured_as, *_request_key(run, given, inventory))
    return run.store.make("coverage", key, Coverage, measure)


def sanity_of(run: Run, given: Given, inventory: Inventory, variant: Variant) -> tuple[Sanity, bool]:
    """The answers of a variant beside those of the baseline, which is asked once; and whether they were in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """

    baseline = baseline_variant(run, given, inventory)
    evaluation = given.evidence.evaluation.file.digest
    batches = _batches(run, given.evidence)
    samples = sum(len(next(iter(batch.values()))) for batch in batches)

    def answers(of: Variant, before: Sanity | None) -> tuple[Sanity, bool]:
        def measure(_: Path) -> Sanity:
            found = ask(of.loaded, of.session, batches)
            return Sanity(samples, RUNS, before.variant if before else found, found)

        beside = baseline.measured_as if before else None
        key = (of.measured_as, beside, evaluation, samples, inventory.device_key, MEASURE_CODE)
        return run.store.make("sanity", key, Sanity, measure)

    before, _ = answers(baseline, None)
    return answers(variant, before)


def _engine_coverage(variant: Variant, batch: Arrays, folder: Path) -> Coverage:
    """Of the layers that the builder told of or, where the engine runs here, that the inspector does, with their times."""
    assert variant.engine is not None
    layers = variant.engine.layers
    if variant.session.provider == TENSORRT:
        told, milliseconds = inspect_engine(variant.engine.path, batch)
        layers = with_times(parse_layers_json(told), milliseconds)
    kernels = folder / "kernels.json"
    kernels.write_text(json.dumps([asdict(layer) for layer in layers], indent=1), encoding="utf-8")
    return replace(coverage_of_layers(variant.path, layers, batch), kernels_path=kernels)


def _baseline_kernels(run: Run, given: Given, inventory: Inventory, baseline: Variant) -> KernelProfile:
    key = (baseline.measured_as, *_request_key(run, given, inventory))
    return run.store.make(
        "kernels",
        key,
        KernelProfile,
        lambda _: profile_kernels(baseline.path, baseline.session, _request(run, given)),
    )[0]


def _request(run: Run, given: Given) -> Arrays:
    return request_batch(given.evidence, run.job.measurement.points[0])


def _batches(run: Run, evidence: Evidence) -> list[Arrays]:
    of_text = run.job.metric == "perplexity"
    wanted = SANITY_WINDOWS if of_text else SANITY_SAMPLES
    size = evidence.batch_axis or (WINDOWS_AT_ONCE if of_text else wanted)
    return list(islice(evidence.evaluation.batches(size), max(1, wanted // size)))


def _request_key(run: Run, given: Given, inventory: Inventory) -> tuple[object, ...]:
    """What kernels depend on beside the model that runs: the request, the device and the code."""
    return (
        given.evidence.evaluation.file.digest,
        asdict(run.job.measurement.points[0]),
        inventory.device_key,
        MEASURE_CODE,
    )

"""Step 5, between making and accuracy: the low-precision coverage of a variant, and the sanity of its answers."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from tasks.measure.coverage import make_coverage, make_kernels
from tasks.measure.sanity import make_sanity, sanity_batches
from tasks.run.context import Run
from tasks.runtimes.providers import provider_of
from tasks.storage.product import Product
from tasks.trials.measure_baseline import baseline_variant
from validators.records.measurements import Coverage, KernelProfile, Sanity
from validators.records.run import Inventory, Variant
from validators.samples.run_inputs import RunInputs


def coverage_of(run: Run, run_inputs: RunInputs, inventory: Inventory, variant: Variant) -> tuple[Coverage, bool]:
    """Return the coverage of a variant, compared with the baseline's kernels, and True if it was in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """
    baseline = baseline_variant(run, run_inputs, inventory)
    point = run.job.measurement.points[0]
    request = (run_inputs.evidence.evaluation.file.digest, asdict(point), inventory.device_key)

    def baseline_kernels() -> KernelProfile | None:
        provider = baseline.session.provider
        # Kernels of two providers cannot be compared, and of one only those in ONNX Runtime's profile.
        if provider != variant.session.provider or provider_of(provider).coverage is not None:
            return None
        make = partial(make_kernels, baseline, run_inputs.evidence, point)
        return run.store.make(Product("kernels", (baseline.measured_as, *request), KernelProfile, make))[0]

    make = partial(make_coverage, variant, run_inputs.evidence, point, baseline_kernels)
    inputs = (variant.measured_as, baseline.measured_as, *request)
    return run.store.make(Product("coverage", inputs, Coverage, make))


def sanity_of(run: Run, run_inputs: RunInputs, inventory: Inventory, variant: Variant) -> tuple[Sanity, bool]:
    """Return the answers of a variant beside those of the baseline, which runs once, and True if they were in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """
    baseline = baseline_variant(run, run_inputs, inventory)
    evidence = run_inputs.evidence
    batches = sanity_batches(evidence.evaluation, evidence.batch_axis, of_text=run.job.metric == "perplexity")
    samples = sum(batch.rows for batch in batches)

    def answers(of: Variant, before: Sanity | None) -> tuple[Sanity, bool]:
        beside = baseline.measured_as if before else None
        inputs = (of.measured_as, beside, evidence.evaluation.file.digest, samples, inventory.device_key)
        make = partial(make_sanity, of, batches, before.variant if before else None)
        return run.store.make(Product("sanity", inputs, Sanity, make))

    before, _ = answers(baseline, None)
    return answers(variant, before)

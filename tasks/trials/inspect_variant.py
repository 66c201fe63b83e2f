"""Step 5, beside accuracy: a variant's low-precision coverage, sanity, saturation and, of a decoder, agreement."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import onnx

from tasks.measure.continuations import Continuations, agreement_of, make_continuations, prompt_rows
from tasks.measure.coverage import make_coverage, make_kernels
from tasks.measure.request import request_batch, request_of
from tasks.measure.sanity import make_sanity, probe_batches, sanity_batches
from tasks.measure.saturation import Saturations, make_saturations
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.runtimes.coverage import macs_as_written
from tasks.storage.product import Product
from tasks.trials.materials import prepared_product
from tasks.trials.measure_baseline import baseline_variant
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.metric_facts import metric_facts
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.records.measurements import Agreement, Coverage, KernelProfile, Sanity
from validators.records.run import Trial, Variant
from validators.targets import facts_of, facts_of_provider
from validators.untrusted.external_data import graphs_of


def coverage_of(run: LoadedRun, variant: Variant) -> tuple[Coverage, bool]:
    """Return the coverage of a variant, compared with the baseline's kernels, and True if it was in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """
    baseline = baseline_variant(run)
    point = run.job.measurement.points[0]
    request = (run.evidence.evaluation.file.digest, asdict(point), run.inventory.device_key)

    def baseline_kernels() -> KernelProfile | None:
        provider = baseline.session.provider
        # Kernels of two providers cannot be compared, and of one only those in ONNX Runtime's profile.
        if provider != variant.session.provider or facts_of_provider(provider).coverage:
            return None
        make = partial(make_kernels, baseline, run.evidence, point)
        return run.store.make(Product("kernels", (baseline.measured_as, *request), KernelProfile, make))[0]

    make = partial(make_coverage, variant, run.evidence, point, baseline_kernels)
    inputs = (variant.measured_as, baseline.measured_as, *request)
    return run.store.make(Product("coverage", inputs, Coverage, make))


def share_in_convolutions(run: LoadedRun) -> float:
    """Return the share of the source's multiply-accumulates that are in convolutions, for a request as `coverage_of` makes it.

    0 for a source that ONNX Runtime, which counts, does not run without the job's libraries.
    """
    graphs = graphs_of(onnx.load(run.source.onnx_path, load_external_data=False).graph)
    convolutions = {node.name for graph in graphs for node in graph.node if node.op_type == "Conv"}
    if not convolutions:
        return 0.0
    batch = request_batch(run.evidence, run.job.measurement.points[0])
    try:
        counted = macs_as_written(run.source.onnx_path, batch)
    except CandidateRefused:
        return 0.0
    inside = sum(macs for name, macs in counted if name in convolutions)
    return inside / max(1, sum(macs for _, macs in counted))


def sanity_of(run: LoadedRun, variant: Variant) -> tuple[Sanity, bool]:
    """Return the answers of a variant beside those of the baseline, which runs once, and True if they were in the store.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """
    baseline = baseline_variant(run)
    evidence = run.evidence
    of_text = metric_facts(run.job.metric).kind == "windows"
    batches = sanity_batches(evidence.evaluation, evidence.batch_axis, of_text=of_text)
    # The logits and caches of a language model have the sizes of its inputs, and its windows are slow.
    probes = [] if of_text else probe_batches(evidence.evaluation, batches)
    samples = sum(batch.rows for batch in batches)

    def answers(of: Variant, before: Sanity | None) -> tuple[Sanity, bool]:
        beside = baseline.measured_as if before else None
        inputs = (of.measured_as, beside, evidence.evaluation.file.digest, samples, run.inventory.device_key)
        make = partial(make_sanity, of, batches, probes, before.variant if before else None)
        return run.store.make(Product("sanity", inputs, Sanity, make))

    before, _ = answers(baseline, None)
    return answers(variant, before)


def agreement_with_baseline(
    run: LoadedRun, variant: Variant, *, confirmation: bool = False
) -> tuple[Agreement | None, bool]:
    """Return how long a decoder's greedy answers equal the baseline's, and True if both were in the store.

    The prompts are windows that choose or, for the `confirmation`, windows kept for it, cut to the length of the first
    operating point. None where the target does not generate, or the job asks for no prompts.

    Raises:
        CandidateRefused: the runtime does not load or run the variant.
    """
    count, point, evidence = run.job.measurement.prompts, run.job.measurement.points[0], run.evidence
    if not count or not facts_of(decode(variant.candidate).target).generates:
        return None, True
    rows = prompt_rows(evidence.confirmation == confirmation, evidence.clusters, count, run.job.seed)
    (prompts,) = request_of(evidence, point, rows).values()
    new_tokens = point.dims.get(NEW_TOKENS, USUAL_NEW_TOKENS)

    def answers(of: Variant) -> tuple[Continuations, bool]:
        data = (evidence.evaluation.file.digest, rows.tolist(), prompts.shape)
        inputs = (of.measured_as, *data, new_tokens, run.inventory.device_key)
        make = partial(make_continuations, of, prompts, new_tokens)
        return run.store.make(Product("continuations", inputs, Continuations, make))

    before, had_baseline = answers(baseline_variant(run))
    found, had_variant = answers(variant)
    clusters = () if evidence.clusters is None else tuple(evidence.clusters[rows].tolist())
    return agreement_of(before, found, clusters), had_baseline and had_variant


@step("measure saturation")
def measure_saturation(run: LoadedRun, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Add to each trial whose variant fixes ranges the share of clipped values; one pass of the float graph serves all.

    Trials that failed already, in a race, are left out.
    """
    kept = [trial for trial in trials if not trial.refusal and trial.outcome in (None, "passed")]
    variants = {trial.variant.digest: trial.variant for trial in kept if trial.variant}
    bounds = run.job.calibration
    if not variants or not bounds.model_samples:
        return trials
    prepared = prepared_product(run, run.source, run.inventory)
    inputs = (
        sorted(variants),
        prepared,
        run.evidence.output.name,
        run.evidence.reference.file.digest,
        bounds.model_samples,
        run.job.seed,
    )
    make = partial(
        make_saturations,
        variants,
        lambda: run.store.make(prepared)[0],
        run.evidence,
        run.reference_session,
        bounds.model_samples,
        run.job.seed,
    )
    with run.clock.work("measure saturation"):
        found, _ = run.store.make(Product("saturation", inputs, Saturations, make))
    return tuple(
        replace(trial, saturation=found.get(trial.variant.digest)) if trial.variant else trial for trial in trials
    )

"""Step 5, first half: one candidate from recipe to artifact, with the kernels that really ran and its accuracy."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx

from tasks.measure.inventory import adds_pairs_in_16_bits, usable_cores, usable_providers
from tasks.measure.metrics.reduction import Needed
from tasks.ptq.build_variant import Materials, float_graph, quantize_int8
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.eight_bit.qdq import QdqReport
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.edits import model_bytes
from tasks.ptq.graph.prepare import fuse_graph, prepare_graph
from tasks.ptq.sensitivity import Sensitivity, find_parts, rank_parts
from tasks.ptq.weight_only.sites import tensors_to_collect
from tasks.run.context import CANDIDATES_SHARE, MAKER_CODE, Evidence, Given, Run, log
from tasks.run.progress_events import MAKE
from tasks.run.step import step
from tasks.targets.catalog import find_target
from tasks.targets.variants import make_variant, why_unmeasured
from tasks.trials.build_engine import with_engine
from tasks.trials.gather import trial_of
from tasks.trials.inspect_variant import coverage_of, sanity_of
from tasks.trials.measure_accuracy import Reference, measure_accuracy, on_selection
from tasks.trials.measure_baseline import baseline_variant
from validators.errors import BudgetExceeded, CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.providers import CPU_PROVIDER
from validators.records.measurements import Accuracy
from validators.records.run import Inventory, Refusal, SessionSettings, Source, Trial, Variant
from validators.samples.datasets import Arrays

# Calibration holds activations in memory, and is shared: two at a time would double the memory for nothing.
_CALIBRATION = threading.Lock()


# Passes over the graph that look at one layer after the other take so many calibration samples, in batches of this size.
PASS_SAMPLES, PASS_BATCH_SIZE = 64, 8


@dataclass(frozen=True)
class _File:
    """A file of the store that several candidates start from."""

    path: Path


@dataclass(frozen=True)
class _Ranking:
    """The parts of a model, the most sensitive first."""

    parts: tuple[Sensitivity, ...]


@dataclass(frozen=True)
class _Made:
    """What the making of a candidate came to: a variant, or a refusal that will not change."""

    variant: Variant | None = None
    refusal: Refusal | None = None


@step(MAKE, run_name="make {name}")
def make_candidate(run: Run, given: Given, inventory: Inventory, baseline: Accuracy, name: str) -> Trial:
    """The candidate's trial: its variant, coverage and accuracy, or its refusal."""
    started = time.monotonic()
    if run.clock.spent_seconds > CANDIDATES_SHARE * run.job.budgets.seconds:
        reason = (
            f"{CANDIDATES_SHARE:.0%} of the budget of {run.job.budgets.seconds:.0f} s, the candidates' share, was spent "
            "before this one was started"
        )
        return Trial(name, outcome="refused", refusal=Refusal("infrastructure", reason))
    with run.clock.work("make candidates"), run.time_for_candidates():
        try:
            # A variant takes about as much as its source at most; what it shares with others is made once.
            run.footprint.check(f"{name}: its file", Needed(0, model_bytes(given.source.onnx_path)))
            trial = _try(run, given, inventory, baseline, decode(name))
        except CandidateRefused as error:
            trial = refused(name, error)
        except BudgetExceeded as error:
            trial = trial_of(name, error)
    log.info("made %s: %s", name, _summary(trial))
    return replace(trial, seconds=time.monotonic() - started)


def refused(name: str, error: CandidateRefused) -> Trial:
    """The trial of a candidate that ended in a refusal."""
    reason = f"{error.found}; expected {error.expected}; {error.fix}"
    return Trial(name, outcome="refused", refusal=Refusal(error.kind, reason, error.log))


def _try(run: Run, given: Given, inventory: Inventory, baseline: Accuracy, candidate: Candidate) -> Trial:
    target = find_target(candidate.target)
    target.check_device()  # its variants are of no use where nothing can run them
    made, had_variant = _make(run, given, inventory, candidate)
    if made.variant is None:
        return Trial(candidate.name, outcome="refused", refusal=made.refusal, cached=had_variant)
    variant = made.variant
    if target.builds_engines:
        variant = with_engine(run, given, inventory, variant)
    unmeasured = why_unmeasured(variant, usable_providers(inventory))
    if unmeasured is not None:
        return replace(refused(candidate.name, unmeasured), cached=had_variant)
    variant = replace(variant, session=target.keep_caches(variant.session, run.state))
    coverage, had_coverage = coverage_of(run, given, inventory, variant)
    sanity, had_sanity = sanity_of(run, given, inventory, variant)
    reference = Reference(baseline, baseline_variant(run, given, inventory))
    accuracy, had_accuracy = measure_accuracy(run, given.evidence, inventory, variant, reference)
    return Trial(
        candidate.name,
        variant=variant,
        coverage=coverage,
        sanity=sanity,
        accuracy=on_selection(run.job, given.evidence, accuracy),
        cached=had_variant and had_coverage and had_sanity and had_accuracy,
    )


def _make(run: Run, given: Given, inventory: Inventory, candidate: Candidate) -> tuple[_Made, bool]:
    evidence = given.evidence
    threads = run.job.measurement.points[0].threads or usable_cores()
    materials = materials_of(run, given, inventory)
    key = (
        candidate.name,
        # Parts are ranked by what they do to the judged output; smoothing looks at a seeded draw of rows.
        evidence.output.name if candidate.kept_parts else None,
        run.job.seed if candidate.smooth else None,
        given.source.digest,
        evidence.calibration.file.digest,
        threads,
        sorted(inventory.runtimes.items()),
        materials.reduced_range,
        [asdict(library) for library in run.libraries],
        run.job.provider_options,
        # A refusal for lack of memory is stored, and must not outlive a larger limit.
        run.job.calibration.max_memory_mb,
        run.job.budgets.memory_mb,
        MAKER_CODE,
    )
    options = run.job.provider_options

    def make(folder: Path) -> _Made:
        try:
            variant = make_variant(candidate, materials, folder, threads=threads, provider_options=options)
            return _Made(variant=variant)
        except CandidateRefused as error:
            if error.kind == "infrastructure":
                raise
            return _Made(refusal=refused(candidate.name, error).refusal)

    return run.store.make("variant", key, _Made, make)


def materials_of(run: Run, given: Given, inventory: Inventory) -> Materials:
    """The float graphs and calibration files, each made on first use and kept in the store."""
    source, evidence = given.source, given.evidence
    base = _graph_key(source, inventory)
    reduced = adds_pairs_in_16_bits(inventory)

    def prepared() -> Path:
        return prepared_graph(run, source, inventory)

    def fused() -> Path:
        def make(folder: Path) -> _File:
            fuse_graph(source.onnx_path, folder / "fused.onnx", run.libraries)
            return _File(folder / "fused.onnx")

        return run.store.make("fused", base, _File, make)[0].path

    def batches() -> list[Arrays]:
        size = evidence.batch_axis or PASS_BATCH_SIZE
        return list(islice(evidence.calibration.batches(size), max(1, PASS_SAMPLES // size)))

    def smoothed() -> SmoothedGraph:
        def make(folder: Path) -> SmoothedGraph:
            seen = read_channels(prepared(), batches(), seed=run.job.seed, libraries=run.libraries)
            done = [one.way for one in smooth(prepared(), folder / "smoothed.onnx", seen, symmetric=False).values()]
            return SmoothedGraph(folder / "smoothed.onnx", done.count("folded"), done.count("multiplied"))

        key = (*base, evidence.calibration.file.digest, run.job.seed)
        return run.store.make("smoothed", key, SmoothedGraph, make)[0]

    def statistics(of_smoothed: bool) -> Path:
        def make(folder: Path) -> _File:
            graph = smoothed().path if of_smoothed else prepared()
            _calibrate(run, graph, evidence, folder / "statistics.npz")
            return _File(folder / "statistics.npz")

        key = (*base, evidence.calibration.file.digest, of_smoothed, run.job.seed if of_smoothed else None)
        return run.store.make("statistics", key, _File, make)[0].path

    def ranking(candidate: Candidate) -> tuple[Sensitivity, ...]:
        def make(folder: Path) -> _Ranking:
            def quantize(model: Path, keep_float: Collection[str], path: Path) -> QdqReport:
                return quantize_int8(candidate, materials, model, path, keep_float=keep_float)

            float_model = float_graph(candidate, materials)
            everything = quantize(float_model, (), folder / "all.onnx")
            graph = onnx.load(float_model, load_external_data=False).graph
            settings = SessionSettings(CPU_PROVIDER, usable_cores(), libraries=run.libraries).without_spinning()
            with run.clock.work("rank parts"):
                return _Ranking(
                    rank_parts(
                        float_model,
                        find_parts(graph, everything.quantized, by_input=candidate.dynamic),
                        quantize,
                        evidence.calibration,
                        evidence.output.name,
                        settings,
                        fixed_batch=evidence.batch_axis,
                    )
                )

        seed = run.job.seed if candidate.smooth else None
        key = (*base, candidate.name, evidence.calibration.file.digest, evidence.output.name, seed, reduced)
        return run.store.make("ranking", key, _Ranking, make)[0].parts

    def grams(candidate: Candidate, float_model: Path) -> Mapping[str, Gram]:
        size = evidence.batch_axis or PASS_BATCH_SIZE
        with _CALIBRATION:
            return collect_grams(
                float_model,
                tensors_to_collect(float_model, block_size=candidate.block_size or 32),
                lambda: evidence.calibration.batches(size),
                max_memory_mb=run.footprint.room_mb(run.job.calibration.max_memory_mb),
                threads=run.job.measurement.points[0].threads or usable_cores(),
                libraries=run.libraries,
            )

    # Known to `ranking` by its name, which is why it has one.
    materials = Materials(
        prepared, fused, smoothed, statistics, ranking, batches, grams, reduced, libraries=run.libraries
    )
    return materials


def prepared_graph(run: Run, source: Source, inventory: Inventory) -> Path:
    """The float graph that quantizers start from, whose tensors the ranges of variants are about."""

    def make(folder: Path) -> _File:
        prepare_graph(source.onnx_path, folder / "prepared.onnx", run.libraries)
        return _File(folder / "prepared.onnx")

    return run.store.make("prepared", _graph_key(source, inventory), _File, make)[0].path


def _graph_key(source: Source, inventory: Inventory) -> tuple[Any, ...]:
    return source.digest, sorted(inventory.runtimes.items()), MAKER_CODE


def _calibrate(run: Run, prepared: Path, evidence: Evidence, statistics: Path) -> None:
    with _CALIBRATION:
        told = calibrate(
            prepared,
            evidence.calibration,
            statistics,
            threads=run.job.measurement.points[0].threads or usable_cores(),
            max_memory_mb=run.footprint.room_mb(run.job.calibration.max_memory_mb),
            fixed_batch=evidence.batch_axis,
            libraries=run.libraries,
        )
    log.info("calibrated: %s", ", ".join(f"{name} {value:.0f}" for name, value in told.items()))


def _summary(trial: Trial) -> str:
    if trial.refusal:
        return f"refused ({trial.refusal.kind})"
    assert trial.accuracy and trial.coverage
    accuracy, share = trial.accuracy, trial.coverage.share
    text = f"{accuracy.metric} {accuracy.value:.4f} on {accuracy.n} samples, coverage {share:.0%}"
    return text + (" (from the store)" if trial.cached else "")

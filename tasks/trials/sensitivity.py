"""Sensitivity of the parts of a model: what quantizing each alone does to the output and to the judged metric."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from tasks.engines.catalog import find_target
from tasks.measure.metrics.drops import estimate_drop
from tasks.ptq.build_variant import Materials, float_graph, quantize_without
from tasks.ptq.graph.edits import model_bytes, scratch
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.run.user_functions import job_metric
from tasks.trials.materials import materials_of
from tasks.trials.measure_accuracy import Reference, has_parts, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant
from tasks.trials.recover import ranked_parts
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.gates.clusters import number_clusters
from validators.job.candidate_name import Candidate, decode
from validators.records.measurements import Accuracy, Estimate
from validators.records.run import Variant
from validators.records.verdicts import RankedPart

# One recipe a precision: INT8 with ranges of the calibration samples, and of each request; INT4 weights.
RECIPES = ("int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu")
# Parts whose effect on the metric is measured, the noisiest; with all parts together they take one evaluation's time.
MEASURED = 8
LEAST_SAMPLES = 50


@dataclass(frozen=True)
class PartEffect(RankedPart):
    """A part with the metric's `drop` against the float model when it alone is quantized; None where it was not measured."""

    drop: Estimate | None = None


@dataclass(frozen=True)
class PrecisionEffects:
    """Effects of one recipe, the noisiest part first; `drop` is that of all parts together.

    Drops are on `samples` evaluation samples, with one-sided bounds at the confidence of the job's gates.
    """

    recipe: str
    parts: tuple[PartEffect, ...]
    drop: Estimate | None
    samples: int
    seconds: float


@step("measure sensitivity")
def measure_sensitivity(run: LoadedRun, baseline: Accuracy, recipe: str) -> PrecisionEffects:
    """Rank the parts of the model for a recipe by their noise, and measure the metric's drop for the noisiest.

    Raises:
        CandidateRefused: the recipe quantizes no part of the model.
    """
    started = time.monotonic()
    candidate = decode(recipe)
    materials = replace(materials_of(run), pairs=find_target(candidate.target).pairs)
    ranking = materials.ranking(candidate)
    drops: Sequence[Estimate | None] = ()
    samples = 0
    if has_parts(job_metric(run.job), run.evidence):
        count = min(MEASURED, len(ranking))
        kept = _some_samples(run, max(LEAST_SAMPLES, len(run.evidence.evaluation) // (count + 1)))
        samples = int(kept.sum())
        everything = [node for one in ranking for node in one.part.nodes]
        wanted = [everything, *(one.part.nodes for one in ranking[:count])]
        drops = [_drop(run, baseline, materials, candidate, everything, nodes, kept) for nodes in wanted]
    of_parts = zip_longest(ranked_parts(ranking), drops[1:])
    effects = tuple(PartEffect(**vars(part), drop=drop) for part, drop in of_parts)
    return PrecisionEffects(recipe, effects, drops[0] if drops else None, samples, time.monotonic() - started)


def _some_samples(run: LoadedRun, count: int) -> np.ndarray:
    """Return a mask of a seeded draw of evaluation samples, bool `(samples,)`."""
    total = len(run.evidence.evaluation)
    mask = np.zeros(total, np.bool_)
    mask[np.random.default_rng(run.job.seed).permutation(total)[:count]] = True
    return mask


def _drop(
    run: LoadedRun,
    baseline: Accuracy,
    materials: Materials,
    candidate: Candidate,
    everything: Collection[str],
    nodes: Collection[str],
    kept: np.ndarray,
) -> Estimate | None:
    """Return the drop on the samples `kept` with only these nodes quantized; None if they cannot be quantized alone."""
    with scratch() as folder:
        path = folder / "model.onnx"
        try:
            quantize_without(
                candidate, materials, float_graph(candidate, materials), path, set(everything).difference(nodes)
            )
        except CandidateRefused as error:
            log.info("%s: a part was not measured: %s", candidate.name, error.found)
            return None
        rows = _rows(run, baseline, path, kept)
    metric, job = job_metric(run.job), run.job
    clusters = run.evidence.clusters
    before = np.asarray(np.load(baseline.scores_path), np.float64)
    return estimate_drop(
        metric,
        before[kept],
        rows[kept],
        job.gates.confidence,
        seed=job.seed,
        clusters=None if clusters is None else number_clusters(clusters[kept]),
    )[0]


def _rows(run: LoadedRun, baseline: Accuracy, path: Path, kept: np.ndarray) -> np.ndarray:
    variant = Variant(path.stem, path, digest_file(path), model_bytes(path), run.reference_session)
    accuracy, _ = measure_accuracy(run, variant, Reference(baseline, baseline_variant(run)), kept, alone=True)
    return np.asarray(np.load(accuracy.scores_path), np.float64)

"""Selection of a calibration set from a pool: stratified by label and slice, and covering the pool or the traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.evidence.load_data import describe_source, load_file
from tasks.measure.activations import ActivationWatch, open_tapped
from tasks.measure.taps import Taps, find_taps
from tasks.ptq.calibrate.selection import choose_samples
from tasks.run.context import Run, log
from tasks.run.step import step
from tasks.storage.files import write_whole
from validators.calibration.model_view import Embeddings, draw_rows, usable_rows
from validators.calibration.representation import covered_share, measure_distances, project
from validators.digests import digest_samples
from validators.errors import DataError, JobError
from validators.records.run import Source
from validators.samples.datasets import Samples
from validators.samples.near_duplicates import find_near_duplicates

# More would take long to run through a large model; a random draw of this size represents the pool.
MAX_POOL_SAMPLES = 6000


@dataclass(frozen=True)
class Suggestion:
    """A calibration set: its path, the rows of the pool in it, and its coverage.

    `coverage` is the share of the pool (or the traffic) with a sample of the set nearby; `random_coverage` is the share for a
    random draw of the same size, within the same distance. `left_out` counts the pool's samples not eligible, by reason.
    """

    path: Path
    rows: tuple[int, ...]
    coverage: float
    random_coverage: float
    left_out: dict[str, int]


@step("suggest calibration data", retried=False)
def suggest_calibration_data(run: Run, source: Source, pool_path: Path, size: int, path: Path) -> Suggestion:
    """Choose `size` samples of the pool and write them to `path`, an `.npz` file like those that a job names.

    Raises:
        DataError: a file is unreadable or does not fit the model, or the pool has too few samples to choose from.
        JobError: the file exists already, or its suffix is not `.npz`.
    """
    _check_target(path)
    feeds, output, batch_axis = describe_source(run, source)
    pool = load_file(run, "pool", pool_path, feeds, source)
    evaluation = load_file(run, "evaluation", run.job.data.evaluation, feeds, source)
    traffic = load_file(run, "traffic", run.job.data.traffic, feeds, source) if run.job.data.traffic else None
    eligible, left_out = _find_eligible(pool, evaluation)
    rows = draw_rows(eligible, MAX_POOL_SAMPLES, batch_axis or 1, run.job.seed)
    if len(rows) < size:
        raise DataError(
            found=f"{pool_path.name} has {len(rows)} samples to choose from"
            + "".join(f", {count} {reason}" for reason, count in left_out.items() if count),
            expected=f"at least {size}",
            fix="use a larger pool or a smaller --size",
        )

    def choose_taps(graph: onnx.GraphProto) -> Taps:
        return replace(find_taps(graph, output.name, run.job.calibration.representation), watched=())

    with run.clock.work("run the pool"), open_tapped(source.onnx_path, run.reference_session, choose_taps) as watch:
        embedded = _embed(watch, pool, rows, batch_axis)
        reference = embedded.vectors
        if traffic is not None:
            seen = draw_rows(usable_rows(traffic.inputs), MAX_POOL_SAMPLES, batch_axis or 1, run.job.seed)
            reference = _embed(watch, traffic, seen, batch_axis).vectors
    with run.clock.work("choose"):
        strata = _strata(pool, embedded.rows)
        # Along the components that the coverage is judged in: chosen in all dimensions, where distances say little, a set
        # covered hardly more than a random draw.
        _, places, held = project(np.concatenate([embedded.vectors, reference]), embedded.vectors, reference)
        chosen = choose_samples(places, size, strata=strata, reference=held, seed=run.job.seed)
        coverage, random_coverage = _compare(places, chosen, held, run.job.seed)
    picked = embedded.rows[chosen]
    _write(pool, picked, path, run.job.data.label, run.job.data.groups)
    log.info("wrote %d samples to %s", size, path)
    return Suggestion(path, tuple(int(row) for row in picked), coverage, random_coverage, left_out)


def _check_target(path: Path) -> None:
    if path.exists():
        raise JobError(
            found=f"{path} exists already",
            expected="a new file",
            fix="give another path with --out, or remove the file",
        )
    if path.suffix != ".npz":
        raise JobError(found=f"--out {path.name}", expected="a name that ends in .npz", fix="correct the suffix")


def _find_eligible(pool: Samples, evaluation: Samples) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return a mask of the samples that calibration may use, and the number of the others by reason."""
    usable = usable_rows(pool.inputs)
    known = set(digest_samples(evaluation.inputs))
    leaked = np.array([digest in known for digest in digest_samples(pool.inputs)])
    leaked |= find_near_duplicates(pool.inputs, evaluation.inputs) >= 0
    if pool.clusters is not None and evaluation.clusters is not None:
        leaked |= np.isin(pool.clusters.astype(str), evaluation.clusters.astype(str))
    left_out = {
        "in the evaluation data, close to it, or of a group in it": int(np.count_nonzero(leaked)),
        "duplicates, or not finite": int(np.count_nonzero(~usable & ~leaked)),
    }
    return usable & ~leaked, left_out


def _embed(watch: ActivationWatch, samples: Samples, rows: NDArray[np.intp], batch_axis: int | None) -> Embeddings:
    return Embeddings(watch.ranges(samples, rows, batch_axis)[1], rows).finite()


def _strata(pool: Samples, rows: NDArray[np.intp]) -> NDArray[Any] | None:
    """Return the stratum of each row, one per combination of class and slices; None for a pool with neither."""
    labels = pool.labels
    columns = [groups.astype(str) for groups in pool.slices.values()]
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        columns.append(labels.astype(str))
    if not columns:
        return None
    return np.unique(np.stack(columns, axis=1)[rows], axis=0, return_inverse=True)[1]


def _compare(
    pool: NDArray[np.float64], chosen: NDArray[np.intp], reference: NDArray[np.float64], seed: int
) -> tuple[float, float]:
    """Return the coverage of the choice and of a random draw of the same size, both within the radius of the draw."""
    drawn = np.random.default_rng(seed).choice(len(pool), len(chosen), replace=False)
    among, distances = measure_distances(pool[drawn], reference)
    return covered_share(among, measure_distances(pool[chosen], reference)[1]), covered_share(among, distances)


def _write(pool: Samples, rows: NDArray[np.intp], path: Path, label: str, groups: str | None) -> None:
    arrays: dict[str, Any] = {name: array[rows] for name, array in (pool.inputs | pool.slices).items()}
    if pool.labels is not None:
        arrays[label] = pool.labels[rows]
    if groups is not None and pool.clusters is not None:
        arrays[groups] = pool.clusters[rows]
    with write_whole(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)

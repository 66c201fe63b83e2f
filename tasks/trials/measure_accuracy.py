"""Accuracy of one artifact on evaluation samples: results per sample, stored under the digest of all their inputs.

The baseline runs on all samples, a variant on those that choose, and on those kept for confirmation once it is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tasks.engines.given import has_ranges_at_run_time
from tasks.evidence.sequences import run_sequences
from tasks.measure.continuations import Generator, answer_windows, expected_texts, read_tokenizer
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE, score_batches
from tasks.measure.metrics.reduction import (
    ANSWERS,
    KEPT_BYTES,
    KEPT_SHARE,
    BatchObserver,
    Reduced,
    answers_of,
    batch_size,
    reduce_outputs,
)
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.run.user_functions import job_metric, keeps_noise
from tasks.runtimes.runner import InRequests, Runner, open_runner
from tasks.storage.product import Product
from validators.digests import digest_values
from validators.errors import BudgetExceeded, CandidateRefused, JobError
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.job.metric_facts import metric_facts
from validators.records.measurements import Accuracy
from validators.records.run import SessionSettings, Variant
from validators.samples.evidence import Evidence

# Most samples per batch when accuracy is measured; latency has its own batch sizes.
EVALUATION_BATCH_SIZE = 32
# File of the baseline's outputs in its store entry.
OUTPUTS = "outputs.npy"


@dataclass(frozen=True)
class Reference:
    """Baseline of a comparison: its accuracy, and its artifact, which runs again if its outputs were not kept."""

    accuracy: Accuracy
    variant: Variant


def measure_accuracy(
    run: LoadedRun,
    variant: Variant,
    reference: Reference | None,
    part: NDArray[np.bool_] | None = None,
    *,
    known: Accuracy | None = None,
    alone: bool = False,
    watch_of: Callable[[int], BatchObserver] | None = None,
) -> tuple[Accuracy, bool]:
    """Return the accuracy of a variant, and True if it was in the store; `reference` is None for the baseline itself.

    Of the samples in the mask `part`, bool `(samples,)`, if each can be judged by itself; else of all. The files have a row for
    each sample: that of `known`, or NaN, for those outside of `part`. With `alone`, nothing else of the run computes meanwhile,
    so all threads of the settings are used instead of half. If the metric is known batch by batch, `watch_of` makes an observer
    of batches of a size, which may end the measurement.

    Raises:
        CandidateRefused: the runtime does not load or run the variant, or the metric fails on the variant's outputs; `stopped`
            by the observer.
        DataError: the samples have no targets for a metric of language models.
        JobError: the metric fails on the baseline's outputs.
        BudgetExceeded: the run exceeds its budget of memory or disk.
    """
    job, evidence, settings = run.job, run.evidence, variant.session
    metric = job_metric(job)
    if part is not None and (part.all() or not has_parts(metric, evidence)):
        part = None
    rows = np.arange(len(evidence.evaluation)) if part is None else np.flatnonzero(part)
    inputs = (
        variant.measured_as,
        evidence.evaluation.file.digest,
        metric.name,
        metric.version,
        evidence.output_names,
        job.data.label,
        # Integer kernels saturate differently by instruction set, so accuracy depends on the device.
        run.inventory.device_key,
        str(reference.accuracy.scores_path) if reference else None,
        None if part is None else digest_values(rows.tolist()),
        request_size(job, variant),
        str(known.scores_path) if known else None,
    )

    def measure(folder: Path) -> Accuracy:
        threads = settings.threads if alone else settings.threads // 2
        watch = watch_of(_size(evidence)) if watch_of and has_parts(metric, evidence) else None
        measured = watch.samples if watch else rows
        try:
            reduced = _reduced(run, evidence, metric, variant, reference, threads, folder, measured, watch, known)
        except JobError as error:
            if reference is None or isinstance(error, BudgetExceeded):
                raise
            # The metric accepted the baseline's outputs, so the variant is at fault.
            raise CandidateRefused(
                kind="invalid", found=error.found, expected=f"{error.expected}, as for the baseline", fix=error.fix
            ) from error
        return _kept(folder, evidence, metric, reduced, measured, known)

    return run.store.make(Product("accuracy", inputs, Accuracy, measure))


def on_selection(job: Job, evidence: Evidence, accuracy: Accuracy) -> Accuracy:
    """Return the accuracy with the metric of the samples that choose; its files still hold the results of all samples."""
    rows = np.load(accuracy.scores_path)[~evidence.confirmation[:: accuracy.samples_a_row]]
    return replace(accuracy, value=job_metric(job).value(rows), n=len(rows))


def _reduced(
    run: Run,
    evidence: Evidence,
    metric: Metric,
    variant: Variant,
    reference: Reference | None,
    threads: int,
    folder: Path,
    rows: NDArray[np.intp],
    watch: BatchObserver | None,
    known: Accuracy | None,
) -> Reduced:
    samples, asked = evidence.evaluation, request_size(run.job, variant)
    size = _size(evidence, asked)
    noise = keeps_noise(metric, evidence.output)
    with ExitStack() as stack:

        def opened(of: Variant) -> Runner:
            return stack.enter_context(open_runner(of.loaded, _considerate(of.session, threads=threads)))

        labels = None if samples.labels is None else samples.labels[rows]
        if metric.of_answers:
            reader = read_tokenizer(variant.path.parent)
            generator = cast(Generator, opened(variant))
            outputs: Iterator[NDArray[Any]] = answer_windows(generator, samples, reader, metric.of_answers)
            labels = None if labels is None else expected_texts(labels, reader)
        else:
            outputs = _outputs(opened(variant), evidence, metric, rows, size, asked)
        beside: Iterator[NDArray[Any]] | None = None
        if noise or metric.reads_reference:
            if reference is None:
                most = min(KEPT_BYTES, KEPT_SHARE * run.footprint.disk_left())
                outputs = _keeping(outputs, folder / OUTPUTS, len(samples), most)
            elif reference.accuracy.outputs_path is not None:
                beside = _stored(reference.accuracy.outputs_path, size, rows)
            else:
                beside = _outputs(opened(reference.variant), evidence, metric, rows, size)
        if metric_facts(metric.name).kind == "classes":
            answers = answers_of(known) if known else None
            outputs = _answering(
                outputs, folder / ANSWERS, np.full(len(samples), -1) if answers is None else answers, rows
            )
        what = f"metric {metric.name!r} on output {', '.join(map(repr, evidence.output_names))}"
        return reduce_outputs(
            metric,
            _within_budget(run, outputs, what),
            labels,
            beside,
            len(rows),
            keeps_noise=noise,
            scratch=folder,
            check=lambda needed: run.footprint.check(what, needed),
            watch=watch,
        )


def request_size(job: Job, variant: Variant) -> int | None:
    """Return how many samples those who use the model send at most, if a variant's answers depend on it; else None.

    The ranges of `int8-dynamic` are those of all samples of a request: in other company a sample gets other codes.
    """
    candidate = decode(variant.candidate) if "@" in variant.candidate else None
    is_dynamic = candidate is not None and (
        candidate.dynamic or (bool(candidate.given) and has_ranges_at_run_time(variant.path))
    )
    return max(point.batch_size for point in job.measurement.points) if is_dynamic else None


def has_parts(metric: Metric, evidence: Evidence) -> bool:
    """Return True if some samples can be measured without the others, which a call of a sequence or a fixed batch needs."""
    # The rows of language models come at the end.
    by_batch = metric.has_drop and metric.scope == "sample" and metric.of_windows is None
    return by_batch and not evidence.evaluation.steps and evidence.batch_axis in (None, 1)


def _within_budget(run: Run, outputs: Iterator[NDArray[Any]], what: str) -> Iterator[NDArray[Any]]:
    for batch in outputs:
        run.footprint.check(what)
        yield batch


def _size(evidence: Evidence, most: int | None = None) -> int:
    """Return the batch size: the model's fixed one, or fewer samples than usual if one sample is large; whole sequences.

    Of sequences at most `most`.
    """
    size = evidence.batch_axis or batch_size(evidence.sample_bytes, EVALUATION_BATCH_SIZE)
    steps = evidence.evaluation.steps
    return min(size, most or size) * steps if steps else size


def _outputs(
    runner: Runner, evidence: Evidence, metric: Metric, rows: NDArray[np.intp], size: int, most: int | None = None
) -> Iterator[NDArray[Any]]:
    """Yield the judged output of `rows` in batches of `size`, of all where a metric or model needs all.

    A model whose answers depend on it is asked for `most` samples at a time. Of a language model, the output is the figures of
    all windows: the logits are too large.
    """
    samples, output = evidence.evaluation, evidence.output
    if metric.of_windows:
        batches = samples.batches(evidence.batch_axis or WINDOWS_AT_ONCE)
        logits = (runner.run(batch, [output.name])[0] for batch in batches)
        yield score_batches(logits, samples, output, metric.of_windows)
        return
    if samples.steps:
        yield from run_sequences(runner, samples, output.name, size // samples.steps)
        return
    asked = InRequests(runner, most) if most else runner
    for batch in samples.batches(size, rows):
        yield metric.joined(asked.run(batch, evidence.output_names), batch.rows)


def _keeping(outputs: Iterator[NDArray[Any]], path: Path, n: int, most: float) -> Iterator[NDArray[Any]]:
    """Yield the outputs unchanged, and write those of all `n` samples to a file if they take `most` bytes or less."""
    start, shape = 0, None
    for batch in outputs:
        if not start and batch.ndim and batch.nbytes * n <= most * len(batch):
            shape = batch.shape[1:]
            np.lib.format.open_memmap(path, "w+", batch.dtype, (n, *shape))
        # The reader of the batches refuses those that do not fit.
        if shape is not None and batch.shape[1:] == shape and start + len(batch) <= n:
            _mapped(path, "r+")[start : start + len(batch)] = batch
        start += len(batch) if batch.ndim else 0
        yield batch


def _answering(
    outputs: Iterator[NDArray[Any]], path: Path, answers: NDArray[np.integer[Any]], rows: NDArray[np.intp]
) -> Iterator[NDArray[Any]]:
    """Yield the outputs of `rows` unchanged; write `answers` with the class with the highest score of each of these rows."""
    start = 0
    for batch in outputs:
        stop = start + len(batch) if batch.ndim else start
        if batch.ndim == 2 and batch.shape[1] > 1:
            answers[rows[start:stop]] = batch.argmax(axis=1)[: len(rows) - start]
        start = stop
        yield batch
    if (answers[rows] >= 0).all():
        np.save(path, answers.astype(np.int32))


def _stored(path: Path, size: int, rows: NDArray[np.intp]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(rows), size):
        yield _mapped(path, "r")[rows[start : start + size]]


def _mapped(path: Path, mode: Literal["r", "r+"]) -> NDArray[Any]:
    """Return the array of a file, mapped anew: its pages count as memory of the process only until the map is dropped."""
    return np.asarray(np.load(path, mmap_mode=mode))


def _kept(
    folder: Path, evidence: Evidence, metric: Metric, reduced: Reduced, rows: NDArray[np.intp], known: Accuracy | None
) -> Accuracy:
    """Write the results of the samples `rows` into the folder, with those of the others as `known`, or NaN."""
    n = len(evidence.evaluation)

    def written(name: str, found: NDArray[np.float64], before: Path | None) -> Path:
        # A row of some metrics is that of several samples, which are then all measured.
        every = found
        if len(rows) == len(found):
            every = np.full((n, *found.shape[1:]), np.nan) if before is None else np.load(before)
            every[rows] = found
        np.save(folder / name, every)
        return folder / name

    noise = None if reduced.noise is None else written("noise.npy", reduced.noise, known.noise_path if known else None)
    return Accuracy(
        metric.name,
        metric.value(reduced.rows),
        len(reduced.rows),
        written("scores.npy", reduced.rows, known.scores_path if known else None),
        written("finite.npy", reduced.finite, known.finite_path if known else None),
        samples_a_row=len(rows) // len(reduced.rows),
        noise_path=noise,
        outputs_path=folder / OUTPUTS if (folder / OUTPUTS).exists() else None,
    )


def _considerate(settings: SessionSettings, *, threads: int) -> SessionSettings:
    """Return the settings with this many threads and no spinning, since another candidate's session may run concurrently.

    The number of threads does not change the order in which terms are added, so outputs are identical to the bit (a test
    checks this). With all threads spinning, two sessions on two cores took more than twice as long.
    """
    return replace(settings, threads=max(1, threads)).without_spinning()

"""Accuracy of one artifact on the whole evaluation set: results per sample, stored under the digest of all their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

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
    batch_size,
    reduce_outputs,
)
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.run.user_functions import job_metric, keeps_noise
from tasks.runtimes.runner import Runner, open_runner
from tasks.storage.product import Product
from validators.errors import BudgetExceeded, CandidateRefused, JobError
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
    *,
    alone: bool = False,
    watch_of: Callable[[int], BatchObserver] | None = None,
) -> tuple[Accuracy, bool]:
    """Return the accuracy of a variant, and True if it was in the store; `reference` is None for the baseline itself.

    With `alone`, nothing else of the run computes meanwhile, so all threads of the settings are used instead of half. If the
    metric is known batch by batch, `watch_of` makes an observer of batches of a size, which may end the measurement.

    Raises:
        CandidateRefused: the runtime does not load or run the variant, or the metric fails on the variant's outputs; `stopped`
            by the observer.
        DataError: the samples have no targets for a metric of language models.
        JobError: the metric fails on the baseline's outputs.
        BudgetExceeded: the run exceeds its budget of memory or disk.
    """
    job, evidence, settings = run.job, run.evidence, variant.session
    metric = job_metric(job)
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
    )

    def measure(folder: Path) -> Accuracy:
        threads = settings.threads if alone else settings.threads // 2
        watch = watch_of(_size(evidence)) if watch_of and _is_watchable(metric) else None
        try:
            reduced = _reduced(run, evidence, metric, variant, reference, threads, folder, watch)
        except JobError as error:
            if reference is None or isinstance(error, BudgetExceeded):
                raise
            # The metric accepted the baseline's outputs, so the variant is at fault.
            raise CandidateRefused(
                kind="invalid", found=error.found, expected=f"{error.expected}, as for the baseline", fix=error.fix
            ) from error
        return _kept(folder, evidence, metric, reduced)

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
    watch: BatchObserver | None,
) -> Reduced:
    samples = evidence.evaluation
    order = watch.order if watch else None
    noise = keeps_noise(metric, evidence.output)
    with ExitStack() as stack:

        def opened(of: Variant) -> Runner:
            return stack.enter_context(open_runner(of.loaded, _considerate(of.session, threads=threads)))

        labels = samples.labels
        if metric.of_answers:
            reader = read_tokenizer(variant.path.parent)
            generator = cast(Generator, opened(variant))
            outputs: Iterator[NDArray[Any]] = answer_windows(generator, samples, reader, metric.of_answers)
            labels = None if labels is None else expected_texts(labels, reader)
        else:
            outputs = _outputs(opened(variant), evidence, metric, order)
        beside: Iterator[NDArray[Any]] | None = None
        if noise or metric.reads_reference:
            if reference is None:
                most = min(KEPT_BYTES, KEPT_SHARE * run.footprint.disk_left())
                outputs = _keeping(outputs, folder / OUTPUTS, len(samples), most)
            elif reference.accuracy.outputs_path is not None:
                beside = _stored(reference.accuracy.outputs_path, _size(evidence), order)
            else:
                beside = _outputs(opened(reference.variant), evidence, metric, order)
        if metric_facts(metric.name).kind == "classes":
            outputs = _answering(outputs, folder / ANSWERS, len(samples), _size(evidence), order)
        what = f"metric {metric.name!r} on output {', '.join(map(repr, evidence.output_names))}"
        return reduce_outputs(
            metric,
            _within_budget(run, outputs, what),
            labels,
            beside,
            len(samples),
            keeps_noise=noise,
            scratch=folder,
            check=lambda needed: run.footprint.check(what, needed),
            watch=watch,
        )


def _is_watchable(metric: Metric) -> bool:
    """Return True if the metric's rows are known batch by batch; those of language models come at the end."""
    return metric.has_drop and metric.scope == "sample" and metric.of_windows is None


def _within_budget(run: Run, outputs: Iterator[NDArray[Any]], what: str) -> Iterator[NDArray[Any]]:
    for batch in outputs:
        run.footprint.check(what)
        yield batch


def _size(evidence: Evidence) -> int:
    """Return the batch size: the model's fixed one, or fewer samples than usual if one sample is large; whole sequences."""
    size = evidence.batch_axis or batch_size(evidence.sample_bytes, EVALUATION_BATCH_SIZE)
    return size * (evidence.evaluation.steps or 1)


def _outputs(
    runner: Runner, evidence: Evidence, metric: Metric, order: NDArray[np.intp] | None
) -> Iterator[NDArray[Any]]:
    """Yield the judged output batch by batch; of a language model, the figures of all windows: the logits are too large."""
    samples, output = evidence.evaluation, evidence.output
    if metric.of_windows:
        batches = samples.batches(evidence.batch_axis or WINDOWS_AT_ONCE)
        logits = (runner.run(batch, [output.name])[0] for batch in batches)
        yield score_batches(logits, samples, output, metric.of_windows)
        return
    if samples.steps:
        yield from run_sequences(runner, samples, output.name, _size(evidence) // samples.steps)
        return
    for batch in samples.batches(_size(evidence), order):
        yield metric.joined(runner.run(batch, evidence.output_names), batch.rows)


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
    outputs: Iterator[NDArray[Any]], path: Path, n: int, size: int, order: NDArray[np.intp] | None
) -> Iterator[NDArray[Any]]:
    """Yield the outputs unchanged, and write the class with the highest score of each sample once all are known."""
    answers = np.full(n, -1, dtype=np.int32)
    for number, batch in enumerate(outputs):
        start = (number if order is None else int(order[number])) * size
        if batch.ndim == 2 and batch.shape[1] > 1:
            answers[start : start + len(batch)] = batch.argmax(axis=1)[: n - start]
        yield batch
    if (answers >= 0).all():
        np.save(path, answers)


def _stored(path: Path, size: int, order: NDArray[np.intp] | None) -> Iterator[NDArray[Any]]:
    for number in range(-(-len(_mapped(path, "r")) // size)) if order is None else order:
        yield np.array(_mapped(path, "r")[number * size : (number + 1) * size])


def _mapped(path: Path, mode: Literal["r", "r+"]) -> NDArray[Any]:
    """Return the array of a file, mapped anew: its pages count as memory of the process only until the map is dropped."""
    return np.asarray(np.load(path, mmap_mode=mode))


def _kept(folder: Path, evidence: Evidence, metric: Metric, reduced: Reduced) -> Accuracy:
    """Write the results per sample into the folder."""
    np.save(folder / "scores.npy", reduced.rows)
    np.save(folder / "finite.npy", reduced.finite)
    if reduced.noise is not None:
        np.save(folder / "noise.npy", reduced.noise)
    return Accuracy(
        metric.name,
        metric.value(reduced.rows),
        len(reduced.rows),
        folder / "scores.npy",
        folder / "finite.npy",
        samples_a_row=len(evidence.evaluation) // len(reduced.rows),
        noise_path=folder / "noise.npy" if reduced.noise is not None else None,
        outputs_path=folder / OUTPUTS if (folder / OUTPUTS).exists() else None,
    )


def _considerate(settings: SessionSettings, *, threads: int) -> SessionSettings:
    """Return the settings with this many threads and no spinning, since another candidate's session may run concurrently.

    The number of threads does not change the order in which terms are added, so outputs are identical to the bit (a test
    checks this). With all threads spinning, two sessions on two cores took more than twice as long.
    """
    return replace(settings, threads=max(1, threads)).without_spinning()

"""Accuracy of one artifact on the whole evaluation set: results per sample, kept under the digest of all that decides them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE, score_batches
from tasks.measure.metrics.reduction import KEPT_BYTES, Reduced, batch_size, reduce_outputs
from tasks.run.context import Run
from tasks.run.job_metric import job_metric, keeps_noise
from tasks.runtimes.runner import Runner, open_runner
from tasks.storage.product import Product
from validators.errors import BudgetExceeded, CandidateRefused, JobError
from validators.job.job import Job
from validators.records.measurements import Accuracy
from validators.records.run import Inventory, SessionSettings, Variant
from validators.samples.given import Evidence

# The most samples a batch when accuracy is measured; latency has batch sizes of its own.
EVALUATION_BATCH_SIZE = 32
# The baseline's outputs, in its entry of the store.
OUTPUTS = "outputs.npy"


@dataclass(frozen=True)
class Reference:
    """The baseline that a variant is measured beside: its accuracy, and the artifact, which answers again where it must."""

    accuracy: Accuracy
    variant: Variant


def measure_accuracy(
    run: Run,
    evidence: Evidence,
    inventory: Inventory,
    variant: Variant,
    reference: Reference | None,
    *,
    alone: bool = False,
) -> tuple[Accuracy, bool]:
    """The metric of a variant, and whether it was in the store; `reference` is None for the baseline itself.

    `alone` says that nothing else of the run computes meanwhile, so that all threads of the settings may.

    Raises:
        CandidateRefused: the runtime does not load or run it, or the metric fails on outputs that are not the baseline's.
        DataError: the samples have no targets for the metric `perplexity`.
        JobError: the metric fails on the baseline's outputs.
        BudgetExceeded: the run takes more memory or disk than it may.
    """
    job, settings = run.job, variant.session
    metric = job_metric(job)
    inputs = (
        variant.measured_as,
        evidence.evaluation.file.digest,
        metric.name,
        metric.version,
        evidence.output.name,
        job.data.label,
        # Integer kernels saturate differently by instruction set: the same file has another accuracy elsewhere.
        inventory.device_key,
        str(reference.accuracy.scores_path) if reference else None,
    )

    def measure(folder: Path) -> Accuracy:
        threads = settings.threads if alone else settings.threads // 2
        try:
            reduced = _reduced(run, evidence, metric, variant, reference, threads, folder)
        except JobError as error:
            if reference is None or isinstance(error, BudgetExceeded):
                raise
            # What fails on a variant alone is the variant's fault.
            raise CandidateRefused(
                kind="invalid", found=error.found, expected=f"{error.expected}, as for the baseline", fix=error.fix
            ) from error
        return _kept(folder, evidence, metric, reduced)

    return run.store.make(Product("accuracy", inputs, Accuracy, measure))


def on_selection(job: Job, evidence: Evidence, accuracy: Accuracy) -> Accuracy:
    """Return the same with the metric on the samples that choose; its files hold those of all samples."""
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
) -> Reduced:
    samples = evidence.evaluation
    noise = keeps_noise(metric, evidence.output)
    with ExitStack() as stack:

        def opened(of: Variant) -> Runner:
            return stack.enter_context(open_runner(of.loaded, _considerate(of.session, threads=threads)))

        outputs = _outputs(opened(variant), evidence, metric)
        beside: Iterator[NDArray[Any]] | None = None
        if noise or metric.reads_reference:
            if reference is None:
                outputs = _keeping(outputs, folder / OUTPUTS, len(samples))
            elif reference.accuracy.outputs_path is not None:
                beside = _stored(reference.accuracy.outputs_path, _size(evidence))
            else:
                beside = _outputs(opened(reference.variant), evidence, metric)
        what = f"metric {metric.name!r} on output {evidence.output.name!r}"
        return reduce_outputs(
            metric,
            _within_budget(run, outputs, what),
            samples.labels,
            beside,
            len(samples),
            keeps_noise=noise,
            scratch=folder,
            check=lambda needed: run.footprint.check(what, needed),
        )


def _within_budget(run: Run, outputs: Iterator[NDArray[Any]], what: str) -> Iterator[NDArray[Any]]:
    for batch in outputs:
        run.footprint.check(what)
        yield batch


def _size(evidence: Evidence) -> int:
    """Return the samples of a batch: fewer than usual where one of them is large."""
    return evidence.batch_axis or batch_size(evidence.sample_bytes, EVALUATION_BATCH_SIZE)


def _outputs(runner: Runner, evidence: Evidence, metric: Metric) -> Iterator[NDArray[Any]]:
    """Yield the judged output batch by batch; for perplexity the losses of all windows, since their logits fit nowhere."""
    samples, output = evidence.evaluation, evidence.output
    if metric.name == "perplexity":
        batches = samples.batches(evidence.batch_axis or WINDOWS_AT_ONCE)
        yield score_batches((runner.run(batch, [output.name])[0] for batch in batches), samples, output)
        return
    for batch in samples.batches(_size(evidence)):
        yield runner.run(batch, [output.name])[0]


def _keeping(outputs: Iterator[NDArray[Any]], path: Path, n: int) -> Iterator[NDArray[Any]]:
    """Yield the same outputs, and write those of all `n` samples to a file if they are small enough to be kept."""
    kept: NDArray[Any] | None = None
    start = 0
    for batch in outputs:
        if not start and batch.ndim and batch.nbytes * n <= KEPT_BYTES * len(batch):
            kept = np.lib.format.open_memmap(path, "w+", batch.dtype, (n, *batch.shape[1:]))
        # What does not fit is refused by who reads the batches.
        if kept is not None and batch.shape[1:] == kept.shape[1:] and start + len(batch) <= n:
            kept[start : start + len(batch)] = batch
        start += len(batch) if batch.ndim else 0
        yield batch


def _stored(path: Path, size: int) -> Iterator[NDArray[Any]]:
    outputs = np.load(path, mmap_mode="r")
    for start in range(0, len(outputs), size):
        yield outputs[start : start + size].view(np.ndarray)


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
    """The settings with this many threads, none of them spinning: another candidate's session may run beside this one.

    Threads decide who computes a sum, not in which order its terms are added, so the outputs are the same to the bit (a test
    holds this). With all threads spinning, two sessions on two cores took more than twice as long.
    """
    return replace(settings, threads=max(1, threads)).without_spinning()

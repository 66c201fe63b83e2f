"""Accuracy of one artifact on the whole evaluation set, kept with its outputs under the digest of all that decides it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.context import MEASURE_CODE, Evidence, Run
from tasks.job_metric import job_metric
from tasks.measure.metric import Metric, Rows
from tasks.measure.perplexity import WINDOWS_AT_ONCE, score_batches
from tasks.measure.values import has_noise, signal_and_noise
from tasks.runtimes.runner import Runner, open_runner, run_all
from validators.datasets import TensorSpec
from validators.errors import CandidateRefused, JobError
from validators.measurements import Accuracy
from validators.records import Inventory, SessionSettings, Variant

# Samples a batch when accuracy is measured; latency has batch sizes of its own.
EVALUATION_BATCH_SIZE = 32


def measure_accuracy(
    run: Run,
    evidence: Evidence,
    inventory: Inventory,
    variant: Variant,
    baseline: Accuracy | None,
    *,
    alone: bool = False,
) -> tuple[Accuracy, bool]:
    """The metric of a variant, and whether it was in the store; `baseline` is None for the baseline itself.

    `alone` says that nothing else of the run computes meanwhile, so that all threads of the settings may.

    Raises:
        CandidateRefused: the runtime does not load or run it, or the metric fails on outputs that are not the baseline's.
        DataError: the samples have no targets for the metric `perplexity`.
        JobError: the metric fails on the baseline's outputs.
    """
    job, settings = run.job, variant.session
    metric = job_metric(job)
    key = (
        variant.digest,
        variant.proof,
        asdict(settings),
        evidence.evaluation.file.digest,
        metric.name,
        metric.version,
        evidence.output.name,
        job.data.label,
        # Integer kernels saturate differently by instruction set: the same file has another accuracy elsewhere.
        inventory.device_key,
        str(baseline.outputs_path) if baseline else None,
        MEASURE_CODE,
    )

    def measure(folder: Path) -> Accuracy:
        with open_runner(
            variant.loaded, _considerate(settings, threads=settings.threads if alone else settings.threads // 2)
        ) as runner:
            outputs = _outputs(runner, evidence, metric)
        reference = np.load(baseline.outputs_path) if baseline else None
        rows = _rows(metric, outputs, evidence.evaluation.labels, reference)
        np.save(folder / "outputs.npy", outputs)
        np.save(folder / "scores.npy", rows)
        noise = None
        if reference is not None and keeps_noise(metric, evidence.output):
            noise = folder / "noise.npy"
            np.save(noise, signal_and_noise(outputs, reference))
        return Accuracy(
            metric.name,
            metric.value(rows),
            len(rows),
            folder / "scores.npy",
            folder / "outputs.npy",
            samples_a_row=len(evidence.evaluation) // len(rows),
            noise_path=noise,
        )

    return run.store.make("accuracy", key, Accuracy, measure)


def keeps_noise(metric: Metric, output: TensorSpec) -> bool:
    """Whether a variant's outputs are kept and can be told from the baseline's by their noise."""
    return metric.name != "perplexity" and has_noise(output)


def finite(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    """Where outputs are finite, in their shape; text is finite everywhere."""
    return np.isfinite(outputs) if outputs.dtype.kind in "fiub" else np.ones(outputs.shape, bool)


def _outputs(runner: Runner, evidence: Evidence, metric: Metric) -> NDArray[Any]:
    """What is kept of the outputs, `(n, ...)`."""
    samples, output = evidence.evaluation, evidence.output.name
    if metric.name == "perplexity":
        batches = samples.batches(evidence.batch_axis or WINDOWS_AT_ONCE)
        logits = (runner.run(batch, [output])[0] for batch in batches)
        # The logits of all windows fit nowhere; their losses, finite where they are, stand for them from here on.
        return score_batches(logits, samples, evidence.output)
    outputs = run_all(runner, samples.batches(evidence.batch_axis or EVALUATION_BATCH_SIZE), output)
    if len(outputs) != len(samples):
        raise CandidateRefused(
            kind="invalid",
            found=f"output {output!r} has {len(outputs)} rows for {len(samples)} evaluation samples",
            expected="a judged output with one row a sample along axis 0",
            fix="name another `output`, or export the model with the batch on axis 0 of this one",
        )
    # The runtime gives text as Python objects, which numpy stores by pickle alone.
    return outputs.astype(str) if outputs.dtype.kind == "O" else outputs


def _rows(metric: Metric, outputs: NDArray[Any], labels: NDArray[Any] | None, reference: NDArray[Any] | None) -> Rows:
    """The metric's rows; what fails on a variant alone is the variant's fault."""
    try:
        return metric.rows(outputs, labels, reference)
    except JobError as error:
        if reference is None:
            raise
        raise CandidateRefused(
            kind="invalid", found=error.found, expected=f"{error.expected}, as for the baseline", fix=error.fix
        ) from error


def _considerate(settings: SessionSettings, *, threads: int) -> SessionSettings:
    """The settings with this many threads, none of them spinning: another candidate's session may run beside this one.

    Threads decide who computes a sum, not in which order its terms are added, so the outputs are the same to the bit (a test
    holds this). With all threads spinning, two sessions on two cores took more than twice as long.
    """
    return replace(settings, threads=max(1, threads)).without_spinning()

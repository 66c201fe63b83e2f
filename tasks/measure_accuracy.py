"""Accuracy of one artifact on the whole evaluation set, kept with its outputs under the digest of all that decides it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.context import MEASURE_CODE, Evidence, Run
from tasks.measure.accuracy import EVALUATION_BATCH_SIZE, score_samples, value_of
from tasks.measure.perplexity import WINDOWS_AT_ONCE, score_batches
from tasks.runtimes.ort import open_session, run_batches, run_outputs
from validators.job import MetricName
from validators.measurements import Accuracy
from validators.records import Inventory, SessionSettings

if TYPE_CHECKING:
    import onnxruntime as ort


def measure_accuracy(
    run: Run,
    evidence: Evidence,
    inventory: Inventory,
    model: Path,
    model_digest: str,
    settings: SessionSettings,
    baseline: Accuracy | None,
    *,
    alone: bool = False,
) -> tuple[Accuracy, bool]:
    """The metric of a model, and whether it was in the store.

    `alone` says that nothing else of the run computes meanwhile, so that all threads of the settings may.

    Raises:
        CandidateRefused: the runtime does not load or run it.
        DataError: the samples have no targets for the metric `perplexity`.
    """
    job = run.job
    key = (
        model_digest,
        asdict(settings),
        evidence.evaluation.file.digest,
        job.metric,
        evidence.output.name,
        job.data.label,
        # Integer kernels saturate differently by instruction set: the same file has another accuracy elsewhere.
        inventory.device_key,
        str(baseline.outputs_path) if baseline and job.metric == "agreement" else None,
        MEASURE_CODE,
    )

    def measure(folder: Path) -> Accuracy:
        with open_session(
            model, _considerate(settings, threads=settings.threads if alone else settings.threads // 2)
        ) as session:
            reference = np.load(baseline.outputs_path) if baseline else None
            outputs, scores = _score(session, evidence, job.metric, reference)
        np.save(folder / "outputs.npy", outputs)
        np.save(folder / "scores.npy", scores)
        value = value_of(job.metric, scores)
        return Accuracy(job.metric, value, len(scores), folder / "scores.npy", folder / "outputs.npy")

    return run.store.make("accuracy", key, Accuracy, measure)


def _score(
    session: ort.InferenceSession, evidence: Evidence, metric: MetricName, reference: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """What is kept of the outputs, `(n, ...)`, and one score a sample."""
    samples, output = evidence.evaluation, evidence.output.name
    if metric == "perplexity":
        batches = samples.batches(evidence.batch_axis or WINDOWS_AT_ONCE)
        logits = (run_outputs(session, batch, [output])[0] for batch in batches)
        losses = score_batches(logits, samples, evidence.output)
        # The logits of all windows fit nowhere; their losses, finite where they are, stand for them from here on.
        return losses, losses
    outputs = run_batches(session, samples.batches(evidence.batch_axis or EVALUATION_BATCH_SIZE), output)
    return outputs, score_samples(metric, outputs, samples.labels, reference)


def _considerate(settings: SessionSettings, *, threads: int) -> SessionSettings:
    """The settings with this many threads, none of them spinning: another candidate's session may run beside this one.

    Threads decide who computes a sum, not in which order its terms are added, so the outputs are the same to the bit (a test
    holds this). With all threads spinning, two sessions on two cores took more than twice as long.
    """
    return replace(settings, threads=max(1, threads)).without_spinning()

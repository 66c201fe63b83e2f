"""Step 4: the source at its own precision on the target. Its latency is measured in turn with each candidate's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tasks.engines.catalog import find_target
from tasks.measure.inventory import usable_cores
from tasks.measure.metrics.chance import chance_warning
from tasks.ptq.graph.edits import model_bytes
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.progress_events import BASELINE
from tasks.run.step import step
from tasks.run.user_functions import job_metric
from tasks.trials.build_engine import with_engine
from tasks.trials.measure_accuracy import measure_accuracy, on_selection
from validators.errors import CandidateRefused, InfrastructureError, SourceError
from validators.job.candidate_name import Candidate
from validators.plain_text import figure
from validators.records.measurements import Accuracy
from validators.records.run import Variant


def baseline_variant(run: LoadedRun) -> Variant:
    """Return the source as a variant of the baseline's engine, so that all measurements accept it.

    Raises:
        CandidateRefused: TensorRT cannot build an engine from the source.
    """
    source = run.source
    threads = run.job.measurement.points[0].threads or usable_cores()
    engine = find_target(run.job.baseline_on(run.inventory))
    session = engine.session(Candidate("fp32", engine.name), threads, run.libraries, run.job.provider_options)
    size = model_bytes(source.onnx_path)
    variant = Variant("baseline", source.onnx_path, source.digest, size, session, decoder=source.decoder)
    return with_engine(run, variant)


@step(BASELINE)
def measure_baseline(run: LoadedRun) -> Accuracy:
    """Return the baseline's accuracy on the samples that choose; its files hold the results of all samples.

    Raises:
        JobError: the metric fails on the baseline's outputs.
        InfrastructureError: the baseline's engine is not installed.
        SourceError: the source does not run on the target, or has NaN or Inf in its outputs for every sample.
    """
    with run.clock.work("measure baseline"), run.time_for_candidates():
        _check_engine(run.job.baseline_on(run.inventory))
        try:
            variant = baseline_variant(run)
            accuracy, _ = measure_accuracy(run, variant, None, alone=True)
        except CandidateRefused as error:
            if error.kind == "infrastructure":
                raise InfrastructureError(found=error.found, expected=error.expected, fix=error.fix) from error
            raise SourceError(found=error.found, expected=error.expected, fix=error.fix) from error
    if not np.load(accuracy.finite_path).any():
        raise SourceError(
            found="the source's outputs have NaN or Inf on every evaluation sample",
            expected="finite outputs",
            fix="check the source on the evaluation data first",
        )
    step, labels = accuracy.samples_a_row, run.evidence.evaluation.labels
    # On all samples, since the confirmation uses the same baseline.
    every = np.load(accuracy.scores_path)
    warning = chance_warning(job_metric(run.job), every, None if labels is None else labels[::step], run.job.seed)
    accuracy = replace(on_selection(run.job, run.evidence, accuracy), warning=warning)
    engine = run.job.baseline_on(run.inventory)
    log.info("baseline in %s: %s %s on %d samples", engine, accuracy.metric, figure(accuracy.value), accuracy.n)
    if warning:
        log.warning("%s", warning)
    return accuracy


def _check_engine(name: str) -> None:
    try:
        find_target(name).check_device()
    except CandidateRefused as missing:
        raise InfrastructureError(
            found=f"the baseline's engine {name} does not run here: {missing.found}",
            expected=missing.expected,
            fix=f"{missing.fix}; or set another `baseline`",
        ) from missing

"""Step 3, first half: the job's samples, checked against the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.evidence.fetch_data import load_place
from tasks.evidence.hugging_face import check_context
from tasks.evidence.sequences import split_sequences
from tasks.measure.continuations import prompt_rows
from tasks.measure.metrics.drops import check_value_gates
from tasks.measure.metrics.metric import Metric
from tasks.run.context import Run, log
from tasks.run.step import step
from tasks.run.user_functions import job_hooks, job_metric, job_step, keeps_noise
from tasks.runtimes.ort import describe_inputs, describe_outputs, open_session, with_mapped_weights
from validators.errors import CandidateRefused, DataError, JobError, SourceError
from validators.gates.accuracy import check_gates_can_be_met
from validators.gates.agreement import check_agreement_can_be_met
from validators.gates.verdict_rules import confidence_of_each
from validators.graph.interfaces import check_judged
from validators.job.job import Job
from validators.job.units import check_bounds_have_units
from validators.records.latencies import NEW_TOKENS
from validators.records.run import SessionSettings, Source
from validators.samples.confirmation_split import cluster_samples, confirmation_mask
from validators.samples.data_advice import yaml_line
from validators.samples.datasets import Feed, Samples, TensorSpec, check_calibration_labels, check_evaluation
from validators.samples.evidence import Evidence
from validators.samples.feeds import Feeds, feeds_of
from validators.samples.labels import LabelSpec
from validators.targets import facts_of
from validators.untrusted.s3_uris import S3Uri

if TYPE_CHECKING:
    import onnxruntime as ort

# Two sizes, so that an axis that has one of them by chance is not mistaken for the batch axis.
PROBE_SAMPLES = (2, 3)
# Batches that show whether the size of an output depends on values, and the most sizes in its error.
PROBE_BATCHES, MOST_SIZES = 16, 5

Role = Literal["calibration", "evaluation", "traffic", "pool"]


@step("load data")
def load_data(run: Run, source: Source) -> Evidence:
    """Read the samples; check them, the metric and the gates against the model.

    Raises:
        DataError: a file is unreadable, or its arrays do not fit the model or the metric.
        JobError: the metric does not fit the output, an axis of the job does not exist, or a gate cannot be met.
        SourceError: the runtime does not load or run the source.
    """
    with run.clock.work("load data"):
        return _load(run, source)


def _load(run: Run, source: Source) -> Evidence:
    job = run.job
    settings = with_mapped_weights(run.reference_session, source.onnx_path)
    with _source_errors(source), open_session(source.onnx_path, settings) as session:
        feeds, output, batch_axis = _describe(job, source, session)
        given = job.data.calibration
        calibration = load_file(run, "calibration", given, feeds, source) if given else None
        evaluation = load_file(run, "evaluation", job.data.evaluation, feeds, source)
        if facts_of(job.target).generates:
            for windows in filter(None, (calibration, evaluation)):
                check_context(job, source.onnx_path.parent, windows, source.uri)
        traffic = load_file(run, "traffic", job.data.traffic, feeds, source) if job.data.traffic else None
        _check_fixed_batch(batch_axis, run, *filter(None, (calibration, evaluation)))
        metric = job_metric(job)
        others = tuple(_judged_output(name, describe_outputs(session)) for name in job.output_names[1:])
        probe, sample_bytes = _probe(session, metric, (output, *others), evaluation, batch_axis)
        labels = _labels_of(session, metric, output, probe, next(evaluation.batches(batch_axis or PROBE_SAMPLES[0])))
        axes = {axis for one in feeds.model for axis in one.shape if isinstance(axis, str)}
        _check_same_size(session, metric, output, evaluation, batch_axis or 1, axes)
    check_evaluation(evaluation, labels, metric=metric.name, label=job.data.label)
    if calibration is not None:
        check_calibration_labels(calibration, labels, job.data.label)
    evaluation = _clustered_by(labels, evaluation)
    check_bounds_have_units(job, evaluation.labels)
    _check_axes(job, feeds.samples)
    _check_agreement_gate(job)
    check_value_gates(metric, job.gates)
    # Load the user's functions early, so that a fault in them does not end the run late.
    job_hooks(job)
    job_step(job)
    _check_noise_gate(job, keeps_noise(metric, output))
    unit = 2 if labels.in_pairs else 1
    clusters, copies = cluster_samples(evaluation, unit)
    confirmation = confirmation_mask(evaluation, job.confirmation.share, unit, clusters)
    check_gates_can_be_met(
        job.gates,
        job.confirmation,
        confirmation[::unit],
        {name: array[::unit] for name, array in evaluation.slices.items()},
        clusters=None if clusters is None else clusters[::unit],
        is_right_or_wrong=metric.is_right_or_wrong,
    )
    _check_prompts(job, confirmation, clusters)
    told = f"{len(calibration)} calibration and " if calibration else ""
    log.info("data: %s%d evaluation samples", told, len(evaluation))
    if copies:
        log.warning("%d evaluation samples are copies of others: gates count each with its copies once", copies)
    return Evidence(
        inputs=feeds.samples,
        output=output,
        calibration=calibration,
        evaluation=evaluation,
        traffic=traffic,
        batch_axis=batch_axis,
        confirmation=confirmation,
        sample_bytes=sample_bytes,
        other_outputs=others,
        clusters=clusters,
        copies=copies,
    )


def _clustered_by(labels: LabelSpec, samples: Samples) -> Samples:
    """Return the samples with their labels as clusters, if labels are groups and the job names no coarser ones."""
    if labels.kind != "groups" or samples.labels is None:
        return samples
    keys = samples.labels if samples.labels.ndim == 1 else samples.labels[:, 0]
    if samples.clusters is None:
        return replace(samples, clusters=keys)
    both = {*zip(keys.tolist(), samples.clusters.tolist(), strict=True)}
    if len(both) > len(np.unique(keys)):
        raise DataError(
            found=f"evaluation data {samples.file.path.name}: samples with the same label are in different `data.groups`",
            expected="groups that hold all samples of a label, because these are found by each other",
            fix="remove `data.groups`, so that each label is a group, or name coarser groups",
        )
    return samples


def _probe(
    session: ort.InferenceSession,
    metric: Metric,
    judged: tuple[TensorSpec, ...],
    evaluation: Samples,
    batch_axis: int | None,
) -> tuple[NDArray[Any], int]:
    """Return what the metric reads for a small batch, and the bytes of one sample's inputs and judged outputs."""
    batches = [next(evaluation.batches(size)) for size in ((batch_axis,) if batch_axis else PROBE_SAMPLES)]
    counts = [batch.rows for batch in batches]
    names = [output.name for output in judged]
    answers = [metric.joined(session.run(names, batch), count) for batch, count in zip(batches, counts, strict=True)]
    check_judged(judged[0], list(zip(counts, answers, strict=True)))
    probe = np.asarray(answers[0])
    return probe, (probe.nbytes + sum(array.nbytes for array in batches[0].values())) // counts[0]


def _labels_of(
    session: ort.InferenceSession, metric: Metric, output: TensorSpec, probe: NDArray[Any], batch: Feed
) -> LabelSpec:
    """Return the labels that the metric needs for the judged output."""
    try:
        return metric.expects(output, probe.shape)
    except JobError as error:
        fitting = _fitting(session, metric, output, batch)
        fix = (
            f"set {' or '.join(map(_setting, fitting))}, which fits this metric; or {error.fix}"
            if fitting
            else error.fix
        )
        raise JobError(found=error.found, expected=error.expected, fix=fix) from error


def _fitting(session: ort.InferenceSession, metric: Metric, judged: TensorSpec, batch: Feed) -> list[str]:
    """Return the names of the other outputs that the metric fits; none for a metric of several outputs."""
    fitting = []
    for one in describe_outputs(session):
        if metric.join is None and one.name != judged.name:
            with suppress(JobError):
                metric.expects(one, np.shape(session.run([one.name], batch)[0]))
                fitting.append(one.name)
    return fitting


def _setting(output: str) -> str:
    return f"`{yaml_line({'output': output})}`"


def _check_same_size(
    session: ort.InferenceSession,
    metric: Metric,
    output: TensorSpec,
    evaluation: Samples,
    size: int,
    axes: Collection[str],
) -> None:
    """Run a few batches if the judged output has a dynamic axis that is not in `axes`, those of the inputs."""
    if metric.join or all(isinstance(axis, int) or axis in axes for axis in output.shape[1:]):
        return
    batches = list(islice(evaluation.batches(size), PROBE_BATCHES))
    names = [output.name, *_fitting(session, metric, output, batches[0])]
    sizes: dict[str, set[tuple[int, ...]]] = {name: set() for name in names}
    for batch in batches:
        for name, array in zip(names, session.run(names, batch), strict=True):
            sizes[name].add(np.shape(array)[1:])
    found = sizes.pop(output.name)
    if len(found) == 1:
        return
    steady = [f" or set {_setting(name)}, which has one size;" for name, seen in sizes.items() if len(seen) == 1]
    raise JobError(
        found=f"output {output} has the sizes {sorted(found)[:MOST_SIZES]} for samples of one size",
        expected="a judged output whose size does not depend on the values of the samples",
        fix=f"pad it in the graph to one length, and for texts name the padding in `text.skip`;{''.join(steady)} or judge the "
        "scores from before decoding, with `text.decoding`",
    )


def describe_source(run: Run, source: Source) -> tuple[Feeds, TensorSpec, int | None]:
    """Return how samples are fed to a source, its judged output, and the size of its batch axis if fixed, else None.

    Raises:
        JobError: the output does not exist, or the job's `inputs` do not fit the source.
        SourceError: the runtime does not load the source.
    """
    settings = with_mapped_weights(SessionSettings.reference(1, libraries=run.libraries), source.onnx_path)
    with _source_errors(source), open_session(source.onnx_path, settings) as session:
        return _describe(run.job, source, session)


def _describe(job: Job, source: Source, session: ort.InferenceSession) -> tuple[Feeds, TensorSpec, int | None]:
    outputs = describe_outputs(session)
    feeds = feeds_of(job.inputs, describe_inputs(session), source.uri, outputs)
    if feeds.states and len(job.output_names) > 1:
        raise JobError(
            found="several outputs to judge, and a state that is carried from call to call",
            expected="one judged output for sequences of calls",
            fix="name one `output`, or write recorded states into the data files in place of `state_from`",
        )
    name = job.output_names[0] if job.output_names else None
    return feeds, _judged_output(name, outputs), _batch_axis(feeds.samples)


def load_file(run: Run, role: Role, place: Path | S3Uri, feeds: Feeds, source: Source) -> Samples:
    """Load one data file of the job, or a pool of samples, with its slices. Sequences become single calls of the source.

    Raises:
        DataError: the file is missing or unreadable, does not fit the model, or lacks a slice that the job names.
        InfrastructureError: the S3 server does not answer.
    """
    data = run.job.data
    samples = load_place(run, place, feeds, role)
    missing = sorted(set(data.slices) - set(samples.slices))
    if samples.clusters is None:
        missing += data.group_names
    # Recorded requests may lack slices and groups; other checks compare them.
    if missing and role != "traffic":
        raise DataError(
            found=f"{role} data {samples.file.path.name} has no {missing}, which `data.slices` or `data.groups` name",
            expected="an array (or column) for each slice and for the groups in calibration and evaluation data",
            fix="add the arrays, or remove their names from `data.slices` or `data.groups`",
        )
    return split_sequences(samples, source, run.libraries, role=role) if feeds.states else samples


@contextmanager
def _source_errors(source: Source) -> Iterator[None]:
    """Turn the runtime's refusals into errors of the source or its data."""
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

    try:
        yield
    except CandidateRefused as error:
        raise SourceError(
            found=f"{source.uri}: {error.found}",
            expected="a model that ONNX Runtime loads and runs",
            fix="load and run the model in ONNX Runtime alone first",
        ) from error
    except (Fail, InvalidArgument, RuntimeException) as error:
        raise DataError(
            found=f"{source.uri} fails on the first evaluation samples: {str(error).splitlines()[0][:300]}",
            expected="samples that the model runs on",
            fix="check the shapes and values of the evaluation data",
        ) from error


def _judged_output(name: str | None, outputs: tuple[TensorSpec, ...]) -> TensorSpec:
    if name is None:
        return outputs[0]
    for output in outputs:
        if output.name == name:
            return output
    raise JobError(
        found=f"output {name!r}", expected=f"one of {[output.name for output in outputs]}", fix="correct `output`"
    )


def _batch_axis(inputs: tuple[TensorSpec, ...]) -> int | None:
    first = inputs[0].shape[0] if inputs[0].shape else None
    return first if isinstance(first, int) else None


def _check_fixed_batch(batch_axis: int | None, run: Run, *files: Samples) -> None:
    if batch_axis is None:
        return
    for samples in files:
        if len(samples) % batch_axis:
            raise DataError(
                found=f"{samples.file.path.name} has {len(samples)} samples, and the model a fixed batch size of {batch_axis}",
                expected=f"a multiple of {batch_axis}",
                fix="remove the excess samples, or export the model with a dynamic batch axis",
            )
    wrong = [size for size in run.job.measurement.batch_sizes if size != batch_axis]
    if wrong:
        raise JobError(
            found=f"batch sizes {wrong} for a model with a fixed batch size of {batch_axis}",
            expected=f"`measurement.batch_sizes: [{batch_axis}]`",
            fix="correct the batch sizes, or export the model with a dynamic batch axis",
        )


def _check_axes(job: Job, inputs: tuple[TensorSpec, ...]) -> None:
    axes = {axis for spec in inputs for axis in spec.shape[1:] if isinstance(axis, str)}
    if facts_of(job.target).generates:
        axes.add(NEW_TOKENS)
    unknown = sorted(set(job.measurement.dims) - axes)
    if unknown:
        raise JobError(
            found=f"`measurement.dims` names {unknown}",
            expected=f"dynamic axes of the inputs besides the batch: {sorted(axes) or 'there are none'}",
            fix="correct the names; the inputs are " + "; ".join(str(spec) for spec in inputs),
        )


def _check_agreement_gate(job: Job) -> None:
    if job.gates.min_agreement is None:
        return
    if not facts_of(job.target).generates or not job.measurement.prompts:
        raise JobError(
            found=f"`gates.min_agreement: {job.gates.min_agreement}` with the target {job.target} and "
            f"`measurement.prompts: {job.measurement.prompts}`",
            expected="a target that answers prompts, such as ort-genai, and at least one prompt",
            fix="remove `min_agreement`, or set `measurement.prompts`",
        )


def _check_prompts(job: Job, confirmation: NDArray[np.bool_], clusters: NDArray[np.intp] | None) -> None:
    """Check that the prompts that choose, and those that confirm, can meet the gate on agreement."""
    parts = [("that choose", ~confirmation, job.gates.confidence)]
    if job.confirmation.share:
        each = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
        parts.append(("that confirm", confirmation, each))
    for purpose, windows, confidence in parts:
        rows = prompt_rows(windows, clusters, job.measurement.prompts, job.seed)
        of_prompts = () if clusters is None else tuple(clusters[rows].tolist())
        check_agreement_can_be_met(job.gates, confidence, len(rows), of_prompts, purpose)


def _check_noise_gate(job: Job, has_noise: bool) -> None:
    if job.gates.min_sqnr_db is not None and not has_noise:
        raise JobError(
            found=f"`gates.min_sqnr_db: {job.gates.min_sqnr_db}` with the metric {job.metric!r}",
            expected="a floating-point output that the run keeps; the logits of language models are not kept",
            fix="remove `min_sqnr_db`, or use another `metric` or `output`",
        )

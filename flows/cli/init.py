"""Job skeletons for `quantgate init`: a commented job file, generated from a model's metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tasks.evidence.model_facts import ModelFacts
from validators.job.candidate_name import decode
from validators.job.recipe_words import describe
from validators.samples.datasets import TensorSpec
from validators.targets import facts_of

# A rank-3 output with at least this many values on its last axis is over a vocabulary rather than over tags.
_VOCABULARY = 1000
_CLASSES = 2000
_DIM = 128
_MAX_DROP = {
    "r2": "2 points of the explained variance; mse and mae need a bound in their own units",
    "perplexity": "nats per token: exp(0.02) is 2 % more perplexity",
}
_TEMPLATE = """\
# Job for {uri} on the target {target}.
# Generated from the model's metadata. Review the lines marked CHECK, make the two data files, then run
#   quantgate candidates {file}     to list the candidates
#   quantgate validate {file}       to judge the calibration data
#   quantgate run {file}
#
# The model: {flavor}, {size}, weights in {precision}.
{tensors}
# MLflow's signature: {signature}
source: {source}
target: {target}

# Two files (.npz or .parquet), with one array for each name, samples along axis 0:
{arrays}
# calibration: a few hundred samples like the traffic, none of them in the evaluation data.
# evaluation: all that you have; if they are too few to detect a drop, the verdict says how many would be enough.
# `quantgate suggest-calibration {file} --from POOL --size 256` picks calibration samples from a pool.
data:
  calibration: calibration.npz  # CHECK
  evaluation: evaluation.npz  # CHECK
  # groups: patient  # CHECK: the array that assigns samples to a patient, video or document, if any
{label}{inputs}
# CHECK: {metric_why}
# Others: accuracy, top5, agreement, f1_macro, f1_binary, auroc; mse, mae, r2; cosine, spearman; perplexity; wer, cer; sqnr.
metric: {metric}
{output}
candidates:
{candidates}

gates:
{gates}
  confidence: 0.95     # one-sided, for every bound
  min_speedup: 1.1     # at least this multiple of the baseline's p50 speed; null for no bound
  min_coverage: 0.5    # at least half of the multiply-accumulates in low-precision kernels
  max_size_ratio: 1.0  # no larger than the baseline

# Requests to measure latency for; gates and objective use the first.
measurement:
  batch_sizes: [1]
{dims}"""


def job_skeleton(facts: ModelFacts, target: str, file: str) -> str:
    """Return the text of a job file named `file`."""
    metric, why = suggest_metric(facts.outputs)
    labelled = metric not in ("sqnr", "perplexity")
    several = len(facts.outputs) > 1
    return _TEMPLATE.format(
        uri=facts.uri,
        source=json.dumps(facts.uri) if set(facts.uri) & set("#{}[]&*!|>'\"%`,") else facts.uri,
        target=target,
        file=file,
        flavor=facts.flavor,
        size=f"{facts.size_bytes / 1e6:.1f} MB" if facts.size_bytes else "size not recorded",
        precision=facts.precision or "an unknown type",
        tensors="\n".join(
            f"#   {side}  {spec}"
            for side, specs in (("input ", facts.inputs), ("output", facts.outputs))
            for spec in specs
        ),
        signature=facts.signature or "none",
        arrays="\n".join(_array_lines(facts.inputs, labelled=labelled)),
        inputs=_inputs(facts.inputs),
        label="  label: label  # CHECK: the name of the array that holds the labels\n" if labelled else "",
        metric=metric,
        metric_why=why,
        output=f"output: {json.dumps(facts.outputs[0].name)}  # CHECK: one of {len(facts.outputs)} outputs\n"
        if several
        else "",
        candidates="\n".join(f"  - {name}  # {describe(decode(name))}" for name in facts_of(target).default_candidates),
        gates="  min_sqnr_db: 30      # CHECK: smallest ratio of signal to quantization noise, in dB"
        if metric == "sqnr"
        else f"  max_drop: 0.02       # CHECK: {_MAX_DROP.get(metric, 'largest allowed drop: 0.02 is 2 points')}",
        dims=_dims(facts.inputs),
    )


def suggest_metric(outputs: Sequence[TensorSpec]) -> tuple[str, str]:
    """Return the metric that the shape of the first output suggests, and the reason.

    >>> suggest_metric([TensorSpec("logits", "float32", ("batch", 4))])[0]
    'accuracy'
    >>> suggest_metric([TensorSpec("logits", "float32", ("batch", "length", 32000))])[0]
    'perplexity'
    >>> suggest_metric([TensorSpec("score", "float32", ("batch", 1))])[0]
    'r2'
    >>> suggest_metric([TensorSpec("mask", "float32", ("batch", 3, 64, 64))])[0]
    'sqnr'
    """
    if not outputs:
        return "sqnr", "the outputs are unknown; sqnr needs no labels"
    shape, first = outputs[0].shape, outputs[0]
    last = shape[-1] if shape else None
    if len(shape) == 3 and isinstance(last, int) and last >= _VOCABULARY:
        return "perplexity", f"{first} looks like scores over a vocabulary"
    if len(shape) == 1 or (len(shape) == 2 and last == 1):
        return "r2", f"{first} looks like one value per sample; for a yes or no, use f1_binary"
    if len(shape) == 2 and isinstance(last, int) and last <= _CLASSES:
        return "accuracy", f"{first} looks like scores of {last} classes; for an embedding, use cosine"
    return "sqnr", f"{first} suggests no metric; sqnr needs no labels, but does not measure quality on the task"


def _inputs(inputs: Sequence[TensorSpec]) -> str:
    """Return the settings of inputs that are no arrays with the samples along axis 0; empty if there are none."""
    lines = []
    for spec in inputs:
        axis = _batch_axis(spec, inputs)
        if axis is None:
            value = _usual_constant(spec)
            lines.append(
                f"  {json.dumps(spec.name)}: {{constant: {value}}}  # CHECK: the value of every request, {spec}"
            )
        elif axis:
            lines.append(
                f"  {json.dumps(spec.name)}: {{batch_axis: {axis}}}  # CHECK: the axis of the samples in {spec}"
            )
    return "\n".join(["", "inputs:", *lines, ""]) if lines else ""


def _batch_axis(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> int | None:
    """Return the axis of the samples: 0, or that with the name of axis 0 of another input; None for one without samples.

    >>> x, state = TensorSpec("x", "float32", ("n", 512)), TensorSpec("state", "float32", (2, "n", 128))
    >>> [_batch_axis(spec, [x, state]) for spec in (x, state, TensorSpec("sr", "int64", ()), TensorSpec("size", "int64", (2,)))]
    [0, 1, None, None]
    """
    firsts = [other.shape[0] for other in inputs if other.shape]
    batch = max(firsts, key=firsts.count) if firsts else None
    found = [axis for axis, size in enumerate(spec.shape) if size == batch]
    if found and (found[0] == 0 or len(found) == 1):
        return found[0]
    return None if all(isinstance(size, int) for size in spec.shape) else 0


def _usual_constant(spec: TensorSpec) -> str:
    """Return a likely value of an input that is the same in every request.

    >>> _usual_constant(TensorSpec("sr", "int64", ())), _usual_constant(TensorSpec("training", "bool", ()))
    ('16000', 'false')
    """
    if spec.dtype == "bool":
        return "false"
    if spec.name in ("sr", "sample_rate", "sampling_rate"):
        return "16000"
    return '""' if spec.dtype in ("str", "string") else "1"


def _array_lines(inputs: Sequence[TensorSpec], *, labelled: bool) -> list[str]:
    axes = {spec.name: _batch_axis(spec, inputs) for spec in inputs}
    lines = [
        f"#   {spec.name}  {spec.dtype}  [samples{_rest(spec, axis)}]"
        for spec in inputs
        if (axis := axes[spec.name]) is not None
    ]
    return lines + (["#   label  the values that the metric compares with  [samples, ...]"] if labelled else [])


def _rest(spec: TensorSpec, batch_axis: int) -> str:
    others = [size for axis, size in enumerate(spec.shape) if axis != batch_axis]
    return "".join(f", {'any' if axis is None else axis}" for axis in others)


def _dims(inputs: Sequence[TensorSpec]) -> str:
    """Return the line with a size for each dynamic axis other than the samples'; empty without such axes."""
    names = dict.fromkeys(
        axis
        for spec in inputs
        for place, axis in enumerate(spec.shape)
        if isinstance(axis, str) and place != _batch_axis(spec, inputs)
    )
    if not names:
        return ""
    sizes = ", ".join(f"{json.dumps(name)}: {_DIM}" for name in names)
    return f"  dims: {{{sizes}}}  # CHECK: the size of each dynamic axis in a typical request\n"

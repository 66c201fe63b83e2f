"""Job skeletons for `quantgate init`: a commented job file with a suggested metric, generated from a model's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from textwrap import fill
from typing import Any

import yaml
from numpy.typing import NDArray

from tasks.evidence.model_facts import ModelFacts
from validators.job.candidate_name import decode
from validators.job.job_data import InputSettings
from validators.job.metric_facts import METRICS, metric_facts
from validators.job.recipe_words import describe
from validators.plain_text import one_line
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.records.run import AbsentEngine
from validators.samples.data_advice import listed
from validators.samples.datasets import TensorSpec
from validators.samples.feeds import unchecked_feeds
from validators.samples.guess_inputs import LABEL, STEMS, JobData, guess_inputs
from validators.targets import baselines_of, facts_of, is_on_gpu

_DIM = 128
# Usual side of a picture, in pixels.
_SIDE = 224
# A rank-3 output with at least this many values on its last axis is over a vocabulary rather than over tags.
_VOCABULARY = 1000
_CLASSES = 2000
# Types of token ids. Smaller integers are pixels or bytes.
TOKENS = ("int32", "int64")
_THRESHOLD = "metric_threshold: 0.5  # CHECK: the probability above which a value means yes"
_TEXT = 'text: {decoding: ctc, vocabulary: vocabulary.txt, separator: ""}  # CHECK: a file with one token per line, blank first'

# Kinds of metrics, as they are listed.
_KINDS = ("classes tags", "cells", "boxes", "values", "embeddings rankings", "windows", "text", "noise")
# Text that needs no quotes in YAML, unless it reads as another value, such as `no`.
_PLAIN = re.compile(r"(models:)?[A-Za-z0-9_./@+-]+")
_TEMPLATE = """\
# Job for {uri} on the target {target}.
# Generated from the model's metadata. Review the lines marked CHECK{make}, then run
#   quantgate candidates {file}     to list the candidates
#   quantgate validate {file}       to judge the calibration data
#   quantgate run {file}
#
# The model: {flavor}, {size}, weights in {precision}.
{tensors}
# MLflow's signature: {signature}
source: {source}
target: {target}
{baseline}
# Two files (.npz, .parquet, .csv or .arrow) or folders of them, with one array for each name, samples along axis 0
# (for pictures and sounds see `read` in docs/own-model.md):
{arrays}
# calibration: a few hundred samples like the traffic, none of them in the evaluation data.
# evaluation: all that you have; if they are too few to detect a drop, the verdict says how many would be enough.
# `quantgate suggest-calibration {file} --from POOL --size 256` picks calibration samples from a pool.
data:
{data}
  # groups: patient  # CHECK: the array that assigns samples to a patient, video or document, if any
{inputs}
# {metric_why}
{others}
metric: {metric}
{options}{output}
candidates:
{candidates}
{portable}
gates:
{gates}
  confidence: 0.95     # one-sided, for every bound
  min_speedup: 1.1     # at least this multiple of the baseline's p50 speed; null for no bound
  min_coverage: 0.5    # at least half of the multiply-accumulates in low-precision kernels
  max_size_ratio: 1.0  # no larger than the baseline

# Requests to measure latency for; gates and objective use the first.
measurement:
  batch_sizes: [{batch}]
{dims}"""
_PORTABLE = "# portable: true     # CHECK: if processors of several kinds serve the model (docs/consume.md)\n"
# The module and function that reads pictures, and its text.
READ = "prepare:picture"
_PICTURES = """\
# The job's `data.read` calls `picture` for each file, once.
import numpy as np
from PIL import Image
{classes}

def picture(path):
    \"\"\"Return the model's input for one file, without the axis of samples{and_label}.\"\"\"
    with Image.open(path) as image:
        # CHECK: sized and scaled as in training, for {spec}.
        pixels = np.asarray(image.convert("{mode}").resize(({width}, {height})), np.{dtype}){scale}
    return {{{name}: pixels{axes}{label}}}
"""
# A metric, the reason for it, and the further lines of the job that it needs.
Suggestion = tuple[str, str, tuple[str, ...]]


def job_skeleton(
    facts: ModelFacts,
    target: str,
    file: str,
    absent: Sequence[AbsentEngine] = (),
    data: JobData | None = None,
    metric: str | None = None,
) -> str:
    """Return the text of a job file named `file`, for the given metric or the one that the model suggests.

    It has no candidates of the engines that are `absent`, and names these.
    """
    data = data or JobData()
    outputs = scores_first(facts.outputs)
    generates = facts_of(target).generates
    suggested = suggest_metric(outputs, facts.inputs, facts.probabilities)
    suggested = ("perplexity", "a decoder scores the next token", ()) if generates else suggested
    if metric in (None, suggested[0]):
        is_certain = metric is not None or generates or _is_certain(suggested[0], outputs, data.labels)
        metric, why, options = suggested
        why = f"{'' if is_certain else 'CHECK: '}{why}"
    else:
        why, options = f"The model's outputs suggest {suggested[0]}", _needed_by(metric)
    labelled = metric_facts(metric).kind not in ("noise", "windows")
    several = len(outputs) > 1
    settings = guess_inputs(facts.inputs, facts.outputs)
    feeds = unchecked_feeds(settings, facts.inputs)
    return _TEMPLATE.format(
        uri=one_line(facts.uri),
        source=_quoted(facts.uri),
        make="" if STEMS.keys() <= data.files.keys() else ", make the data files that are missing",
        data="\n".join(_data_lines(data, labelled=labelled)),
        target=target,
        baseline=_baseline_line(*baselines_of(target)),
        file=one_line(file),
        flavor=facts.flavor,
        size=f"{facts.size_bytes / 1e6:.1f} MB" if facts.size_bytes else "size not recorded",
        precision=facts.precision or "an unknown type",
        tensors="\n".join(
            f"#   {side}  {one_line(str(spec))}"
            for side, specs in (("input ", facts.inputs), ("output", facts.outputs))
            for spec in specs
        ),
        signature=one_line(facts.signature) or "none",
        arrays="\n".join(_array_lines(feeds.in_files, labelled=labelled)),
        inputs=_input_lines(settings, facts.inputs),
        others=fill(f"Others: {_others()}.", 120, initial_indent="# ", subsequent_indent="# "),
        metric=_quoted(metric),
        metric_why=one_line(why),
        options="".join(f"{line}\n" for line in options),
        output=f"output: {json.dumps(outputs[0].name)}  # CHECK: one of {len(outputs)} outputs\n" if several else "",
        candidates="\n".join(_candidate_lines(target, absent)),
        portable="" if is_on_gpu(target) else _PORTABLE,
        gates="  min_sqnr_db: 30      # CHECK: smallest ratio of signal to quantization noise, in dB"
        if not metric_facts(metric).has_drop
        else f"  max_drop: 0.02       # CHECK: {metric_facts(metric).max_drop}",
        batch=next((spec.shape[0] for spec in feeds.samples if spec.shape and isinstance(spec.shape[0], int)), 1),
        dims=_dims(feeds.samples, generates=generates),
    )


def _quoted(text: str) -> str:
    """Return the text as YAML reads it back, in quotes only where they are needed.

    >>> _quoted("models:/fraud/3"), _quoted("no"), _quoted("a b")
    ('models:/fraud/3', '"no"', '"a b"')
    """
    return text if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def _data_lines(data: JobData, *, labelled: bool) -> list[str]:
    """Return the lines of the job for the two files and the label; a line that is not certain is marked CHECK."""
    lines = []
    for role in STEMS:
        name = data.files.get(role, f"{role}.npz")
        mark = "  # found beside the job or the model" if role in data.found else ""
        mark = "  # CHECK" if role not in data.files else mark
        mark = f"  # CHECK: {data.faults[role]}" if role in data.faults else mark
        lines.append(f"  {role}: {_quoted(name)}{mark}")
    if data.pictures:
        lines.append(f"  read: {READ}  # CHECK: the function that makes the model's inputs of a file")
    if data.columns:
        lines.append(f"  columns: {_quoted(data.columns)}  # made of the columns in their order")
    if data.label is None and labelled:
        lines.append(f"  label: {LABEL}  # CHECK: the name of the array that holds the labels")
    elif data.label is not None and (labelled or data.label != LABEL):
        choice = (
            f"  # CHECK: or one of {one_line(listed(data.others))}; name the rest in `ignore`, `slices` or `groups`"
        )
        lines.append(f"  label: {_quoted(data.label)}{choice if data.others else ''}")
    return lines


def picture_reader(inputs: Sequence[TensorSpec], classes: Sequence[str]) -> str | None:
    """Return the text of a module that reads pictures for the model's one input; None for a model with other inputs.

    Folders of the names `classes` give the labels, in this order.
    """
    spec = inputs[0]
    channels_first = len(spec.shape) == 4 and spec.shape[1] in (1, 3)
    if len(inputs) > 1 or len(spec.shape) != 4 or not (channels_first or spec.shape[3] in (1, 3)):
        return None
    height, width = spec.shape[2:] if channels_first else spec.shape[1:3]
    is_grey = spec.shape[1 if channels_first else 3] == 1
    listed_classes = (
        f"\n# CHECK: in the order of the model's outputs.\nCLASSES = {json.dumps(classes)}\n" if classes else ""
    )
    return _PICTURES.format(
        classes=listed_classes,
        and_label=", and the class of its folder" if classes else "",
        name=json.dumps(spec.name),
        spec=one_line(str(spec)),
        mode="L" if is_grey else "RGB",
        width=width if isinstance(width, int) else _SIDE,
        height=height if isinstance(height, int) else _SIDE,
        dtype=spec.dtype,
        scale=" / 255" if spec.dtype.startswith("float") else "",
        axes=("[None]" if channels_first else "[..., None]") if is_grey else ".transpose(2, 0, 1)" * channels_first,
        label=', "label": CLASSES.index(path.parent.name)' if classes else "",
    )


def _others() -> str:
    """Return the names of all metrics, those of a kind side by side."""
    return "; ".join(
        ", ".join(name for name, facts in METRICS.items() if facts.kind in kinds.split()) for kinds in _KINDS
    )


def _candidate_lines(target: str, absent: Sequence[AbsentEngine]) -> list[str]:
    left_out = {one.engine for one in absent}
    candidates = map(decode, facts_of(target).default_candidates)
    lines = [f"  - {one.name}  # {describe(one)}" for one in candidates if one.target not in left_out]
    return lines + [f"  # {one_line(str(one))}" for one in absent]


def _baseline_line(default: str, *others: str) -> str:
    if not others:
        return ""
    return f"# baseline: {others[0]}  # if that runs the model today; otherwise speedups are relative to {default}\n"


def _input_lines(settings: Mapping[str, InputSettings], inputs: Sequence[TensorSpec]) -> str:
    """Return the lines of the job's `inputs`; empty without settings."""
    if not settings:
        return ""
    lines = ["", "inputs:"]
    for spec in inputs:
        if spec.name in settings:
            told = settings[spec.name].model_dump(exclude_none=True)
            why = "the value of every request" if "constant" in told else "where the samples are"
            why = "carried from call to call" if "state_from" in told else why
            keys = ", ".join(f"{key}: {json.dumps(value)}" for key, value in told.items())
            lines.append(f"  {json.dumps(spec.name)}: {{{keys}}}  # CHECK: {why}, {one_line(str(spec))}")
    return "\n".join([*lines, ""])


def _array_lines(arrays: Sequence[TensorSpec], *, labelled: bool) -> list[str]:
    lines = [one_line(f"#   {spec.name}  {spec.dtype}  [samples{_rest(spec)}]") for spec in arrays]
    return lines + (["#   label  the values that the metric compares with  [samples, ...]"] if labelled else [])


def _rest(spec: TensorSpec) -> str:
    return "".join(f", {'any' if axis is None else axis}" for axis in spec.shape[1:])


def _dims(samples: Sequence[TensorSpec], *, generates: bool) -> str:
    """Return a line with the sizes of the dynamic axes other than the samples'; empty without such axes.

    Samples of token ids are padded to the longest, so that a typical request is shorter. A picture or a signal has the size
    of the data, which a run takes without this line.
    """
    names = dict.fromkeys(axis for spec in samples for axis in spec.shape[1:] if isinstance(axis, str))
    if not names:
        return ""
    sizes = ", ".join(f"{json.dumps(name)}: {_DIM}" for name in names)
    # Answers of this length, and the first token of one alone.
    sizes += f', "{NEW_TOKENS}": [{USUAL_NEW_TOKENS}, 1]' if generates else ""
    line = f"dims: {{{sizes}}}  # CHECK: the size of each dynamic axis in a typical request"
    has_tokens = any(spec.dtype in TOKENS for spec in samples)
    return f"  {line}\n" if has_tokens else f"  # {line}; without this line, the data's\n"


def suggest_metric(
    outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec] = (), probabilities: Collection[str] = ()
) -> Suggestion:
    """Return the metric that the first output suggests; `probabilities` names the outputs of a sigmoid.

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
        return "sqnr", "the outputs are unknown; sqnr needs no labels", ()
    shape, first = outputs[0].shape, outputs[0]
    last = shape[-1] if shape else None
    if first.name in probabilities:
        found = _of_probabilities(first)
        if found is not None:
            return found
    if len(shape) == 3 and isinstance(last, int) and last >= _VOCABULARY:
        if any(spec.dtype in TOKENS for spec in inputs) or not inputs:
            return "perplexity", f"{first} looks like scores over a vocabulary", ()
        return "cer", f"{first} looks like text read from a picture or a sound; for words, use wer", (_TEXT,)
    if len(shape) == 1 or (len(shape) == 2 and last == 1):
        return "r2", f"{first} looks like one value per sample; for a yes or no, use f1_binary", ()
    if len(shape) == 2 and isinstance(last, int) and last <= _CLASSES:
        return "accuracy", f"{first} looks like scores of {last} classes; for an embedding, use cosine", ()
    why = f"{first} suggests no metric; sqnr needs no labels, but does not measure quality on the task"
    return "sqnr", why, ()


def _is_certain(metric: str, outputs: Sequence[TensorSpec], labels: NDArray[Any] | None) -> bool:
    """Return True if the labels leave one reading of the first output: class indices for scores, or numbers for values."""
    if labels is None or labels.size == 0:
        return False
    if metric == "accuracy":
        classes = int(outputs[0].shape[-1] or 0)
        return labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < classes
    return metric == "r2" and labels.dtype.kind == "f"


def _needed_by(metric: str) -> tuple[str, ...]:
    """Return the further lines of the job that a metric needs, and that nothing here tells."""
    facts = metric_facts(metric)
    lines = {
        _THRESHOLD: facts.has_threshold,
        "metric_scores: logits  # CHECK: or probabilities": facts.has_scores,
        "metric_k: 10  # CHECK: the length of the ranking": facts.needs_k,
        _TEXT: facts.kind == "text",
        "metric_direction: higher  # CHECK: or lower, which is better": facts.kind == "function",
    }
    return tuple(line for line, is_needed in lines.items() if is_needed)


def scores_first(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs, those of scores before those of indices: classifiers of tables answer a label and its scores.

    >>> [spec.name for spec in scores_first([TensorSpec("label", "int64", ("n",)), TensorSpec("p", "float32", ("n", 2))])]
    ['p', 'label']
    """
    return sorted(outputs, key=lambda spec: not spec.dtype.startswith("float"))


def _of_probabilities(output: TensorSpec) -> Suggestion | None:
    """Return the metric for yes or no: of a sample, of each of its classes, or of each pixel; None for other shapes."""
    shape = output.shape
    if len(shape) == 1 or shape[1:] == (1,):
        return "f1_binary", f"{output} looks like the probability of a yes", (_THRESHOLD,)
    if len(shape) == 2 and isinstance(shape[1], int) and shape[1] <= _CLASSES:
        why = f"{output} looks like the probabilities of {shape[1]} tags that do not exclude each other"
        return "f1_multilabel", why, (_THRESHOLD,)
    if len(shape) == 4 and 1 in (shape[1], shape[3]):
        return "iou", f"{output} looks like the probability of each pixel; for other maps, use mse", (_THRESHOLD,)
    return None

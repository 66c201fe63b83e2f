"""A job file with comments for a registered model, written from what can be seen of it: what `quantgate init` makes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tasks.evidence.model_facts import ModelFacts
from validators.job.candidate_name import decode
from validators.job.recipe_words import describe
from validators.samples.datasets import TensorSpec
from validators.targets import facts_of

# Above so many values at the last of three axes an output is over a vocabulary rather than over tags.
_VOCABULARY = 1000
_CLASSES = 2000
_DIM = 128
_MAX_DROP = {
    "r2": "2 points of the explained variance; mse and mae have units, and need a bound in them",
    "perplexity": "nats a token: exp(0.02), 2 % more perplexity",
}
_TEMPLATE = """\
# A job for {uri}, for the target {target}.
# Written from what the model says of itself; look at what is marked CHECK, make the two data files, then
#   quantgate candidates {file}     what would be tried
#   quantgate validate {file}       whether the calibration data is sound
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
# evaluation: as many as there are: where they are too few to tell a drop, a verdict says how many would settle it.
# `quantgate suggest-calibration {file} --from POOL --size 256` picks the first from a pool.
data:
  calibration: calibration.npz  # CHECK
  evaluation: evaluation.npz  # CHECK
  # groups: patient  # CHECK: an array with the key of what samples belong to (patient, video, document), if they do
{label}
# CHECK: {metric_why}
# Others: accuracy, top5, agreement, f1_macro, f1_binary, auroc; mse, mae, r2; cosine, spearman; perplexity; wer, cer; sqnr.
metric: {metric}
{output}
candidates:
{candidates}

gates:
{gates}
  confidence: 0.95     # one-sided, of every bound
  min_speedup: 1.1     # at least so many times the baseline's p50 speed; null for none
  min_coverage: 0.5    # at least half of the multiply-accumulates in low-precision kernels
  max_size_ratio: 1.0  # no larger than the baseline

# The requests that latency is measured for; gates and objective look at the first.
measurement:
  batch_sizes: [1]
{dims}"""


def job_skeleton(facts: ModelFacts, target: str, file: str) -> str:
    """The text of the job file, which is called `file`."""
    metric, why = suggest_metric(facts.outputs)
    labelled = metric not in ("sqnr", "perplexity")
    several = len(facts.outputs) > 1
    return _TEMPLATE.format(
        uri=facts.uri,
        source=json.dumps(facts.uri) if set(facts.uri) & set("#{}[]&*!|>'\"%`,") else facts.uri,
        target=target,
        file=file,
        flavor=facts.flavor,
        size=f"{facts.size_bytes / 1e6:.1f} MB" if facts.size_bytes else "of a size that was not recorded",
        precision=facts.precision or "a type that cannot be told",
        tensors="\n".join(
            f"#   {side}  {spec}"
            for side, specs in (("input ", facts.inputs), ("output", facts.outputs))
            for spec in specs
        ),
        signature=facts.signature or "none",
        arrays="\n".join(_array_lines(facts.inputs, labelled=labelled)),
        label="  label: label  # CHECK: the name of the labels among the arrays\n" if labelled else "",
        metric=metric,
        metric_why=why,
        output=f"output: {json.dumps(facts.outputs[0].name)}  # CHECK: of {len(facts.outputs)} outputs\n"
        if several
        else "",
        candidates="\n".join(f"  - {name}  # {describe(decode(name))}" for name in facts_of(target).default_candidates),
        gates="  min_sqnr_db: 30      # CHECK: at least so many dB of signal to quantization noise"
        if metric == "sqnr"
        else f"  max_drop: 0.02       # CHECK: {_MAX_DROP.get(metric, 'at most so much worse: 0.02 is 2 points')}",
        dims=_dims(facts.inputs),
    )


def suggest_metric(outputs: Sequence[TensorSpec]) -> tuple[str, str]:
    """The metric that the shape of the first output speaks for, and why.

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
        return "sqnr", "nothing is known of the outputs; sqnr needs no labels"
    shape, first = outputs[0].shape, outputs[0]
    last = shape[-1] if shape else None
    if len(shape) == 3 and isinstance(last, int) and last >= _VOCABULARY:
        return "perplexity", f"{first} looks like scores over a vocabulary"
    if len(shape) == 1 or (len(shape) == 2 and last == 1):
        return "r2", f"{first} looks like one value a sample; of a yes or no, take f1_binary"
    if len(shape) == 2 and isinstance(last, int) and last <= _CLASSES:
        return "accuracy", f"{first} looks like scores of {last} classes; of an embedding, take cosine"
    return "sqnr", f"{first} speaks for no metric; sqnr needs no labels, and says nothing of what the model is for"


def _array_lines(inputs: Sequence[TensorSpec], *, labelled: bool) -> list[str]:
    lines = [f"#   {spec.name}  {spec.dtype}  [samples{_rest(spec)}]" for spec in inputs]
    return lines + (["#   label  what the metric compares with  [samples, ...]"] if labelled else [])


def _rest(spec: TensorSpec) -> str:
    return "".join(f", {'any' if axis is None else axis}" for axis in spec.shape[1:])


def _dims(inputs: Sequence[TensorSpec]) -> str:
    """The dynamic axes behind that of the samples: each needs a size to be measured at."""
    names = dict.fromkeys(axis for spec in inputs for axis in spec.shape[1:] if isinstance(axis, str))
    if not names:
        return ""
    sizes = ", ".join(f"{json.dumps(name)}: {_DIM}" for name in names)
    return f"  dims: {{{sizes}}}  # CHECK: the size of each dynamic axis in a usual request\n"

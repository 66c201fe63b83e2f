"""Job skeletons for `quantgate init`: a commented job file, generated from a model's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from textwrap import fill

from flows.cli.suggest_metric import TOKENS, scores_first, suggest_metric
from tasks.evidence.model_facts import ModelFacts
from validators.job.candidate_name import decode
from validators.job.job_data import InputSettings
from validators.job.metric_facts import METRICS
from validators.job.recipe_words import describe
from validators.plain_text import one_line
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.records.run import AbsentEngine
from validators.samples.datasets import TensorSpec
from validators.samples.feeds import unchecked_feeds
from validators.samples.guess_inputs import guess_inputs
from validators.targets import baselines_of, facts_of, is_on_gpu

_DIM = 128
# A source that YAML reads as text without quotes.
# Kinds of metrics, as they are listed.
_KINDS = ("classes tags", "cells", "boxes", "values", "embeddings rankings", "windows", "text", "noise")
_PLAIN = re.compile(r"(models:)?[A-Za-z0-9_./@+-]*[A-Za-z_./@+-][A-Za-z0-9_./@+-]*")
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
{baseline}
# Two files (.npz, .parquet, .csv or .arrow) or folders of them, with one array for each name, samples along axis 0
# (for pictures and sounds see `read` in docs/own-model.md):
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


def job_skeleton(facts: ModelFacts, target: str, file: str, absent: Sequence[AbsentEngine] = ()) -> str:
    """Return the text of a job file named `file`; it has no candidates of the engines that are `absent`, and names these."""
    outputs = scores_first(facts.outputs)
    generates = facts_of(target).generates
    suggested = suggest_metric(outputs, facts.inputs, facts.probabilities)
    metric, why, options = ("perplexity", "a decoder scores the next token", ()) if generates else suggested
    labelled = METRICS[metric].kind not in ("noise", "windows")
    several = len(outputs) > 1
    settings = guess_inputs(facts.inputs, facts.outputs)
    feeds = unchecked_feeds(settings, facts.inputs)
    return _TEMPLATE.format(
        uri=one_line(facts.uri),
        source=facts.uri if _PLAIN.fullmatch(facts.uri) else json.dumps(facts.uri),
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
        label="  label: label  # CHECK: the name of the array that holds the labels\n" if labelled else "",
        others=fill(f"Others: {_others()}.", 120, initial_indent="# ", subsequent_indent="# "),
        metric=metric,
        metric_why=one_line(why),
        options="".join(f"{line}\n" for line in options),
        output=f"output: {json.dumps(outputs[0].name)}  # CHECK: one of {len(outputs)} outputs\n" if several else "",
        candidates="\n".join(_candidate_lines(target, absent)),
        portable="" if is_on_gpu(target) else _PORTABLE,
        gates="  min_sqnr_db: 30      # CHECK: smallest ratio of signal to quantization noise, in dB"
        if not METRICS[metric].has_drop
        else f"  max_drop: 0.02       # CHECK: {METRICS[metric].max_drop}",
        batch=next((spec.shape[0] for spec in feeds.samples if spec.shape and isinstance(spec.shape[0], int)), 1),
        dims=_dims(feeds.samples, generates=generates),
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

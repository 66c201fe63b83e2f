"""Reference pages of the documentation, generated from the code by `infra/docs_site.py` when it builds the site.

They are not kept in the repository, so they are never out of date: a new command, key or metric appears by itself. Readers
without the site have `quantgate COMMAND --help` and the JSON Schemas in docs/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from flows.cli.run import EXIT_CODES
from flows.docs.reference_commands import command_page
from flows.docs.reference_models import model_page, table, unwrapped
from flows.docs.schemas import schema_of
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.texts import Decoder
from validators import errors
from validators.errors import CandidateRefused, JobError, QuantgateError
from validators.gates.catalog import GATES, LATER_GATES, Gate
from validators.job import candidate_name as recipe
from validators.job.job import Job
from validators.job.job_data import TextDecoding
from validators.job.job_gates import Gates
from validators.job.methods import FLAGS, RANGES, ROUNDINGS
from validators.job.metric_facts import METRICS
from validators.job.recipe_words import describe
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelKind
from validators.targets import facts_of, target_names

# Options that every metric can be built with; the pages read only its fixed properties.
_OPTIONS = Options(threshold=None, decoder=Decoder(TextDecoding(), ("a",) * 50, ""), scores="logits", k=10)

# Example outputs of a model, by the shapes that metrics distinguish.
_OUTPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "(n, classes)": ("float32", (8, 10)),
    "(n, 2)": ("float32", (8, 2)),
    "(n,)": ("float32", (8,)),
    "(n, tokens, vocabulary)": ("float32", (8, 6, 50)),
    "(n, classes, h, w)": ("float32", (8, 3, 4, 5)),
    "(n, boxes, 6)": ("float32", (8, 20, 6)),
    "text": ("str", (8,)),
}

# Leads of the pages of records: every key with type, default, bounds and meaning.
_JOB = (
    "A job file is YAML. Unknown keys and values out of bounds are refused. Paths are relative to the job file. "
    "Editors can use the JSON Schema: [job.schema.json](../job.schema.json)."
)
_RESULT = (
    "`--result FILE` writes one JSON document, whatever the outcome of the run. JSON Schema: "
    "[result.schema.json](../result.schema.json)."
)

# Labels in words.
_INTERVALS = {
    "clusters": "samples",
    "launches": "launches",
    "draws": "draws",
    "exact": "none: exact",
    "once": "none: measured once",
}
_KINDS: dict[LabelKind, str] = {
    "any": "none needed",
    "classes": "class indices",
    "numbers": "numbers",
    "text": "text or ids",
    "class_maps": "a class index for each cell, -100 for none",
    "multi_hot": "0 or 1 for each class",
    "groups": "the group of relevant samples",
    "boxes": "boxes: x1, y1, x2, y2, class",
}


def exit_code_page() -> str:
    """Return the page on exit codes, with the outcomes and the errors that lead to them."""
    rows = []
    for name, code in sorted((name, code) for name, code in vars(errors).items() if name.startswith("EXIT_")):
        outcomes = ", ".join(f"`{outcome}`" for outcome, found in EXIT_CODES.items() if found == code)
        ends = [kind for kind in _kinds(QuantgateError) if kind is not CandidateRefused and kind.exit_code == code]
        told = "<br>".join(f"`{kind.__name__}`: {_sentence(kind)}" for kind in ends)
        rows.append((code, f"`{code}`", name.removeprefix("EXIT_").replace("_", " ").lower(), outcomes, told))
    listed = table(("code", "name", "outcome in the result", "errors"), (row[1:] for row in sorted(rows)))
    lead = "Every command ends with one of these. An error states what was found, what was expected, and a fix.\n"
    return "\n".join(["# Exit codes", "", lead, listed, ""])


def metric_page() -> str:
    """Return the page on metrics: the outputs that each fits, and the labels that it needs."""
    rows = []
    for name in METRICS:
        metric = named_metric(name, _OPTIONS)
        better = "higher" if metric.higher_is_better else "lower"
        judged = "right or wrong" if metric.is_right_or_wrong else "by value" if metric.has_drop else "none"
        rows.append((f"`{name}`", better, judged, *(_labels(name, *output) for output in _OUTPUTS.values())))
    text = [
        "# Metrics",
        f"`metric` of a job. {unwrapped(Job.model_fields['metric'].description)}",
        "The table lists the labels that each metric takes, by the shape of the output. An empty cell means that the metric "
        "does not fit that output.",
        table(("metric", "better", "drops", *(f"`{shape}`" for shape in _OUTPUTS)), rows),
        "To use a function of your own: [your own metric](../own-metric.md). How drops are judged: [verdicts](../verdicts.md).",
    ]
    return "\n\n".join(text) + "\n"


def gate_page() -> str:
    """Return the page on gates, by the name of their verdict."""
    rows = []
    for gate in (*GATES, *LATER_GATES):
        field = Gates.model_fields[gate.key] if gate.key else None
        told = " ".join([gate.about, unwrapped(field.description) if field else ""]).strip()
        default = f"`{_plain(field.default)}`" if field else "always on"
        again = "yes" if isinstance(gate, Gate) and gate.is_confirmed else "no"
        key = f"`gates.{gate.key}`" if gate.key else ""
        rows.append((f"`{gate.name}`", key, default, _INTERVALS[gate.units], again, told))
    lead = (
        "A variant is promoted if every gate that applies to it passes. `null` in a job turns a gate off; gates without a key "
        "are always on. `gates.confidence` applies to every gate with an interval, whose independent units the table names: "
        "samples count as clusters where `data.groups` or copies join them. A confirmed gate judges the winner again, on "
        "samples and measurements that did not choose it, at a confidence that corrects for the candidates that may be tried."
    )
    heads = ("verdict", "key", "default", "interval over", "confirmed", "requirement")
    return "\n".join(["# Gates", "", lead, "", table(heads, rows), ""])


def name_page() -> str:
    """Return the page on candidate names: the grammar's examples, its words, and the default lists."""
    first, *lines = (recipe.__doc__ or "").strip().splitlines()
    examples = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines if "@" in line]
    shown = [(f"`{name}`", describe(recipe.decode(name)), told) for name, told in examples]
    words = [("`target`", ", ".join(f"`{name}`" for name in target_names()))]
    words += [
        (f"`{word}`", ", ".join(f"`{value}`" for value in get_args(kind)))
        for word, kind in (
            ("precision", recipe.Precision),
            ("granularity", recipe.Granularity),
        )
    ]
    rows = {"rounding": ROUNDINGS.values(), "ranges": RANGES.values(), "step": FLAGS}
    methods = [(f"`{row.word}`", kind, row.words) for kind, some in rows.items() for row in some]
    lists = [
        (f"`{target}`", "<br>".join(f"`{name}`" for name in facts_of(target).default_candidates))
        for target in target_names()
    ]
    text = [
        "# Candidate names",
        f"{first} [Candidates](../candidates.md) describes them.",
        "## Words",
        table(("part", "values"), words),
        "## Methods and steps",
        table(("word", "of", "in words"), methods),
        "## Names and what they decode to",
        table(("name", "decoded", "in short"), shown),
        "## The list `default` of each target",
        table(("target", "candidates, in the order they are tried"), lists),
    ]
    return "\n\n".join(text) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/job.md": lambda: model_page("The job file", _JOB, schema_of("job.schema.json")),
    "reference/commands.md": command_page,
    "reference/result.md": lambda: model_page("The result document", _RESULT, schema_of("result.schema.json")),
    "reference/metrics.md": metric_page,
    "reference/names.md": name_page,
    "reference/gates.md": gate_page,
    "reference/exit-codes.md": exit_code_page,
}


def _labels(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Return the labels that a metric takes on outputs of a shape, in words; empty if it does not fit them."""
    for options in (_OPTIONS, replace(_OPTIONS, threshold=0.5)):
        try:
            spec = named_metric(name, options).expects(TensorSpec("output", dtype, ("n", *shape[1:])), shape)
        except JobError:
            continue
        if dtype == "str" and spec.kind != "text":
            return ""
        kind = _KINDS[spec.kind]
        pairs = ", one for samples 2i and 2i + 1" if spec.in_pairs else ""
        several = ", one a value" if spec.kind == "numbers" and spec.size > 1 else ""
        return f"{kind}{several}{pairs}{'' if spec.required or spec.kind == 'any' else ', or none'}"
    return ""


def _kinds(kind: type[QuantgateError]) -> list[type[QuantgateError]]:
    """Return all subclasses of an error, in the order of the file."""
    return [found for below in kind.__subclasses__() for found in (below, *_kinds(below))]


def _sentence(documented: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return unwrapped((documented.__doc__ or "").split("\n\n", 1)[0])


def _plain(value: object) -> str:
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)

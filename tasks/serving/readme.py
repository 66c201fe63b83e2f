"""README among the artifacts of a version, for users who run the file without MLflow or find it later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from tasks.serving import sections
from tasks.serving.example import FOLDER, example
from tasks.serving.exporter import exports_of
from tasks.serving.promoted import Promoted
from tasks.serving.sections import code_block, document, shown
from validators.job.candidate_name import decode
from validators.job.metric_facts import METRICS
from validators.plain_text import markdown_table
from validators.samples.datasets import TensorSpec
from validators.targets import facts_of_provider


def version_readme(promoted: Promoted) -> str:
    """Render the README as Markdown: the complete content of the card, the files, and how to load them.

    It begins with the metadata of a model card of the Hugging Face Hub.
    """
    manifest = promoted.manifest
    parts = {
        "What it is": sections.origin(promoted),
        "Approved for": sections.device(promoted),
        "With MLflow": sections.load(promoted),
        f"With {facts_of_provider(manifest['session']['provider']).runtime} alone": [
            "In this folder, with the versions of `../requirements.txt`:",
            code_block(*example(manifest, promoted.request)),
        ],
        "Session": [_session(promoted)],
        "Inputs and outputs": [
            markdown_table(
                ("", "Name", "Type", "Shape"),
                [*_tensors("input", promoted.inputs), *_tensors("output", promoted.outputs)],
            ),
            "An axis that has a name, or `?`, takes any size; latency was measured with "
            + ", ".join(f"{shown(name)} of {list(shape)}" for name, shape in promoted.request.items())
            + ".",
        ],
        "Files": [
            markdown_table(
                ("File", "sha256"),
                ((f"`{FOLDER}/`{shown(name)}", f"`{digest}`") for name, digest in sorted(manifest["files"].items())),
            ),
            "`manifest.json` has the same, the session's settings, and the ranges to watch in production.",
        ],
        "Verdicts": sections.verdicts(promoted),
        "Beside the source": sections.figures(promoted),
        "Data": sections.data(promoted),
        "Limits": sections.limits(promoted),
    }
    title = f"# `{promoted.approval.variant.candidate}` of {shown(promoted.source.name)}"
    return _hub_metadata(promoted) + document([title], parts, "##")


def _hub_metadata(promoted: Promoted) -> str:
    """Return the library, tags, and the evaluation with the metric and its drop, as a block of YAML.

    The Hub resolves `license` and `base_model` against what it knows, which a name in a registry is not: they are left out, and
    so is every other text of users.
    """
    trial = promoted.approval.trial
    candidate = decode(trial.candidate)
    document: dict[str, Any] = {
        "library_name": facts_of_provider(promoted.approval.variant.session.provider).hub_library,
        "tags": ["quantized", "quantgate", candidate.precision, candidate.target],
    }
    if trial.accuracy:
        # A user's function may have any name.
        name = trial.accuracy.metric if trial.accuracy.metric in METRICS else "custom"
        metrics = [{"type": name, "value": trial.accuracy.value}]
        if trial.drop:
            metrics.append({"type": f"{name}_drop", "name": "drop against the source", "value": trial.drop.value})
        evaluated = {
            "task": {"type": "other"},
            "dataset": {"type": "evaluation", "name": f"sha256 {promoted.data['evaluation'].digest[:12]}"},
            "metrics": metrics,
        }
        document["model-index"] = [{"name": trial.candidate, "results": [evaluated]}]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=False)
    return f"---\n{text}---\n"


def _session(promoted: Promoted) -> str:
    """Render the approved session settings; they are part of the variant, since they change speed and numbers."""
    manifest = promoted.manifest
    runtime = ("Runtime", f"{manifest['runtime']} {manifest['runtime_version']}")
    return markdown_table(("Setting", "Value"), [runtime, *exports_of(manifest).settings(manifest)])


def _tensors(side: str, specs: Iterable[TensorSpec]) -> list[tuple[str, ...]]:
    return [
        (
            side,
            shown(spec.name),
            spec.dtype,
            shown(f"[{', '.join('?' if axis is None else str(axis) for axis in spec.shape)}]"),
        )
        for spec in specs
    ]

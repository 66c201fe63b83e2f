"""Metadata of a model card as the Hugging Face Hub reads it, before the text of a version's README."""

from __future__ import annotations

from typing import Any

import yaml

from tasks.serving.promoted import Promoted
from validators.job.candidate_name import decode
from validators.job.metric_facts import METRICS
from validators.targets import facts_of_provider


def metadata(promoted: Promoted) -> str:
    """Return the YAML block: the library, tags, and the evaluation with the metric and its drop.

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

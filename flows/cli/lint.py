"""Output of `quantgate lint`: the findings for a model file, by consequence."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tasks.engines.catalog import lint, lint_here
from validators.errors import EXIT_NO_VARIANT, EXIT_OK
from validators.graph.lint import CONSEQUENCES, MEANING, SEVERE, Finding
from validators.graph.source_graph import is_quantized
from validators.records.answer import CommandAnswer, Table

HEADINGS = ("Consequence", "Node", "Rule", "Found", "Fix")


def lint_model(model: Path, target: str, *, rules_only: bool = False) -> CommandAnswer:
    """Lint a model file; exit code 3 if something fails, is wrong or runs in float, else 0.

    With `rules_only` no runtime opens the file.

    Raises:
        SourceError: the file is no ONNX file.
        JobError: the target has no rules.
    """
    findings, basis = (lint(model, target), "rules alone, as asked for") if rules_only else lint_here(model, target)
    summary = _summarize(model, findings)
    code = EXIT_NO_VARIANT if any(finding.consequence in SEVERE for finding in findings) else EXIT_OK
    document = {
        "model": str(model),
        "target": target,
        "summary": summary,
        "findings": [asdict(finding) for finding in findings],
        "basis": basis,
    }
    rows = [(item.consequence, item.node, item.rule, _found(item), item.fix) for item in findings]
    table = [Table([HEADINGS, *rows])] if rows else []
    return CommandAnswer(document, (*table, summary, f"basis: {basis}"), code)


def _found(finding: Finding) -> str:
    """Return what was found, and what the runtime did there unless that is all."""
    return "; ".join(dict.fromkeys(filter(None, (finding.found, finding.seen))))


def _summarize(model: Path, findings: tuple[Finding, ...]) -> str:
    """Return one line with the number of findings by consequence, or that there was nothing to check."""
    if findings:
        counts = Counter(finding.consequence for finding in findings)
        return f"{model.name}: " + "; ".join(
            f"{counts[item]} {item} ({MEANING[item]})" for item in CONSEQUENCES if counts[item]
        )
    if not is_quantized(model):
        return f"{model.name}: not quantized, nothing to check: it would run in its own float types"
    return f"{model.name}: no findings"

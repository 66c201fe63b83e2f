"""What `quantgate lint` prints and writes: the findings of a file's rules, by what comes of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.console import out
from validators.errors import EXIT_NO_VARIANT, EXIT_OK, JobError
from validators.findings import CONSEQUENCES, MEANING, SEVERE, Finding
from validators.onnx_graph import is_quantized, lint
from validators.recipe import TARGETS

HEADINGS = ("Consequence", "Node", "Rule", "Found", "Fix")


def lint_model(model: Path, target: str, document: str | None) -> int:
    """Lint a model file, print a table or write a JSON document to a file or, for `-`, to standard output.

    Returns the exit code: 3 if something fails, is wrong or runs in float, else 0.

    Raises:
        SourceError: the file is no ONNX file.
        JobError: there is no such target, none with rules, or no folder for the document.
    """
    if target not in TARGETS:
        raise JobError(found=f"--target {target}", expected=", ".join(TARGETS), fix="correct --target")
    if document not in (None, "-") and not Path(document).resolve().parent.is_dir():
        raise JobError(
            found=f"--json {document}: no such folder", expected="a folder that exists", fix="make the folder"
        )
    findings = lint(model, target)
    summary = summarize(model, findings)
    if document is not None:
        text = json.dumps(as_document(model, target, findings, summary), indent=1) + "\n"
        sys.stdout.write(text) if document == "-" else Path(document).write_text(text, encoding="utf-8")
    if document != "-":
        show(findings)
        out.print(summary, highlight=False, markup=False, soft_wrap=True)
    return EXIT_NO_VARIANT if any(finding.consequence in SEVERE for finding in findings) else EXIT_OK


def show(findings: tuple[Finding, ...]) -> None:
    """The table of findings, gravest first, a section for each consequence."""
    if not findings:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading in ("Consequence", "Rule"), overflow="fold")
    for consequence in CONSEQUENCES:
        for item in (item for item in findings if item.consequence == consequence):
            cells = (item.consequence, item.node, item.rule, item.found, item.fix)
            table.add_row(*map(escape, cells))
    console = out if out.is_terminal else Console(file=sys.stdout, width=240)
    console.print(table)


def summarize(model: Path, findings: tuple[Finding, ...]) -> str:
    """One line: how many findings of which consequence, or that there was nothing to check."""
    if findings:
        counts = Counter(finding.consequence for finding in findings)
        return f"{model.name}: " + "; ".join(
            f"{counts[item]} {item} ({MEANING[item]})" for item in CONSEQUENCES if counts[item]
        )
    if not is_quantized(model):
        return f"{model.name}: not quantized, nothing to check: it would run in the float types that it has"
    return f"{model.name}: no findings"


def as_document(model: Path, target: str, findings: tuple[Finding, ...], summary: str) -> dict[str, Any]:
    """The findings for a machine to read."""
    return {
        "model": str(model),
        "target": target,
        "summary": summary,
        "findings": [asdict(finding) for finding in findings],
    }

"""One look at a champion as a page of the Prefect UI."""

from __future__ import annotations

import re

from tasks.watch.evidence import Looked


def watch_markdown(looked: Looked) -> str:
    """The look as Markdown: what it came to, a line for each bound, what was left out."""
    lines = [f"# {_plain(looked.job)}: {looked.outcome}", "", _plain(looked.told), ""]
    if looked.signals:
        lines += [
            f"Look {looked.looks} at version {_plain(looked.version)} ({_plain(looked.candidate)}): {looked.samples} samples.",
            "",
            "| | seen | bound | evidence (log) | |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {signal.kind} | {signal.value:.4g} | {signal.bound:.4g} | {looked.evidence.get(signal.kind, 0.0):.2f} | "
            f"{_plain(signal.note)} |"
            for signal in looked.signals
        ]
    if looked.notes:
        lines += ["", *(f"- {_plain(note)}" for note in looked.notes)]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text without what Markdown or HTML would make something of: names of files and tensors may hold anything."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&])", r"\\\1", " ".join(text.split()))

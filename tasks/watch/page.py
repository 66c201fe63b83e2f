"""Page of one look at a champion, for the Prefect UI."""

from __future__ import annotations

import re

from tasks.watch.evidence import Looked


def watch_markdown(looked: Looked) -> str:
    """Render the look as Markdown: the outcome, a row for each bound, and the notes."""
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
    """Escape Markdown and HTML: names of files and tensors may contain any character."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&])", r"\\\1", " ".join(text.split()))

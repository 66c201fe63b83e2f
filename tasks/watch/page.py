"""Page of one look at a champion, for the Prefect UI."""

from __future__ import annotations

from tasks.watch.evidence import Observation
from validators.plain_text import as_markdown, markdown_table


def watch_markdown(looked: Observation) -> str:
    """Render the look as Markdown: the outcome, a row for each bound, and the notes."""
    lines = [f"# {as_markdown(looked.job)}: {looked.outcome}", "", as_markdown(looked.told), ""]
    if looked.signals:
        version = f"version {as_markdown(looked.version)} ({as_markdown(looked.candidate)})"
        lines += [f"Look {looked.looks} at {version}: {looked.samples} samples.", ""]
        rows = [
            (
                signal.kind,
                f"{signal.value:.4g}",
                f"{signal.bound:.4g}",
                f"{looked.evidence.get(signal.kind, 0.0):.2f}",
                as_markdown(signal.note),
            )
            for signal in looked.signals
        ]
        lines += markdown_table(("", "seen", "bound", "evidence (log)", ""), rows)
    if looked.notes:
        lines += ["", *(f"- {as_markdown(note)}" for note in looked.notes)]
    return "\n".join(lines) + "\n"

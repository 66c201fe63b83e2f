"""Output of `quantgate status`."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.service.overview import Overview
from validators.records.answer import Table
from validators.redact import redact


def status_parts(found: Overview, model: str | None) -> list[str | Table]:
    """Return the sections champions, under way, approvals and last runs; an empty one says so."""
    of = f" of {model}" if model else ""
    champions = [(one.model, one.target, one.version, one.candidate, one.since) for one in found.champions]
    under_way = [
        (one.run.id[:8], one.run.source, one.run.target, one.run.started, one.state) for one in found.under_way
    ]
    runs = [
        (run.id[:8], run.source, run.target, run.started, run.outcome or run.status.lower(), run.reason)
        for run in found.runs
    ]
    if found.is_empty:
        return [f"nothing yet{of} at {redact(found.registry)}: no champion and no run; start with `quantgate run JOB`"]
    return [
        *_section(f"champions{of}", ("Model", "Target", "Version", "Candidate", "Since (UTC)"), champions),
        *_section("under way", ("Run", "Source", "Target", "Since (UTC)", "State"), under_way),
        *_approvals(found),
        *_section("last runs", ("Run", "Source", "Target", "Started (UTC)", "Outcome", "Why"), runs),
    ]


def _section(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str | Table]:
    if not rows:
        return [f"{title}: none", ""]
    return [title, Table([headings, *rows]), ""]


def _approvals(found: Overview) -> list[str | Table]:
    if found.approvals is None:
        return ["approvals: unavailable without a Prefect server (PREFECT_API_URL)", ""]
    headings = ("Run", "Source", "Target", "Candidate", "Expires (UTC)")
    rows = [(str(one.id), one.source, one.target, one.candidate, one.expires) for one in found.approvals]
    return _section("waiting for an approval", headings, rows)

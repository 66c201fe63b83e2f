"""Verdict table without a page: Markdown, rows for a table artifact, and plain rows for the terminal."""

from __future__ import annotations

from collections import Counter

from tasks.reporting import formats
from tasks.reporting.confirmation import confirmation_table, tell_confirmation
from tasks.reporting.details import checks_table
from tasks.reporting.parts import parts_table, tell_recovery
from tasks.reporting.rows import MEMORY, P95, WHY, metric_of, shown_outcome, verdict_table
from validators.plain_text import as_markdown, plain
from validators.records.result import CandidateResult, Result

# The HTML report lists more of them.
NOISIEST_PARTS = 5


def verdict_markdown(result: Result) -> str:
    """Render the outcome in one sentence and, if candidates were judged, the verdict table as a GitHub-style table.

    After a recovery, the noisiest parts follow.
    """
    label, _, reason = sentence(result).partition(": ")
    parts = [f"**{as_markdown(label)}**" + (f": {as_markdown(reason)}" if reason else "")]
    if result.baseline is not None and result.baseline.warning:
        parts.append(f"**warning**: {as_markdown(result.baseline.warning)}")
    parts += [f"**left out**: {as_markdown(str(absent))}" for absent in result.absent_engines if not absent.for_source]
    if result.champion is not None:
        champion = result.champion
        before = f"version {champion.previous}" if champion.previous else "none"
        parts.append(
            as_markdown(
                f"Champion {champion.name}@{champion.alias}: version {champion.version} (before this run: {before})"
            )
        )
    if result.error is not None:
        error = result.error
        parts.append("\n".join(f"- {key}: {as_markdown(getattr(error, key))}" for key in ("found", "expected", "fix")))
    if result.calibration is not None and result.calibration.failed_checks:
        parts.append(
            "\n".join(
                f"- {check.severity}: {as_markdown(check.name)}: found {as_markdown(check.found)}; "
                f"expected {as_markdown(check.expected)}; fix: {as_markdown(check.fix)}"
                for check in result.calibration.failed_checks
            )
        )
    if table := verdict_table(result):
        # The reasons follow as a list: Prefect's pages draw a table that is too wide over the text beside it.
        parts.append(table.without(WHY).markdown())
        parts.append("\n".join(f"- {as_markdown(row[0])}: {as_markdown(row[-1])}" for row in table.texts()))
    if told := tell_confirmation(result):
        parts.append(as_markdown(told))
        if table := confirmation_table(result):
            parts.append(table.without("Baseline", "When chosen").markdown())
    if result.recovery is not None:
        parts.append(as_markdown(f"Forms of the parts: {tell_recovery(result)}"))
        if noisiest := parts_table(result.recovery, NOISIEST_PARTS):
            parts.append(noisiest.markdown())
    return "\n\n".join(parts) + "\n"


def sentence(result: Result) -> str:
    """Return the outcome and its reason; the reasons of some outcomes name these themselves."""
    if result.outcome in ("no_variant", "accepted", "refused"):
        return result.reason
    return f"{result.outcome.replace('_', ' ')}: {result.reason}"


def headline(result: Result) -> list[str]:
    """Return short phrases on a run: the chosen candidate with speedup and drop, or the number of candidates by outcome.

    Speedup and drop are the confirmed ones if available.
    """
    chosen = result.winner
    if chosen is None:
        counts = Counter(_counted_as(one) for one in result.candidates)
        return [f"{count} {outcome}" for outcome, count in counts.most_common()]
    told = chosen.confirmed or chosen
    words = [chosen.name]
    if told.speedup_p50:
        words.append(f"{formats.speedup(told.speedup_p50.value)} as fast")
    if told.metric_drop:
        words.append(f"{metric_of(result)} drop {formats.metric_drop(told.metric_drop.value, metric_of(result))}")
    return words


def _counted_as(candidate: CandidateResult) -> str:
    return "copy" if candidate.refusal and candidate.refusal.kind == "copy" else shown_outcome(candidate)


def question_markdown(result: Result, digest: str, place: str, replaces: str, address: str | None) -> str:
    """Render a decision for a person, without a table: artifact, alias, the version it replaces, a link to the report."""
    asked = [
        f"**{as_markdown(result.chosen or '')}** would become {as_markdown(place)}",
        f"in place of {as_markdown(replaces)}",
        f"sha256 {digest[:16]}",
    ]
    link = f"\n\n[The whole report]({address})" if address else ""
    return "\n".join(f"- {line}" for line in asked) + f"\n\n{as_markdown(result.reason)}{link}\n"


def artifact_rows(result: Result) -> list[dict[str, str]]:
    """Return the verdict table as one dict per row, text by heading, for a Prefect table artifact."""
    table = verdict_table(result)
    return [dict(zip(table.headings, map(plain, row), strict=True)) for row in table.texts()]


def terminal_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the verdict table for a terminal, or the calibration checks if no candidate was judged: headings, then rows.

    The text is plain: a printer that reads markup, such as rich, must escape it (a reason may contain `[label=3]`).
    """
    table = verdict_table(result).without(P95, MEMORY) or checks_table(result.calibration).without("Expected", "Fix")
    return [table.headings, *table.texts()] if table else []

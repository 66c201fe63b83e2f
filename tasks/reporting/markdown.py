"""Verdict table without a page: Markdown, rows for a table artifact, and plain rows for the terminal."""

from __future__ import annotations

from collections import Counter

from tasks.reporting import formats
from tasks.reporting.confirmation import confirmed_rows, tell_confirmation
from tasks.reporting.parts import PART_COLUMNS, part_rows, tell_recovery
from tasks.reporting.rows import COLUMNS, headings, metric_of, shown_outcome, verdict_rows
from validators.plain_text import as_markdown, markdown_table, plain
from validators.records.result import CandidateResult, Result

# A terminal has 80 to 200 columns; the HTML report adds memory and tail latency.
TERMINAL_COLUMNS = ("name", "outcome", "metric", "drop", "speedup", "p50_ms", "size_mb", "coverage_percent", "reason")
_NUMERIC = frozenset(column for column, _ in COLUMNS) - {"name", "outcome", "reason"}
# The HTML report lists more of them.
NOISIEST_PARTS = 5


def verdict_markdown(result: Result) -> str:
    """Render the outcome in one sentence and, if candidates were judged, the verdict table as a GitHub-style table.

    After a recovery, the noisiest parts follow.
    """
    parts = [f"**{as_markdown(result.outcome.replace('_', ' '))}**: {as_markdown(result.reason)}"]
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
    if rows := verdict_rows(result):
        titles = headings(result)
        numeric = [column in _NUMERIC for column in titles]
        parts.append(_table([[row.cell(column) for column in titles] for row in rows], list(titles.values()), numeric))
    parts += _confirmation(result)
    parts += _recovery(result)
    return "\n\n".join(parts) + "\n"


def headline(result: Result) -> list[str]:
    """Return short phrases on a run: the chosen candidate with speedup and drop, or the number of candidates by outcome.

    Speedup and drop are the confirmed ones if available.
    """
    chosen = next((one for one in result.candidates if one.name == result.chosen), None)
    if chosen is None:
        counts = Counter(_counted_as(one) for one in result.candidates)
        return [f"{count} {outcome}" for outcome, count in counts.most_common()]
    told = chosen.confirmed or chosen
    words = [chosen.name]
    if told.speedup_p50:
        words.append(f"{formats.speedup(told.speedup_p50.value)} as fast")
    if told.metric_drop:
        words.append(f"{metric_of(result)} {formats.metric_drop(-told.metric_drop.value, metric_of(result))}")
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


def _confirmation(result: Result) -> list[str]:
    """Render how the winner was confirmed; empty if no candidate was judged again."""
    told = tell_confirmation(result)
    if not told:
        return []
    titles = ["Candidate", "Outcome", "Samples", "Metric", "Drop", "Speedup"]
    rows = [
        [
            row.name,
            row.outcome,
            row.samples,
            row.metric,
            f"{row.drop} ({row.drop_upper})",
            f"{row.speedup} ({row.speedup_lower})",
        ]
        for row in confirmed_rows(result)
    ]
    return [as_markdown(told), _table(rows, titles, [title not in ("Candidate", "Outcome") for title in titles])]


def _recovery(result: Result) -> list[str]:
    """Render the recovery's attempts and the noisiest parts; empty without a recovery."""
    if result.recovery is None:
        return []
    rows = part_rows(result.recovery, NOISIEST_PARTS)
    cells = [[*(str(getattr(row, name)) for name, _ in PART_COLUMNS), "left in float" * row.kept] for row in rows]
    titles = [*(title for _, title in PART_COLUMNS), ""]
    numeric = [*(name != "label" for name, _ in PART_COLUMNS), False]
    return [
        as_markdown(f"Most sensitive parts: {tell_recovery(result)}"),
        *([_table(cells, titles, numeric)] if rows else []),
    ]


def _table(rows: list[list[str]], titles: list[str], numeric: list[bool]) -> str:
    """Return a table of plain text."""
    cells = [[as_markdown(cell) for cell in row] for row in rows]
    return "\n".join(markdown_table(titles, cells, [index for index, right in enumerate(numeric) if right]))


def artifact_rows(result: Result) -> list[dict[str, str]]:
    """Return the verdict table as one dict per row, text by heading, for a Prefect table artifact."""
    titles = headings(result)
    return [{title: plain(row.cell(column)) for column, title in titles.items()} for row in verdict_rows(result)]


def terminal_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the verdict table for a terminal: headings first, then a tuple of text per row.

    The text is plain: a printer that reads markup, such as rich, must escape it (a reason may contain `[label=3]`).
    """
    titles = headings(result)
    rows = verdict_rows(result)
    lines = [tuple(titles[column] for column in TERMINAL_COLUMNS)] if rows else []
    return lines + [tuple(row.cell(column) for column in TERMINAL_COLUMNS) for row in rows]


def check_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the calibration checks for a terminal, failed ones first; plain text, like `terminal_rows`."""
    calibration = result.calibration
    if calibration is None:
        return []
    failed = [
        (check.name, "warning" if check.severity == "warning" else "failed", check.found)
        for check in calibration.failed_checks
    ]
    passed = [(check.name, "passed", check.found) for check in calibration.passed_checks]
    return [("Check", "Outcome", "Found"), *failed, *passed]

"""The result document of a run, as a file and as text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.storage.files import write_whole
from validators.records.answer import Table
from validators.records.generation import generations_of

if TYPE_CHECKING:
    from validators.records.result import Result


def result_parts(result: Result) -> list[str | Table]:
    """Return the table of candidates, or of checks if there are none, followed by the outcome and links."""
    # Imported here, because it loads half of the report's modules.
    from tasks.reporting.markdown import check_rows, terminal_rows

    # Without candidates there are only checks to show.
    parts: list[str | Table] = [Table(terminal_rows(result) or check_rows(result))]
    parts.append(f"{result.outcome.replace('_', ' ')}: {result.reason}")
    chosen = next((one for one in result.candidates if one.name == result.chosen), None)
    parts += [f"answers:   {one}" for one in generations_of(chosen.latencies)] if chosen else []
    if result.baseline and result.baseline.warning:
        parts.append(f"warning:   {result.baseline.warning}")
    parts += [f"note:      {absent}" for absent in result.absent_engines if not absent.for_source]
    if result.champion:
        uri = f"models:/{result.champion.name}@{result.champion.alias}"
        parts.append(f"champion:  {uri} (version {result.champion.version})")
    if result.calibration and result.calibration.page:
        parts.append(f"checks:    {result.calibration.page}")
    if result.report:
        parts.append(f"report:    {result.report}")
    seconds = result.seconds
    steps = ", ".join(f"{step} {value:.1f}" for step, value in seconds.by_step.items() if value >= 0.05)
    return [*parts, f"seconds:   {seconds.total:.1f} in all, {seconds.overhead:.1f} overhead ({steps})"]


def write_result(result: Result, path: Path | None) -> None:
    """Write the document atomically, if a path is given."""
    if path is None:
        return
    with write_whole(path) as partial:
        partial.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")

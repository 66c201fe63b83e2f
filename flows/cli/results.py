"""The result of a run, as files and as text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks.storage.files import write_whole
from validators.records.answer import Table
from validators.records.generation import generations_of

if TYPE_CHECKING:
    from validators.records.result import Result


FileOption = Literal["--result", "--junit", "--summary"]
Files = dict[FileOption, Path | None]


def result_parts(result: Result) -> list[str | Table]:
    """Return the table of candidates, or of checks if there are none, followed by the outcome and links."""
    # Imported here, because it loads half of the report's modules.
    from tasks.reporting import formats
    from tasks.reporting.markdown import sentence, terminal_rows

    parts: list[str | Table] = [Table(terminal_rows(result))]
    parts.append(sentence(result))
    winner = result.winner
    parts += [f"answers:   {one}" for one in generations_of(winner.latencies)] if winner else []
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
    total, overhead = map(formats.seconds, (seconds.total, seconds.overhead))
    return [*parts, f"seconds:   {total} in all, {overhead} overhead ({steps})"]


def write_files(result: Result, files: Files) -> None:
    """Write each file whose folder exists, atomically, in the form of its option."""
    for option, path in files.items():
        if path is not None and path.resolve().parent.is_dir():
            with write_whole(path) as partial:
                partial.write_text(_form(result, option), encoding="utf-8")


def _form(result: Result, option: FileOption) -> str:
    from tasks.reporting.junit import junit_xml
    from tasks.reporting.markdown import verdict_markdown

    if option == "--result":
        return result.model_dump_json(indent=1) + "\n"
    return junit_xml(result) if option == "--junit" else verdict_markdown(result)

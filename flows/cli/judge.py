"""Commands that need no server: judge one file beside another, and rank the parts of a model by their sensitivity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic_core import to_json

from flows.cli.console import err, prepared
from flows.cli.progress import show_progress
from flows.cli.results import Files, result_parts, write_files
from flows.cli.run import (
    EXIT_CODES,
    Changes,
    JobFile,
    JUnitFile,
    Metric,
    ResultFile,
    SummaryFile,
    check_folders,
    failed,
    job_of,
)
from tasks.run.signals import signals_kept
from validators.records.answer import CommandAnswer, Table

if TYPE_CHECKING:
    from tasks.trials.sensitivity import PrecisionEffects
    from validators.job.job import Job

# Parts of each recipe that the terminal shows; the document has all.
SHOWN = 10
HEADINGS = ("Rank", "Part", "Noise dB", "Drop", "at most", "Weight outliers", "Activation outliers")


def judge(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="The float model: an ONNX file.")],
    variant: Annotated[Path, typer.Argument(metavar="VARIANT", help="What was made of it: .onnx, or OpenVINO's .xml.")],
    data: Annotated[str, typer.Option(metavar="FILE", help="Samples with labels: .csv, .npz, .parquet or .arrow.")],
    metric: Metric = None,
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="What runs the variant; by its ending: ort-cpu, or openvino.")
    ] = None,
    precision: Annotated[str, typer.Option(metavar="PRECISION", help="What the variant is said to be.")] = "int8",
    changes: Changes = None,
    result: ResultFile = None,
    junit: JUnitFile = None,
    summary: SummaryFile = None,
    evidence: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the evidence (zip) here.")] = None,
) -> CommandAnswer:
    """Judge a quantized file beside its float model.

    Needs no registry and no server. Coverage by real kernels, sanity, metric, latency, confirmation and gates are those of
    `run`. Exit code 0: the variant passes; 3: it does not; 2: bad input; 1: infrastructure; 130: Ctrl-C.

    Example: quantgate judge model.onnx int8.onnx --data test.csv
    """
    from tasks.run.clock import Clock

    clock, job = Clock(), None
    files: Files = {"--result": result, "--junit": junit, "--summary": summary}
    try:
        with signals_kept():
            check_folders([*files.items(), ("--evidence", evidence)])
            job = _job_of(baseline, variant, data, metric, engine, precision, changes or ())
            prepared()
            with show_progress(err, job):
                from flows.judge import judge as flow

                found = flow(job, evidence)
    except (Exception, KeyboardInterrupt) as error:
        return failed(error, files, job, clock)
    write_files(found, files)
    return CommandAnswer(found, result_parts(found), EXIT_CODES[found.outcome])


def _job_of(
    baseline: Path,
    variant: Path,
    data: str,
    metric: str | None,
    engine: str | None,
    precision: str,
    changes: Sequence[str],
) -> Job:
    """Return the job that judges the variant alone, with `changes`; paths are relative to the present folder."""
    from tasks.run.user_functions import check_places
    from validators.job.read_job import changed, parse_job

    runs_in = engine or _engine_of(variant.suffix)
    name = re.sub(r"[^a-z0-9_.-]+", "-", variant.stem.lower()).strip("-_.")[:40] or "variant"
    given = {"name": name, "file": str(variant), "engine": runs_in, "precision": precision}
    raw: dict[str, object] = {
        "source": str(baseline),
        "target": runs_in,
        "data": {"evaluation": data},
        "candidates": [given],
        "search": "all",
        "confirmation": {"candidates": 1},
    }
    raw |= {"metric": metric} if metric else {}
    job = parse_job(changed(raw, list(changes)), base=Path.cwd(), origin="the command line")
    check_places(job)
    return job


def _engine_of(ending: str) -> str:
    """Return the default engine if it takes files with this ending, or if none does; else the first that does."""
    from tasks.engines.catalog import find_target
    from validators.targets import DEFAULT_TARGET, built_in_engines

    return next(
        (name for name in (DEFAULT_TARGET, *built_in_engines()) if ending in find_target(name).takes), DEFAULT_TARGET
    )


def sensitivity(
    job: JobFile,
    changes: Changes = None,
    result: ResultFile = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the noisiest parts here (SVG).")] = None,
) -> CommandAnswer:
    """Rank the parts of a model by what INT8 and INT4 cost.

    For INT8 with fixed ranges, with ranges at run time, and for INT4 weights: the noise in the judged output on calibration
    samples and, for the noisiest, the drop of the metric on evaluation samples. Nothing is timed or registered.

    Example: quantgate sensitivity examples/text.yaml --picture parts.svg
    """
    with signals_kept():
        check_folders([("--result", result), ("--picture", picture)])
        read = job_of(str(job), {}, changes or (), None)
        prepared()
        with show_progress(err, read):
            from flows.sensitivity import sensitivity as flow

            found = flow(read)
    if result is not None:
        result.write_bytes(to_json([asdict(one) for one in found], indent=1))
    if picture is not None:
        picture.write_text(_drawn(found), encoding="utf-8")
    return CommandAnswer(found, [part for one in found for part in _parts_of(one, read.metric)])


def _parts_of(effects: PrecisionEffects, metric: str) -> list[str | Table]:
    from tasks.reporting import formats

    rows = [
        (
            str(rank),
            part.name,
            formats.decibels(part.noise),
            formats.metric_drop(part.drop.value if part.drop else None, metric),
            formats.metric_drop(part.drop.high if part.drop else None, metric),
            formats.significant(part.weight_outlier_ratio),
            formats.significant(part.activation_outlier_ratio),
        )
        for rank, part in enumerate(effects.parts[:SHOWN], 1)
    ]
    count = f"{len(effects.parts)} part{'s' * (len(effects.parts) != 1)}"
    lost = f"; all together {formats.metric_drop(effects.drop.value, metric)}" if effects.drop else ""
    told = f"{effects.recipe}: {count} in {effects.seconds:.0f} s, drops on {effects.samples} samples{lost}"
    return [told, Table([HEADINGS, *rows])]


def _drawn(found: tuple[PrecisionEffects, ...]) -> str:
    """Return the picture of the first recipe with noise to draw."""
    from tasks.reporting.pictures.bars import noise_spec
    from tasks.reporting.pictures.vega import to_svg

    drawn = next((one for one in found if any(part.noise for part in one.parts)), found[0])
    return to_svg(
        noise_spec(drawn.parts[: 2 * SHOWN]), f"Noise in the output by part with {drawn.recipe}, each quantized alone."
    )

"""Pictures of a run, each with a text description for accessibility."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tasks.reporting import formats
from tasks.reporting.answers import Answerer, answerers, cache_lengths
from tasks.reporting.parts import SHOWN_PARTS
from tasks.reporting.pictures.answer_pictures import PacePoint, first_token_spec, memory_spec, pace_spec
from tasks.reporting.pictures.bars import histogram_spec, noise_spec
from tasks.reporting.pictures.coverage_map import coverage_spec
from tasks.reporting.pictures.frontier_picture import describe_frontier, frontier_spec
from tasks.reporting.pictures.latency_pictures import Curve, batch_spec, ecdf, ecdf_spec, speed_curve
from tasks.reporting.pictures.pareto import STYLES, Lines, Point, pareto_spec, short_names
from tasks.reporting.pictures.scales import in_axis_units
from tasks.reporting.pictures.slice_picture import slices_spec
from tasks.reporting.pictures.vega import Spec, to_png, to_svg
from tasks.reporting.rows import metric_of
from validators.job.job_gates import Gates
from validators.records.latencies import point_labels
from validators.records.measurements import Coverage
from validators.records.result import Result
from validators.records.run import Trial


@dataclass(frozen=True)
class Picture:
    """A Vega-Lite specification, and a text description for accessibility."""

    spec: Spec
    description: str

    @property
    def svg(self) -> str:
        """SVG element for a page."""
        return to_svg(self.spec, self.description)

    @property
    def png(self) -> bytes:
        """Content of a PNG file."""
        return to_png(self.spec)


@dataclass(frozen=True)
class Pictures:
    """All pictures of a run; None if there is nothing to draw. `coverage` and `differences` are by candidate."""

    pareto: Picture | None = None
    noise: Picture | None = None
    frontier: Picture | None = None
    latencies: Picture | None = None
    batches: Picture | None = None
    slices: Picture | None = None
    tokens_per_second: Picture | None = None
    first_tokens: Picture | None = None
    memory: Picture | None = None
    coverage: Mapping[str, Picture] = field(default_factory=dict)
    differences: Mapping[str, Picture] = field(default_factory=dict)

    def of_run(self, chosen: str | None) -> dict[str, Picture]:
        """Return the existing pictures of the run as a whole and of the chosen candidate, by name."""
        of_chosen = {"coverage": self.coverage.get(chosen or ""), "differences": self.differences.get(chosen or "")}
        named = vars(self) | of_chosen
        return {name: picture for name, picture in named.items() if picture is not None}


def draw_pictures(
    result: Result,
    gates: Gates,
    trials: Iterable[Trial] = (),
    sqnr_db: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
) -> Pictures:
    """Draw all pictures of a run.

    `trials` hold the raw latencies and the nodes, `sqnr_db` the ratio of signal to noise of each sample by candidate; the
    result document omits both.
    """
    drawn = {name: draw_differences(name, ratios) for name, ratios in sqnr_db.items()}
    by_name = {trial.candidate: trial for trial in trials}
    maps = {name: draw_coverage(name, trial.coverage) for name, trial in by_name.items() if trial.coverage}
    return Pictures(
        pareto=draw_pareto(result, gates),
        noise=draw_noise(result),
        frontier=draw_frontier(result),
        latencies=draw_latencies(by_name.get(result.chosen or "")),
        batches=draw_batches(result),
        slices=draw_slices(result, gates),
        tokens_per_second=draw_paces(result),
        first_tokens=draw_first_tokens(result),
        memory=draw_memory(result),
        coverage={name: picture for name, picture in maps.items() if picture is not None},
        differences={name: picture for name, picture in drawn.items() if picture is not None},
    )


def draw_pareto(result: Result, gates: Gates) -> Picture | None:
    """Draw speedup against drop; None if no candidate has both."""
    points = measured_points(result)
    if not points:
        return None
    lines = Lines(gates.drop_bound, gates.speedup_bound(result.target or ""))
    return Picture(pareto_spec(points, lines, metric_of(result)), describe(result, len(points)))


def draw_noise(result: Result) -> Picture | None:
    """Draw bars of the noise of the worst parts; None if no part has a noise to draw."""
    parts = result.recovery.parts[:SHOWN_PARTS] if result.recovery else ()
    if not any(part.noise for part in parts):
        return None
    worst, kept = parts[0], sum(bool(part.form) for part in parts)
    unit = "" if worst.noise is None else " dB"
    description = (
        f"Noise in the output by part, for {len(parts)} parts quantized alone, the noisiest first: {worst.name}, "
        f"{formats.decibels(worst.noise)}{unit}. {kept} of them have another form. The table holds the same numbers."
    )
    return Picture(noise_spec(parts), description)


def draw_frontier(result: Result) -> Picture | None:
    """Draw what the forms of a search cost against their noise; None unless it had several to choose from."""
    recovery = result.recovery
    if recovery is None or sum(point.noise > 0 for point in recovery.frontier) < 2:
        return None
    return Picture(frontier_spec(recovery), describe_frontier(recovery))


def draw_latencies(chosen: Trial | None) -> Picture | None:
    """Draw the latency distributions of the chosen candidate and the baseline, confirmed ones if available."""
    latency = chosen.final_latency if chosen else None
    if chosen is None or latency is None or not latency.samples_path.exists():
        return None
    with np.load(latency.samples_path) as samples:
        ours, base = (np.asarray(samples[side], dtype=np.float64) for side in ("variant", "baseline"))
    curves = [
        Curve(
            "baseline",
            "baseline",
            ecdf(base),
            _tell_percentiles("baseline", latency.baseline_p50_ms, latency.baseline_p95_ms, latency.baseline_p99_ms),
        ),
        Curve(
            chosen.candidate.rpartition("@")[0],
            "chosen",
            ecdf(ours),
            _tell_percentiles(chosen.candidate, latency.p50_ms, latency.p95_ms, latency.p99_ms),
        ),
    ]
    if not all(curve.points for curve in curves):
        return None
    description = f"Distribution of latency, {len(ours):,} requests each. {curves[0].told}. {curves[1].told}."
    return Picture(ecdf_spec(curves), description)


def draw_batches(result: Result) -> Picture | None:
    """Draw the speedup of each candidate at each operating point; None for a job with one point."""
    several = [one for one in result.candidates if len(one.latencies) > 1 and one.outcome != "refused"]
    if not several:
        return None
    labels = point_labels(several[0].latencies)
    curves = [
        speed_curve(
            candidate.name.rpartition("@")[0],
            "chosen" if candidate.name == result.chosen else candidate.outcome,
            candidate.latencies,
        )
        for candidate in several
        if len(candidate.latencies) == len(labels)
    ]
    base = Curve("baseline", "baseline", tuple((float(index), 1.0) for index in range(len(labels))), "baseline: 1.00x")
    told = "; ".join(curve.told for curve in curves)
    return Picture(batch_spec([base, *curves], labels), f"Speedup at {len(labels)} operating points. {told}.")


def draw_slices(result: Result, gates: Gates) -> Picture | None:
    """Draw the drop of the chosen candidate in each group; None without slices or without a chosen candidate."""
    chosen = result.winner
    spec = slices_spec(chosen.slices, gates.max_slice_drop, metric_of(result)) if chosen else None
    if chosen is None or spec is None:
        return None
    worst = chosen.slices[0]
    description = (
        f"Drop of {metric_of(result)} of {chosen.name} in {len(chosen.slices)} groups, the one that may have lost most "
        f"first: {worst.column} {worst.group}."
    )
    return Picture(spec, description)


def draw_paces(result: Result) -> Picture | None:
    """Draw tokens a second against perplexity, for the first length of the prompt; None without two such points."""
    shown = [one for one in _drawn(result) if one.generations and one.metric is not None]
    if len(shown) < 2 or metric_of(result) != "perplexity":
        return None
    names = short_names([one.name for one in shown])
    points = [
        PacePoint(
            name,
            _kind(one),
            pace,
            one.metric or 0.0,
            f"{one.name}: {pace:.3g} tokens a second, perplexity {one.metric:.4g}",
        )
        for name, one in zip(names, shown, strict=True)
        for pace in (one.generations[0].tokens_per_s[0],)
    ]
    told = "; ".join(point.told for point in points)
    return Picture(pace_spec(points), f"Tokens a second against perplexity. {told}. The table holds the same numbers.")


def draw_first_tokens(result: Result) -> Picture | None:
    """Draw the time to the first token by length of the prompt; None unless there are several lengths."""
    curves = []
    shown = [one for one in _drawn(result) if one.generations]
    for name, one in zip(short_names([one.name for one in shown]), shown, strict=True):
        points = {float(found.prompt): found.first_ms[0] for found in reversed(one.generations) if found.prompt}
        told = ", ".join(f"{ms:.3g} ms after {prompt:.0f}" for prompt, ms in sorted(points.items()))
        curves.append(Curve(name, _kind(one), tuple(sorted(points.items())), f"{one.name}: {told}"))
    if not curves or min(len(curve.points) for curve in curves) < 2:
        return None
    told = "; ".join(curve.told for curve in curves)
    return Picture(first_token_spec(curves), f"Time to the first token by tokens of the prompt. {told}.")


def draw_memory(result: Result) -> Picture | None:
    """Draw the memory of weights and cache by length of the cache; None for models without one.

    Candidates whose bytes are the same share a line.
    """
    lengths, shown = cache_lengths(result), [one for one in _drawn(result) if one.decoder]
    # The chosen candidate names the line that it shares.
    shown.sort(key=lambda one: not one.is_chosen)
    same = {one.decoder: [other for other in shown if other.decoder == one.decoder] for one in shown}
    curves = []
    for decoder, group in same.items():
        assert decoder
        name = short_names([one.name for one in shown])[shown.index(group[0])]
        points = tuple((float(length), decoder.memory(length) / 1e6) for length in (0, *lengths))
        told = ", ".join(f"{formats.megabytes(decoder.memory(length))} MB at {length}" for length in lengths)
        names = ", ".join(one.name for one in group)
        more = f" +{len(group) - 1}" if len(group) > 1 else ""
        curves.append(Curve(f"{name}{more}", _kind(group[0]), points, f"{names}: {told}"))
    if not curves:
        return None
    told = "; ".join(curve.told for curve in curves)
    return Picture(
        memory_spec(curves, lengths), f"Memory by tokens in the cache. {told}. The table holds the same numbers."
    )


def _drawn(result: Result) -> list[Answerer]:
    return [one for one in answerers(result) if _kind(one) in STYLES]


def _kind(one: Answerer) -> str:
    return "chosen" if one.is_chosen else one.outcome


def draw_coverage(name: str, coverage: Coverage) -> Picture | None:
    """Draw the coverage node by node; None if no node multiplies."""
    spec = coverage_spec(coverage)
    if spec is None:
        return None
    description = (
        f"{name}: {formats.percent(coverage.share)} % of the multiply-accumulates of {len(coverage.products)} nodes ran in "
        f"low precision; {len(coverage.float_nodes)} nodes ran in float."
    )
    return Picture(spec, description)


def draw_differences(candidate: str, sqnr_db: NDArray[np.float64]) -> Picture | None:
    """Draw how many samples moved how far, shape `(samples,)` in dB; None if none has a finite ratio."""
    finite = sqnr_db[np.isfinite(sqnr_db)]
    if not len(finite):
        return None
    equal = int(np.isposinf(sqnr_db).sum())
    told = f"; {equal:,} more are equal to the source's" if equal else ""
    description = (
        f"{candidate}: ratio of signal to noise of the output of {len(finite):,} samples, from {finite.min():.1f} to "
        f"{finite.max():.1f} dB, median {np.median(finite):.1f} dB{told}."
    )
    return Picture(histogram_spec(finite.tolist()), description)


def measured_points(result: Result) -> list[Point]:
    """Return the candidates with a finite drop and a positive speedup, in the order of the result; never a refused one."""
    points = []
    for candidate in result.candidates:
        if candidate.outcome == "refused":  # one that was stopped may have been measured before
            continue
        drop, ratio = candidate.metric_drop, candidate.speedup_p50
        if drop is None or ratio is None or not math.isfinite(drop.value + ratio.value) or ratio.value <= 0:
            continue
        kind = "chosen" if candidate.name == result.chosen else candidate.outcome
        points.append(Point(candidate.name, kind, ratio, in_axis_units(drop, metric_of(result))))
    return points


def describe(result: Result, count: int) -> str:
    """Describe the Pareto picture for accessibility: the number of candidates, and the chosen one's speedup and drop."""
    metric = metric_of(result)
    text = f"Speedup against drop of {metric} for {count} measured candidates and the baseline."
    for candidate in result.candidates:
        if candidate.name == result.chosen and candidate.speedup_p50 and candidate.metric_drop:
            ratio = formats.speedup(candidate.speedup_p50.value)
            text += f" Chosen: {candidate.name}, {ratio}, {formats.metric_drop(candidate.metric_drop.value, metric)}."
    return text + " The verdict table holds the same numbers."


def _tell_percentiles(name: str, *percentiles: float | None) -> str:
    """Return percentiles as text, without those that the sample count cannot support."""
    told = (
        f"{word} {formats.milliseconds(value)} ms"
        for word, value in zip(("p50", "p95", "p99"), percentiles, strict=True)
        if value is not None
    )
    return f"{name}: {', '.join(told)}"

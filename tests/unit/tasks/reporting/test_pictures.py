"""The pictures: what they name, where labels come to lie, and that each shows the figures of the result."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import (
    BARE,
    CHOSEN,
    JOB,
    MEASURED,
    NO_VARIANT,
    RANKED,
    RECOVERED,
    RECOVERY,
    REFUSED,
    RESULT,
    TRIALS,
    with_samples,
)

from tasks.reporting.pictures import bars, latency_pictures, palette, pareto
from tasks.reporting.pictures import run_pictures as pictures
from tasks.reporting.pictures.coverage_map import coverage_spec
from tasks.reporting.pictures.frontier_picture import frontier_spec
from tasks.reporting.pictures.labels import Box
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import Scale
from tasks.reporting.pictures.vega import FONT_PIXELS, text_width
from validators.records.measurements import UNNAMED, Coverage, Estimate, MultipliedNode
from validators.records.run import RefusalResult
from validators.records.verdicts import FrontierPoint, RankedPart, Recovery

LINES = pareto.Lines(0.02, 1.05)


def texts(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def svg_of(picture: pictures.Picture | None) -> str:
    assert picture is not None
    return picture.svg


def told(svg: str) -> list[str]:
    """What marks say to who points at them."""
    return re.findall(r'aria-label="([^"]*)"[^>]* role="graphics-symbol"', svg) or re.findall(
        r'role="graphics-symbol"[^>]*aria-label="([^"]*)"', svg
    )


def values(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    """What the layers of a kind of mark draw."""
    return [
        value | {"look": layer["mark"]}
        for layer in spec["layer"]
        if layer["mark"]["type"] == mark
        for value in layer.get("data", spec.get("data"))["values"]
    ]


def test_the_picture_names_every_measured_candidate_and_no_other() -> None:
    """Its colours change with the reader's scheme, and equal results give equal bytes."""
    svg = svg_of(pictures.draw_pareto(RESULT, JOB.gates))
    assert svg_of(pictures.draw_pareto(RESULT, JOB.gates)) == svg
    measured = {stem for stem, figures in MEASURED.items() if figures and figures[1]}
    assert measured | {"baseline"} <= set(texts(svg))
    assert not {"int8-static-entropy-pc", "fp8-amax-pc"} & set(texts(svg))
    assert "gate: drop at most +2.00 pp" in texts(svg) and "gate: at least 1.05x" in texts(svg)
    assert f"Chosen: {CHOSEN}, 1.51x, +0.70 pp." in svg.split(">", 1)[0]
    assert f"{CHOSEN} (chosen): 1.51x, 1.48x to 1.54x; drop +0.70 pp, +0.10 pp to +1.40 pp" in told(svg)
    assert set(palette.LIGHT) == set(palette.DARK)


def all_pictures(folder: Path) -> dict[str, str]:
    drawn = pictures.draw_pictures(RECOVERED, JOB.gates, with_samples(TRIALS, folder))
    return {name: picture.svg for name, picture in (drawn.of_run(None) | dict(drawn.coverage)).items()}


def test_every_picture_can_turn_dark_and_needs_no_other_file(tmp_path: Path) -> None:
    """Each colour is a variable of the page, and no address but the name of the format is in it."""
    drawn = all_pictures(tmp_path)
    assert len(drawn) == 5 + 13 and all(drawn.values())
    for name, svg in drawn.items():
        used = set(re.findall(r"var\(--([a-z-]+), ", svg))
        assert used and used <= set(palette.LIGHT), name
        assert not re.findall(r"(?<!, )#[0-9a-f]{3,6}\b", svg), f"{name}: a colour that dark cannot change"
        assert not re.findall(r'(?:fill|stroke)="(?!none|var|transparent)[^"]*"', svg), name
        assert set(re.findall(r"https?://[^\"]*", svg)) == {"http://www.w3.org/2000/svg"}
        assert 'role="img" aria-label="' in svg.split(">", 1)[0]


def label_boxes(spec: dict[str, Any]) -> dict[str, Box]:
    """Where the texts of a picture come to lie, by the widths that it reckons with."""
    boxes = {}
    for value in values(spec, "text"):
        text = value.get("text") or value["look"]["text"]
        width, align = text_width(text), value["look"]["align"]
        left = value["x"] - {"left": 0.0, "center": width / 2, "right": width}[align]
        top = value["y"] - (0 if value["look"]["baseline"] == "top" else FONT_PIXELS / 2)
        boxes[text] = Box(left, top, left + width, top + FONT_PIXELS)
    return boxes


def test_labels_of_a_typical_run_do_not_overlap_or_leave_frame() -> None:
    spec = pareto.pareto_spec(pictures.measured_points(RESULT), LINES, "accuracy")
    boxes = list(label_boxes(spec).values())
    assert len(boxes) == 2 + 11 + 1  # gates, measured candidates, baseline
    for index, box in enumerate(boxes):
        assert box.overlap(Box(0, 0, spec["width"], spec["height"])) == pytest.approx(box.area)
        assert all(box.overlap(other) == 0 for other in boxes[:index])


def test_a_candidate_that_another_beats_in_both_is_pale() -> None:
    """It passes, but a faster one that loses less passes too; the baseline and those on the front are strong."""
    points = [
        pareto.Point("best", "passed", Estimate(2.0), Estimate(0.5)),
        pareto.Point("beaten", "passed", Estimate(1.5), Estimate(0.7)),
        pareto.Point("fastest", "passed", Estimate(2.5), Estimate(0.9)),
    ]
    markers = values(pareto.pareto_spec(points, LINES, "accuracy"), "point")
    opacity = {value["told"].split(" ")[0]: value["look"]["opacity"] for value in markers}
    assert opacity == {"best": 1.0, "beaten": 0.5, "fastest": 1.0, "baseline:": 1.0}


def test_bars_and_gates_stand_where_their_figures_are() -> None:
    """The picture is the table: ends of bars are the bounds, lines the gates."""
    points = [pareto.Point("a", "passed", Estimate(1.5, 1.4, 1.6), Estimate(1.0, 0.2, 1.8))]
    rules = values(pareto.pareto_spec(points, LINES, "accuracy"), "rule")
    drawn = {(rule["x"], rule["x2"], rule["y"], rule["y2"]) for rule in rules}
    assert {(1.4, 1.6, 1.0, 1.0), (1.5, 1.5, 0.2, 1.8)} <= drawn
    (tint,) = values(pareto.pareto_spec(points, LINES, "accuracy"), "rect")
    assert (tint["x"], tint["y"]) == (1.05, 2.0)


def test_a_picture_is_a_file_as_well() -> None:
    picture = pictures.draw_pareto(RESULT, JOB.gates)
    assert picture is not None and picture.png.startswith(b"\x89PNG")


def test_a_run_without_measured_candidates_has_no_picture() -> None:
    assert pictures.draw_pareto(REFUSED, JOB.gates) is None
    nothing = pictures.draw_pictures(BARE, JOB.gates)
    assert nothing == pictures.Pictures()


def test_a_point_outside_its_bars_is_still_in_the_frame() -> None:
    odd = pareto.Point("x$y$z", "failed", Estimate(0.01, 0.0, 0.02), Estimate(50.0, float("-inf"), float("nan")))
    spec = pareto.pareto_spec([odd], LINES, "accuracy")
    encoding = spec["layer"][0]["encoding"]
    assert encoding["x"]["scale"]["domain"][0] < 0.01 and encoding["y"]["scale"]["domain"][1] > 50.0
    assert "x$y$z" in label_boxes(spec)


def test_a_scale_knows_where_the_library_draws() -> None:
    """The corner of a rectangle at a value, as drawn, against the pixel that the scale reckons."""
    from tasks.reporting.pictures.vega import picture, to_svg

    for scale in (
        Scale("linear", -1, 4, 500),
        Scale("log", 0.2, 3, 500),
        Scale("symlog", -1, 30, 500, constant=3),
    ):
        mark = {"type": "point", "shape": "circle"}
        shared = {"type": "quantitative", "axis": None}
        encoding = {"x": shared | {"field": "x", "scale": scale.spec}, "y": shared | {"field": "y", "scale": None}}
        layer = {"data": {"values": [{"x": 2.0, "y": 50}]}, "mark": mark, "encoding": encoding}
        svg = to_svg(picture([layer], height=100, width=500), "")
        (place,) = re.findall(r'<path[^>]* transform="translate\(([\d.]+),', svg)
        assert float(place) == pytest.approx(scale.pixel(2.0), abs=0.01)


def test_words_of_an_axis_may_hold_quotes() -> None:
    """Names of axes and candidates are text of others, which must not end the expression that labels the ticks."""
    from tasks.reporting.pictures.vega import picture, to_svg

    scale = Scale("linear", 0, 2, 300)
    axis = scale.encoding("", {1.0: 'it\'s "b" \\ c'})["axis"]
    encoding = {
        "x": {"type": "quantitative", "field": "x", "scale": scale.spec, "axis": axis},
        "y": {"type": "quantitative", "field": "y", "scale": None, "axis": None},
    }
    layer = {"data": {"values": [{"x": 1.0, "y": 50}]}, "mark": {"type": "point"}, "encoding": encoding}
    assert 'it\'s "b" \\ c' in texts(to_svg(picture([layer], height=100, width=300), ""))


def test_noise_picture_orders_the_worst_and_shows_what_was_kept() -> None:
    svg = svg_of(pictures.draw_noise(RECOVERED))
    names = [text for text in texts(svg) if re.match(r"\d+\. ", text)]
    assert len(names) == 20 and names[0] == "1. classifier" and names[1].endswith("query/MatMul +2")
    assert max(map(len, names)) <= len("20. ") + bars.LABEL_LENGTH
    assert {"not finite", "+2.8", "-20.0"} <= set(texts(svg))
    assert "20 parts" in svg.split(">", 1)[0] and "classifier, not finite. 3 of" in svg.split(">", 1)[0]
    drawn = values(bars.noise_spec(RANKED[:20]), "bar")
    assert [bar["colour"] == palette.LIGHT["accent"] for bar in drawn] == [True] * 3 + [False] * 17
    ends = [bar["end"] for bar in drawn]
    assert ends == sorted(ends, reverse=True) and ends[1:] == pytest.approx([part.noise for part in RANKED[1:20]])
    assert pictures.draw_noise(RESULT) is None
    silent = replace(RECOVERY, parts=(replace(RANKED[0], noise=0.0),))
    assert pictures.draw_noise(RESULT.model_copy(update={"recovery": silent})) is None


def test_the_frontier_stands_where_its_figures_are() -> None:
    """Costs in the unit, noise in decibels; a mark for what was tried, in the colour of its outcome, and for the candidate."""
    parts = (RankedPart("a", ("a",), 0.08, None, None), RankedPart("b", ("b",), 0.02, None, None))
    points = (FrontierPoint(20, 0.01, 2e6, "x-20db", "failed"), FrontierPoint(30, 0.001, 3.5e6, "x-30db", "passed"))
    recovery = Recovery(
        "x", parts, 2, 6, "x-30db", frontier=(*points, FrontierPoint(40, 0.0001, 9e6)), cost_unit="bytes"
    )
    spec = frontier_spec(recovery)
    assert [(one["cost"], one["decibels"]) for one in spec["data"]["values"]] == [(2, -20), (3.5, -30), (9, -40)]
    marks = spec["layer"][1]["data"]["values"]
    assert [(one["cost"], one["decibels"], one["level"]) for one in marks] == [
        (0, pytest.approx(-10), "its own forms"),
        (2, -20, "-20db"),
        (3.5, -30, "-30db"),
    ]
    assert [one["colour"] for one in marks] == [LIGHT["failed"], LIGHT["failed"], LIGHT["passed"]]
    endless = (*parts, RankedPart("c", ("c",), None, None, None))
    assert len(frontier_spec(replace(recovery, parts=endless))["layer"][1]["data"]["values"]) == 2


def test_the_distribution_of_latency_is_that_of_the_samples(tmp_path: Path) -> None:
    """At each drawn time the share of samples that are no longer; the last half percent is left out."""
    samples = np.random.default_rng(3).lognormal(size=1000)
    for time, share in latency_pictures.ecdf(samples):
        assert np.mean(samples <= time) == pytest.approx(share)
    assert len(latency_pictures.ecdf(samples)) <= latency_pictures.STEPS
    assert latency_pictures.ecdf(samples)[-1][1] == pytest.approx(0.995)
    svg = svg_of(pictures.draw_latencies(next(t for t in with_samples(TRIALS, tmp_path) if t.candidate == CHOSEN)))
    assert {"baseline", CHOSEN.partition("@")[0]} <= set(texts(svg))
    assert "1,000 requests each. baseline: p50 1.95 ms, p95 2.14 ms, p99 2.50 ms" in svg.split(">", 1)[0]
    assert pictures.draw_latencies(next(t for t in TRIALS if t.candidate == CHOSEN)) is None, "its samples are gone"
    assert pictures.draw_latencies(None) is None


@pytest.mark.parametrize("first_ms", [1.0, 1.9])
def test_the_names_of_distributions_lie_inside_of_the_frame(first_ms: float) -> None:
    """A fast curve that starts at the left edge leaves no room before it."""
    curves = [
        latency_pictures.Curve(name, kind, latency_pictures.ecdf(np.linspace(start, start * 1.1, 500)))
        for name, kind, start in (("int8-dynamic-pc@ort-cpu", "chosen", first_ms), ("baseline", "baseline", 2.0))
    ]
    layers = latency_pictures.ecdf_spec(curves)["layer"]
    names = [layer for layer in layers if layer["mark"]["type"] == "text"]
    assert len(names) == 2
    for layer in names:
        (at,), mark = layer["data"]["values"], layer["mark"]
        left = at["x"] - (text_width(mark["text"]) if mark["align"] == "right" else 0)
        assert left >= 0 and left + text_width(mark["text"]) <= latency_pictures.WIDTH


def test_each_operating_point_has_the_speedup_that_was_measured() -> None:
    svg = svg_of(pictures.draw_batches(RESULT))
    assert {"b1", "b8", "baseline", CHOSEN.partition("@")[0]} <= set(texts(svg))
    assert any(line.startswith("int8-dynamic-pc: b1 1.51x, b8 ") for line in told(svg))
    one = [c.model_copy(update={"latencies": c.latencies[:1]}) for c in RESULT.candidates]
    assert pictures.draw_batches(RESULT.model_copy(update={"candidates": one})) is None


def test_groups_are_drawn_with_their_bounds_and_the_gate() -> None:
    """One whose drop is not known has no mark; the line is the gate on slices, not the one on the whole."""
    svg = svg_of(pictures.draw_slices(RESULT, JOB.gates))
    assert {"language de (120)", "language en (1,500)"} <= set(texts(svg))
    assert "fr" not in svg
    assert "language de, 120 samples: +3.00 pp, +1.00 pp to +6.00 pp" in told(svg)
    without = JOB.gates.model_copy(update={"max_slice_drop": None})
    assert svg_of(pictures.draw_slices(RESULT, without)).count("<line") < svg.count("<line")
    assert pictures.draw_slices(NO_VARIANT, JOB.gates) is None


PRODUCTS = (
    MultipliedNode("/a/MatMul", "QGemm", 600),
    MultipliedNode("/b/MatMul", "MatMul", 390),
    MultipliedNode("/head", UNNAMED, 10),
)


def test_coverage_map_is_as_wide_as_work_and_marks_float_parts() -> None:
    coverage = Coverage({"QGemm": 600, "MatMul": 390, UNNAMED: 10}, ("QGemm",), ("/b/MatMul",), (), products=PRODUCTS)
    spec = coverage_spec(coverage)
    assert spec is not None
    cells = values(spec, "rect")
    assert [round((cell["right"] - cell["left"]) / spec["width"], 3) for cell in cells] == [0.6, 0.39, 0.01]
    assert [cell["kind"] for cell in cells] == ["low", "float", "unknown"]
    assert [mark["told"] for mark in values(spec, "point")] == ["/b/MatMul: MatMul, 39 % of multiply-accumulates"]
    assert coverage_spec(replace(coverage, products=())) is None


def test_the_time_of_kernels_stands_below_where_it_is_known() -> None:
    times = {"Softmax": 100.0, "QGemm": 300.0}
    coverage = Coverage({"QGemm": 1000}, ("QGemm",), (), (), us_by_kernel=times, products=PRODUCTS[:1])
    spec = coverage_spec(coverage)
    assert spec is not None
    below = [cell for cell in values(spec, "rect") if cell["top"] > 50]
    assert [(cell["told"], cell["kind"]) for cell in below] == [
        ("QGemm: low precision, 75 % of kernel time", "low"),
        ("Softmax: in float, 25 % of kernel time", "float"),
    ]


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_text_has_a_contrast_of_at_least_four_and_a_half(colours: dict[str, str]) -> None:
    grounds = ["ground", "surface", *(name for name in colours if name.endswith("-ground"))]
    pairs = [(ink, ground) for ink in ("ink", "muted") for ground in grounds] + [("accent", "ground")]
    pairs += [
        (kind, ground) for kind in ("passed", "failed", "inconclusive") for ground in ("ground", f"{kind}-ground")
    ]
    for text, ground in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_candidate_stopped_after_measurement_is_not_drawn() -> None:
    """It has figures, and no mark: a faster one ended it in their race."""
    measured = pictures.measured_points(RESULT)
    last = next(one for one in RESULT.candidates if one.name == measured[-1].name and one.name != RESULT.chosen)
    refusal = RefusalResult(kind="stopped", reason="another is 1.46x as fast in turn with it")
    stopped = last.model_copy(update={"outcome": "refused", "refusal": refusal})
    others = [stopped if one is last else one for one in RESULT.candidates]
    result = RESULT.model_copy(update={"candidates": others})
    assert [point.name for point in pictures.measured_points(result)] == [point.name for point in measured[:-1]]
    svg_of(pictures.draw_pareto(result, JOB.gates))

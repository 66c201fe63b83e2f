"""The spread over calibration draws: by hand, by simulation, and as a verdict."""

from __future__ import annotations

import math
from typing import Any

import draw_errors
import numpy as np
import pytest
from figures import earlier
from test_judge import make_job

from validators.gates.catalog import required_gates
from validators.gates.draws import draws_to_settle, estimate_spread, judge_draw_spread
from validators.job.candidate_name import decode
from validators.records.measurements import Draws, Estimate

STATIC, DYNAMIC, RTN = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"
SETTINGS: dict[str, Any] = {"calibration": {"draws": 5}, "gates": {"max_draw_spread": 0.01}}


def judged(spread: Estimate, noise: float = 0.0, draws: int = 5) -> Any:
    gates = make_job(**SETTINGS).gates
    return judge_draw_spread(Draws(0.0, (0.0,) * draws, spread, noise, 0.95, 128), gates)


def test_a_spread_is_what_is_left_without_the_noise() -> None:
    """Means 1, 2, 3 have a variance of 1; residuals of 0.5, with 2 degrees of freedom, add 6 * 0.25 / 2 / 2 to it."""
    table = np.array([[0.5, 1.5], [2.5, 1.5], [2.5, 3.5]])
    table = table - table.mean(axis=0) + 2
    residuals = table - table.mean(axis=1, keepdims=True)
    within = float((residuals**2).sum()) / 2
    spread, noise = estimate_spread(table, 0.95)
    assert noise == pytest.approx(math.sqrt(within / 2))
    assert spread.value == pytest.approx(math.sqrt(np.var(table.mean(axis=1), ddof=1) - within / 2))
    # F(2, 2) has the distribution function f / (1 + f): quantiles of 19 and 1 / 19.
    total = float(np.var(table.mean(axis=1), ddof=1))
    assert spread.low == pytest.approx(math.sqrt(max(0.0, total / 19 - noise**2)))
    assert spread.high == pytest.approx(math.sqrt(19 * total - noise**2))


def test_one_group_of_samples_gives_no_bounds() -> None:
    spread, _ = estimate_spread(np.array([[1.0], [2.0], [3.0]]), 0.95)
    assert (spread.value, spread.low, spread.high) == (1.0, None, None)
    assert judged(spread).outcome == "inconclusive"


def test_a_verdict_names_the_draws_that_would_settle_it() -> None:
    assert judged(Estimate(0.001, 0.0005, 0.003)).outcome == "pass"
    failed = judged(Estimate(0.05, 0.03, 0.1))
    assert (failed.outcome, failed.n) == ("fail", 5)
    doubtful = judged(Estimate(0.006, 0.0, 0.014))
    assert (doubtful.outcome, doubtful.samples_needed) == ("inconclusive", draws_to_settle(0.006, 0.0, 0.01, 0.95))
    assert "raise `calibration.draws`" in doubtful.reason
    assert judged(Estimate(math.nan, math.nan, math.nan)).outcome == "fail"


@pytest.mark.parametrize("spread", [0.004, 0.016])
def test_as_many_draws_as_are_advised_settle_it(spread: float) -> None:
    """A table whose means spread like this, with as many draws, has its bound on the right side; with one less it has not."""
    count = draws_to_settle(spread, 0.0, 0.01, 0.95)
    assert count is not None and count > 3
    for draws, settled in ((count, True), (count - 1, False)):
        shifts = np.linspace(-1, 1, draws)
        shifts *= spread / shifts.std(ddof=1)
        found, _ = estimate_spread(np.repeat(shifts[:, None], 400, axis=1), 0.95)
        assert (judged(found, draws=draws).outcome != "inconclusive") is settled


def test_only_calibrated_candidates_need_the_gate() -> None:
    job = make_job(**SETTINGS)
    assert "draw_spread" in required_gates(job, STATIC)
    assert not {name for name in (DYNAMIC, RTN) if "draw_spread" in required_gates(job, name)}
    assert "draw_spread" not in required_gates(make_job(), STATIC)
    script = {"name": "ours", "make": "scripts:make", "engine": "ort-cpu"}
    file = {"name": "theirs", "file": "their.onnx", "engine": "ort-cpu"}
    job = make_job(**SETTINGS, given=[script, file])
    assert "draw_spread" in required_gates(job, "int8-given-ours@ort-cpu")
    assert "draw_spread" not in required_gates(job, "int8-given-theirs@ort-cpu")


@pytest.mark.parametrize("recipe", ["int8-static-mse-pc", "int8-dynamic-pc-smooth", "int4-g32-awq", "fp8-amax-pc"])
def test_recipes_that_read_samples_are_calibrated(recipe: str) -> None:
    assert decode(f"{recipe}@ort-cpu").is_calibrated


@pytest.mark.parametrize("recipe", ["fp32-fused", "fp16", "int4-g32-hqq", "int8-g32-rtn"])
def test_recipes_that_read_no_samples_are_not(recipe: str) -> None:
    assert not decode(f"{recipe}@ort-cpu").is_calibrated


@pytest.mark.parametrize("metric", draw_errors.METRICS)
def test_a_short_simulation_agrees_with_the_long_one(metric: str) -> None:
    """100 clean repeats raise at most 5 alarms; variants at the bound rarely pass; draws that break a variant are caught."""
    clean = draw_errors.outcomes(metric, 2000, 5, 0.0, 100, seed=1)
    assert clean["fail"]["count"] <= 5
    assert clean["pass"]["count"] >= 60
    assert draw_errors.outcomes(metric, 2000, 5, draw_errors.BOUND, 100, seed=2)["pass"]["count"] <= 7
    assert draw_errors.outcomes(metric, 2000, 10, None, 50, seed=3)["pass"]["count"] <= 3


def test_the_long_simulation_holds_the_error_rates() -> None:
    found = earlier("draw_errors")
    for row in found["rows"]:
        if row["spread"] == found["bound"]:
            assert row["pass"]["share"] <= 0.05
        if row["spread"] is not None and row["spread"] <= found["bound"]:
            assert row["fail"]["share"] <= 0.05

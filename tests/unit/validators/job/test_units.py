"""Bounds of metrics with units: no default, and a suggestion that no destroyed model passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_judge import make_job

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.texts import make_decoder
from validators.errors import JobError
from validators.gates.accuracy import judge_drop
from validators.job.job_data import TextDecoding
from validators.job.job_gates import Gates
from validators.job.units import check_bounds_have_units, suggest_max_drop


def unbounded(metric: str, **changes: Any) -> Any:
    return make_job(metric=metric, gates={"min_speedup": None}, **changes)


@pytest.mark.parametrize("metric", ["mse", "rmse", "mae"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_no_default_bound_lets_a_destroyed_regressor_pass(metric: Any, scale: float) -> None:
    """Shuffled answers fail the suggested bound at every scale; noise of a hundredth of the labels' spread passes it."""
    rng = np.random.default_rng(1)
    labels = rng.normal(size=1000) * scale
    with pytest.raises(JobError, match="has units") as caught:
        check_bounds_have_units(unbounded(metric), labels)
    bound = suggest_max_drop(metric, labels)
    assert f"{bound:g}" in caught.value.fix
    good = labels + rng.normal(size=1000) * 0.2 * scale
    answers = {"fail": rng.permutation(good), "pass": good + rng.normal(size=1000) * 0.01 * scale}
    chosen = named_metric(metric, Options(0.0, make_decoder(TextDecoding())))
    for outcome, variant in answers.items():
        rows = [chosen.rows(outputs[:, None], labels, None) for outputs in (good, variant)]
        drop, method = estimate_drop(chosen, *rows, 0.95, seed=1)
        assert judge_drop(drop, Gates(max_drop=bound), n=1000, method=method).outcome == outcome


def test_an_explicit_bound_and_metrics_without_units_are_let_be() -> None:
    """Also of zero; a job that went through JSON still has what it was given."""
    for metric in ("accuracy", "r2", "perplexity", "wer"):
        check_bounds_have_units(unbounded(metric), None)
    for bound in (0.0, 0.02):
        job = make_job(metric="mse", gates={"max_drop": bound})
        check_bounds_have_units(job, None)
        check_bounds_have_units(type(job).model_validate_json(job.model_dump_json()), None)
    with pytest.raises(JobError, match="max_drop"):
        check_bounds_have_units(type(job).model_validate_json(unbounded("mse").model_dump_json()), np.arange(9.0))


def test_a_function_of_the_user_needs_a_bound() -> None:
    """Its units are unknown."""
    with pytest.raises(JobError, match="'mine:cost' has units") as caught:
        check_bounds_have_units(unbounded("mine:cost", metric_direction="lower"), np.arange(9.0))
    assert "2 % of the metric's value" in caught.value.fix


def test_slices_of_a_metric_with_units_need_a_bound() -> None:
    """Null says that there is none."""
    data = {"calibration": "c.npz", "evaluation": "e.npz", "slices": ["place"]}
    with pytest.raises(JobError, match="max_slice_drop"):
        check_bounds_have_units(make_job(metric="mse", gates={"max_drop": 0.1}, data=data), np.arange(9.0))
    gates = {"max_drop": 0.1, "max_slice_drop": None}
    check_bounds_have_units(make_job(metric="mse", gates=gates, data=data), np.arange(9.0))

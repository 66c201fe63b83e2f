"""Values without each group of rows: those of the metric on the rows that are left."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_boxes import random_case

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.metric import Metric, Rows
from tasks.measure.metrics.texts import make_decoder
from validators.gates.intervals import paired_interval
from validators.job.job_data import TextDecoding
from validators.records.measurements import Estimate

OPTIONS = Options(0.0, make_decoder(TextDecoding()), scores="logits")
EQUAL = 1e-12


def metric_of(name: str) -> Metric:
    return named_metric(name, OPTIONS)


def classes(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of one decimal, so that there are ties, and labels; some classes are rare."""
    labels = np.minimum(rng.integers(0, 2 if shape in ((), (2,)) else shape[0], n), rng.integers(0, 9, n))
    return rng.normal(size=(n, *shape)).round(1), labels


def one_by_one(metric: Metric, rows: Rows, group_of_row: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
    return np.array([metric.value(rows[group_of_row != group]) for group in range(groups)])


@pytest.mark.parametrize("name", ["auroc", "pr_auc"])
@pytest.mark.parametrize("shape", [(), (2,), (4,)])
def test_areas_without_a_group_are_those_of_the_rest(name: str, shape: tuple[int, ...]) -> None:
    """Groups of one row and of several, with a remainder; NaN where only one kind is left."""
    metric = metric_of(name)
    assert metric.without is not None
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, groups = int(rng.integers(3, 60)), int(rng.integers(1, 12))
        rows = metric.rows(*classes(rng, n, shape), None)
        if np.isnan(metric.value(rows)):
            continue
        group_of_row = rng.integers(0, groups + 1, n)
        with np.errstate(all="ignore"):
            found = metric.without(rows, group_of_row, groups)
            expected = one_by_one(metric, rows, group_of_row, groups)
        np.testing.assert_allclose(found, expected, atol=EQUAL, err_msg=str(seed))


@pytest.mark.parametrize("name", ["iou", "wer", "ndcg"])
def test_ratios_without_a_group_are_those_of_the_rest(name: str) -> None:
    """Columns that a group has alone do not count without it; groups without rows change nothing."""
    metric = metric_of(name)
    assert metric.without is not None
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, groups, k = int(rng.integers(1, 30)), int(rng.integers(1, 9)), 1 if name == "wer" else 3
        below = rng.integers(0, 4, (n, k)) * (rng.random((n, k)) < 0.4)
        rows = np.hstack([rng.random((n, k)) * below if name == "ndcg" else below // 2, below]).astype(np.float64)
        group_of_row = rng.integers(0, groups + 1, n)
        found = metric.without(rows, group_of_row, groups)
        expected = one_by_one(metric, rows, group_of_row, groups)
        np.testing.assert_allclose(found, expected, atol=EQUAL, err_msg=str(seed))


@pytest.mark.parametrize("name", ["map", "map50"])
def test_mean_average_precision_without_group_is_that_of_rest(name: str) -> None:
    """Classes, true boxes and matches that a group has alone; equal scores; samples without boxes."""
    metric = metric_of(name)
    assert metric.without is not None
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, groups = int(rng.integers(2, 30)), int(rng.integers(1, 9))
        rows = metric.rows(*random_case(rng, n, 4, 7), None)
        group_of_row = rng.integers(0, groups + 1, n)
        expected = one_by_one(metric, rows, group_of_row, groups)
        with np.errstate(all="ignore"):
            found = metric.without(rows, group_of_row, groups)
        np.testing.assert_allclose(found, expected, atol=EQUAL, err_msg=str(seed))


@pytest.mark.parametrize("name", ["auroc", "pr_auc"])
@pytest.mark.parametrize("clustered", [False, True])
def test_the_interval_is_that_of_single_groups(name: str, clustered: bool) -> None:
    """The same bounds and the same words, of 40, 250 and 777 samples; 20 clusters are too few for the rarest class."""
    metric = metric_of(name)
    for n in (40, 250, 777):
        rng = np.random.default_rng(n)
        scores, labels = classes(rng, n, (4,))
        before = metric.rows(scores + np.eye(4)[labels], labels, None)
        after = metric.rows(scores + np.eye(4)[labels] + rng.normal(size=scores.shape), labels, None)
        clusters = rng.permutation(np.arange(n) // 2) if clustered else None
        plain = paired_interval(
            before,
            after,
            lambda a, b: metric.value(a) - metric.value(b),
            0.95,
            seed=3,
            clusters=clusters,
            wrong=metric.wrong(after) if metric.wrong else None,
            moved=metric.losses(before) != metric.losses(after) if metric.losses else None,
        )
        found = estimate_drop(metric, before, after, 0.95, seed=3, clusters=clusters)
        assert found[1] == plain[1]
        assert ends(found[0]) == pytest.approx(ends(plain[0]), abs=1e-9, nan_ok=True)


def ends(estimate: Estimate) -> list[float]:
    """The value and its bounds; NaN without them."""
    return [math.nan if end is None else end for end in (estimate.low, estimate.value, estimate.high)]

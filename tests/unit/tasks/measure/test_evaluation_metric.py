"""Metrics that were made for `mlflow.evaluate`: their values, scores per sample, and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.metrics import MetricValue, make_metric, rmse
from numpy.typing import NDArray
from test_judge import make_job

from tasks.measure.metrics.metric import are_scores
from tasks.measure.metrics.user_code import as_function, is_evaluation_metric, predictions_of
from tasks.measure.metrics.user_metric import user_metric
from tasks.run.user_functions import job_metric
from validators.errors import JobError

FILE = """
from mlflow.metrics import MetricValue, make_metric

def _costs(predictions, targets, metrics=None):
    return MetricValue(scores=[0 if a == b else 10 if b else 1 for a, b in zip(predictions, targets)])

costs = make_metric(eval_fn=_costs, greater_is_better=False, name="cost")
"""


def case(n: int = 60, seed: int = 2) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 2, n)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job whose metric is in a file of which all may run."""
    (tmp_path / "costs_of_mine.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"costs_of_mine:*@{tmp_path}")
    return make_job(metric="costs_of_mine:costs", metric_direction="lower", code=tmp_path)


def test_a_metric_of_scores_is_judged_per_sample(job: Any) -> None:
    """By hand: three of four are right, and the fourth is a fraud that is missed."""
    metric = job_metric(job)
    outputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], np.float32)
    rows = metric.rows(outputs, np.array([0, 1, 1, 0]), None)
    assert rows.tolist() == [[0.0], [0.0], [10.0], [0.0]] and not metric.higher_is_better


def test_a_metric_of_one_number_has_mlflows_value_on_any_rows() -> None:
    outputs, labels = np.random.default_rng(3).normal(size=(2, 50))
    metric = user_metric("mine:rmse", as_function(rmse()), higher_is_better=False, version="")
    rows = metric.rows(outputs[:, None], labels, None)
    assert not are_scores(rows)
    for drawn in (np.arange(50), np.arange(0, 50, 3)):
        told = rmse().eval_fn(pd.Series(outputs[drawn]), pd.Series(labels[drawn]))
        assert metric.value(rows[drawn]) == pytest.approx(told.aggregate_results["root_mean_squared_error"])
        assert metric.value(rows[drawn]) == pytest.approx(np.sqrt(((outputs - labels)[drawn] ** 2).mean()))


def test_another_direction_than_its_own_is_refused(job: Any) -> None:
    with pytest.raises(JobError, match="greater_is_better=False") as caught:
        job_metric(job.model_copy(update={"metric_direction": "higher"}))
    assert "metric_direction: lower" in caught.value.fix


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda predictions, targets: None, "without scores or aggregates"),
        (lambda predictions, targets: MetricValue(aggregate_results={}), "without scores or aggregates"),
        (lambda predictions, targets, price: 1.0, "price"),
    ],
)
def test_faults_name_the_metric(function: Any, words: str) -> None:
    made = make_metric(eval_fn=function, greater_is_better=True, name="mine")
    metric = user_metric("mine:made", as_function(made), higher_is_better=True, version="")
    with pytest.raises(JobError, match="'mine:made'") as caught:
        metric.rows(*case(), None)
    assert words in caught.value.found


def test_predictions_are_classes_numbers_or_arrays() -> None:
    outputs, labels = case()
    assert predictions_of(outputs, labels).tolist() == outputs.argmax(1).tolist()
    assert predictions_of(outputs, labels[:, None].astype(np.float32))[3].tolist() == outputs[3].tolist()
    assert predictions_of(outputs[:, :1], None).tolist() == outputs[:, 0].tolist()
    assert is_evaluation_metric(rmse()) and not is_evaluation_metric(rmse)

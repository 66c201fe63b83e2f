"""The samples that a variant made worse: the right ones, worst first, with both answers and how far their outputs moved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from report_data import JOB

from tasks.measure.metrics.reduction import ANSWERS
from tasks.records.flipped import SHOWN, changes_of
from tasks.reporting.pictures.run_pictures import draw_differences
from tasks.trials.measure_accuracy import _answering
from validators.records.measurements import Accuracy
from validators.records.run import Trial

N = 40
LABELS = np.arange(N) % 4


def accuracy(
    folder: Path, answers: NDArray[Any], noise: NDArray[Any] | None = None, metric: str = "accuracy"
) -> Accuracy:
    folder.mkdir()
    np.save(folder / "scores.npy", (answers == LABELS).astype(float)[:, None])
    np.save(folder / ANSWERS, answers.astype(np.int32))
    if noise is not None:
        np.save(folder / "noise.npy", np.column_stack([np.ones(N), noise]))
    return Accuracy(
        metric, 0.5, N, folder / "scores.npy", Path(), noise_path=folder / "noise.npy" if noise is not None else None
    )


def run_of(labels: NDArray[Any] | None = LABELS) -> Any:
    confirmation = np.arange(N) >= 30
    evidence = SimpleNamespace(confirmation=confirmation, evaluation=Sized(labels))
    return SimpleNamespace(job=JOB, evidence=evidence)


class Sized:
    """Samples of which only number and labels matter."""

    def __init__(self, labels: NDArray[Any] | None) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return N


def test_the_worst_are_those_that_moved_most(tmp_path: Path) -> None:
    """Three of four flips: one to the better and one that confirms are none; the loss is equal, so noise decides."""
    before, after = LABELS.copy(), LABELS.copy()
    after[[3, 7, 12, 35]] = (LABELS[[3, 7, 12, 35]] + 1) % 4
    before[20] = (LABELS[20] + 1) % 4
    noise = np.full(N, 1e-4)
    noise[[3, 7, 12]] = 0.01, 0.1, 0.001
    found = changes_of(
        run_of(),
        accuracy(tmp_path / "b", before),
        [Trial("v", accuracy=accuracy(tmp_path / "v", after, noise)), Trial("none")],
    )
    assert list(found) == ["v"]
    assert found["v"].worst.headings == ("Sample", "Label", "Source says", "Variant says", "SQNR dB")
    assert found["v"].worst.texts() == [
        ("7", "3", "3", "0", "10.0"),
        ("3", "3", "3", "0", "20.0"),
        ("12", "0", "0", "1", "30.0"),
    ]
    assert len(found["v"].sqnr_db) == 30 and np.isclose(np.median(found["v"].sqnr_db), 40.0)


def test_losses_stand_where_there_are_no_classes(tmp_path: Path) -> None:
    """The largest increase first, and no more than a page holds."""
    one, other = (accuracy(tmp_path / name, LABELS, metric="mse") for name in "bv")
    np.save(other.scores_path, np.linspace(1, 0, N)[:, None])
    for each in (one, other):
        each.scores_path.with_name(ANSWERS).unlink()
    worst = changes_of(run_of(None), one, [Trial("v", accuracy=other)])["v"].worst
    assert worst.headings == ("Sample", "Loss of the source", "Loss of the variant") and len(worst.rows) == SHOWN
    assert worst.texts()[0] == ("29", "-1", "-0.2564")
    assert changes_of(run_of(), None, [Trial("v", accuracy=other)]) == {}


@pytest.mark.parametrize("rows", [np.arange(10), np.array([8, 9, 0, 1, 2, 3, 4, 5, 6, 7]), np.array([7, 5, 1])])
def test_answers_are_kept_in_the_order_of_the_data(tmp_path: Path, rows: NDArray[np.intp]) -> None:
    """A race measures in another order, and a selection leaves the others as they were."""
    scores = np.eye(4, dtype=np.float32)[rows % 4]
    batches = [scores[start : start + 4] for start in range(0, len(rows), 4)]
    kept = list(_answering(iter(batches), tmp_path / ANSWERS, np.full(10, -1), rows))
    assert all(one is other for one, other in zip(kept, batches, strict=True))
    expected = [row % 4 if row in rows else -1 for row in range(10)]
    assert np.load(tmp_path / ANSWERS).tolist() == expected


def test_one_score_a_sample_is_no_class(tmp_path: Path) -> None:
    list(_answering(iter([np.ones((4, 1)), np.ones(4)]), tmp_path / ANSWERS, np.full(8, -1), np.arange(8)))
    assert not (tmp_path / ANSWERS).exists()


def test_a_histogram_counts_every_sample_that_moved() -> None:
    ratios = np.array([10.0, 20.0, 20.0, np.inf, np.nan])
    drawn = draw_differences("v", ratios)
    assert drawn is not None and sum(one["count"] for one in drawn.spec["data"]["values"]) == 3
    assert "from 10.0 to 20.0 dB, median 20.0 dB; 1 more are equal" in drawn.description and "<svg" in drawn.svg
    assert draw_differences("v", np.array([np.inf])) is None

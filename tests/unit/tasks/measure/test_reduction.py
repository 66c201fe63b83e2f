"""Metrics reduced batch by batch: the rows of all samples at once, to the bit, and no more held than a batch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure.metrics import reduction
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.reduction import ReductionSize, reduce_outputs
from tasks.measure.metrics.texts import make_decoder
from tasks.measure.metrics.user_metric import user_metric
from tasks.measure.metrics.values import signal_and_noise
from validators.errors import CandidateRefused
from validators.job.job_data import TextDecoding
from validators.job.metric_facts import METRICS

N = 46
RNG = np.random.default_rng(5)
SCORES = RNG.normal(size=(N, 6)).astype(np.float32)
NEAR = SCORES + RNG.normal(size=(N, 6)).astype(np.float32) / 4
CLASSES = RNG.integers(0, 6, N)
TEXTS = np.array(["abc b", "ab c"] * (N // 2)), np.array(["abd c"] * N)
MAPS = RNG.normal(size=(N, 4, 3, 5)).astype(np.float32), RNG.integers(0, 4, (N, 3, 5))
BOXES = np.dstack(
    [SCORES.reshape(N, 1, 6)[..., :2], SCORES.reshape(N, 1, 6)[..., :2] + 1, np.abs(SCORES[:, None, 2:4]).round()]
)
Array = NDArray[Any]


def metric_of(name: str) -> Metric:
    return named_metric(name, Options(0.0, make_decoder(TextDecoding()), scores="logits", k=3))


# Outputs, labels and the baseline's outputs of each metric.
CASES: dict[str, tuple[Array, Array | None, Array | None]] = {
    "accuracy": (SCORES, CLASSES, None),
    "top5": (SCORES, CLASSES, None),
    "agreement": (SCORES, None, NEAR),
    "f1_macro": (SCORES, CLASSES, None),
    "f1_binary": (SCORES[:, 0], CLASSES % 2, None),
    "precision_binary": (SCORES[:, 0], CLASSES % 2, None),
    "recall_binary": (SCORES[:, 0], CLASSES % 2, None),
    "auroc": (SCORES, CLASSES, None),
    "mse": (SCORES, NEAR, None),
    "mae": (SCORES.reshape(N, 3, 2), NEAR.reshape(N, 3, 2), None),
    "rmse": (SCORES, NEAR, None),
    "mape": (SCORES, NEAR + 9, None),
    "r2": (SCORES, NEAR, None),
    "cosine": (SCORES, None, NEAR),
    "spearman": (SCORES, np.repeat(CLASSES[::2], 2), None),
    "sqnr": (SCORES.reshape(N, 3, 2), None, NEAR.reshape(N, 3, 2)),
    "perplexity": (np.abs(SCORES[:, 0]), None, None),
    "greedy_match": ((SCORES[:, 0] > 0).astype(float), None, None),
    "wer": (CLASSES[:, None], np.roll(CLASSES, 1)[:, None], None),
    "cer": (np.array(["abc", "ab"] * (N // 2)), np.array(["abd"] * N), None),
    "f1_multilabel": (SCORES, (NEAR > 0).astype(int), None),
    "f1_multilabel_micro": (SCORES, (NEAR > 0).astype(int), None),
    "pr_auc": (SCORES, CLASSES, None),
    "log_loss": (SCORES, CLASSES, None),
    "ece": (SCORES, CLASSES, None),
    "token_accuracy": (MAPS[0].reshape(N, 5, 12)[..., :4], MAPS[1][:, 0], None),
    "pixel_accuracy": (*MAPS, None),
    "iou": (*MAPS, None),
    "dice": (SCORES.reshape(N, 3, 2), (NEAR > 0).reshape(N, 3, 2).astype(int), None),
    "exact_match": (*TEXTS, None),
    "bleu": (*TEXTS, None),
    "rouge": (*TEXTS, None),
    "recall_at_k": (SCORES, CLASSES, None),
    "ndcg": (SCORES, CLASSES, None),
    "mrr": (SCORES, CLASSES, None),
    "map": (BOXES, np.dstack([BOXES[..., :4] + 0.1, CLASSES[:, None, None] % 3]), None),
    "map50": (BOXES, np.dstack([BOXES[..., :4] + 0.1, CLASSES[:, None, None] % 3]), None),
}


def batches(array: Array, size: int) -> Iterator[Array]:
    for start in range(0, len(array), size):
        yield array[start : start + size]


def test_every_metric_has_a_case() -> None:
    assert set(CASES) == set(METRICS)


@pytest.mark.parametrize("size", [1, 7, N])
@pytest.mark.parametrize("name", CASES)
def test_batches_give_the_rows_of_all_at_once(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, gathered in memory and mapped from a file."""
    outputs, labels, baseline = CASES[name]
    metric = metric_of(name)
    expected = metric.rows(outputs, labels, baseline)
    for gathered in (0, 2**30):
        monkeypatch.setattr(reduction, "GATHERED_BYTES", gathered)
        monkeypatch.setattr(reduction, "PIECE_BYTES", 40)
        beside = None if baseline is None else batches(baseline, size)
        found = reduce_outputs(
            metric, batches(outputs, size), labels, beside, N, keeps_noise=baseline is not None, scratch=tmp_path
        )
        np.testing.assert_array_equal(found.rows, expected)
        assert found.finite.tolist() == [1.0] * N
        if baseline is not None:
            np.testing.assert_array_equal(found.noise, signal_and_noise(outputs, baseline))
    assert not list(tmp_path.iterdir()), "temporary files are removed"


def test_finite_is_the_share_of_each_sample(tmp_path: Path) -> None:
    outputs = np.array([[1.0, 2.0], [np.nan, 2.0], [np.inf, -np.inf]], np.float32)
    found = reduce_outputs(
        metric_of("accuracy"), batches(outputs, 2), np.zeros(3, int), None, 3, keeps_noise=False, scratch=tmp_path
    )
    assert found.finite.tolist() == [1.0, 0.5, 0.0]


def margin(outputs: Array, labels: Array) -> Array:
    return outputs.max(axis=1) - labels  # type: ignore[no-any-return]  # NumPy says Any


def standardized(outputs: Array, labels: Array) -> Array:
    return (outputs[:, 0] - outputs[:, 0].mean()) / outputs[:, 0].std() + labels  # type: ignore[no-any-return]  # NumPy says Any


def share(outputs: Array, labels: Array) -> float:
    return float((outputs.argmax(axis=1) == labels).mean())


def squeezed(outputs: Array, labels: Array) -> Array:
    return np.atleast_1d((outputs * labels[:, None]).squeeze()).max(axis=-1)  # type: ignore[no-any-return]  # NumPy says Any


@pytest.mark.parametrize(
    ("function", "most"), [(margin, 7), (standardized, N), (share, N), (squeezed, N)], ids=lambda case: str(case)[:20]
)
def test_a_function_gets_batches_only_if_scores_stand_alone(
    function: Any, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose scores depend on other samples, or that fails on one, gets all samples at once, as an array of its own."""
    monkeypatch.setattr(reduction, "GATHERED_BYTES", 0)
    seen = []

    def counted(outputs: Array, labels: Array) -> Any:
        seen.append(len(outputs))
        assert type(outputs) is np.ndarray and outputs.flags.writeable
        return function(outputs, labels)

    metric = user_metric("mine:own", counted, higher_is_better=True, version="1")
    found = reduce_outputs(metric, batches(SCORES.copy(), 7), CLASSES, None, N, keeps_noise=False, scratch=tmp_path)
    expected = user_metric("mine:own", function, higher_is_better=True, version="1").rows(SCORES, CLASSES, None)
    np.testing.assert_array_equal(found.rows, expected)
    assert max(seen) == most


def test_small_outputs_are_given_to_a_function_in_one_call(tmp_path: Path) -> None:
    calls = []

    def counted(outputs: Array, labels: Array) -> Any:
        calls.append(len(outputs))
        return margin(outputs, labels)

    metric = user_metric("mine:own", counted, higher_is_better=True, version="1")
    reduce_outputs(metric, batches(SCORES, 7), CLASSES, None, N, keeps_noise=False, scratch=tmp_path)
    assert calls == [N]


@pytest.mark.parametrize(
    ("metric", "scope_disk", "memory"),
    [
        ("accuracy", N * 8, 4 * N * 8),
        ("r2", N * 12 * 8, 4 * N * 12 * 8),
        ("auroc", N * 6 * 8 + N * 6 * 4, 4 * N * 6 * 8),
    ],
)
def test_the_need_is_known_after_the_first_batch(
    metric: str, scope_disk: int, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in memory four times and on disk once; beside the ranks of all samples lie their outputs."""
    monkeypatch.setattr(reduction, "GATHERED_BYTES", 0)
    outputs, labels, _ = CASES[metric]
    drawn, needs = [], []

    def counted() -> Iterator[Array]:
        for batch in batches(outputs, 7):
            drawn.append(len(batch))
            yield batch

    def check(needed: ReductionSize) -> None:
        needs.append(needed)
        assert len(drawn) == 1

    reduce_outputs(metric_of(metric), counted(), labels, None, N, keeps_noise=False, scratch=tmp_path, check=check)
    assert needs == [ReductionSize(memory, scope_disk)]


@pytest.mark.parametrize("shapes", [[(7, 6), (7, 5)], [(7, 6), ()], [(1, 6)], [(30, 6), (30, 6)]])
def test_outputs_that_are_not_one_per_sample_are_refused(shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    outputs = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(CandidateRefused, match="samples along axis 0"):
        reduce_outputs(metric_of("accuracy"), outputs, CLASSES, None, N, keeps_noise=False, scratch=tmp_path)


def test_large_outputs_are_never_held_at_once(tmp_path: Path) -> None:
    """200 samples of 1 MB each, and as many of the baseline: the peak is a few batches."""

    def drawn(seed: int) -> Iterator[Array]:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            yield rng.random((4, 2**18), np.float32)

    tracemalloc.start()
    found = reduce_outputs(metric_of("sqnr"), drawn(1), None, drawn(2), 200, keeps_noise=True, scratch=tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.rows.shape == (200, 2) and peak < 100e6

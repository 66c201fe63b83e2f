"""Metrics: tables worked out by hand, scikit-learn and scipy on any rows, and outputs that do not fit refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics as sk

from tasks.measure.metrics.areas import midranks, order_codes
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.classification import of_class_one
from tasks.measure.metrics.metric import Metric, are_scores
from tasks.measure.metrics.texts import make_decoder
from tasks.measure.metrics.values import signal_and_noise
from validators.errors import JobError
from validators.job.job_data import TextDecoding
from validators.samples.datasets import TensorSpec

SCORES = np.array([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.4, 0.3, 0.3]], np.float32)
# Seven classes; the best five of the first row are 6, 5, 4, 3, 2, those of the second 0, 1, 2, 3, 4.
SEVEN = np.array([[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1], [0, 9, 8, 7, 6, 5, 1]], np.float32)
# Lengths 5 and 13; the cosine of the first pair is 0.96, that of the second -1.
VECTORS = np.array([[3.0, 4.0], [5.0, 12.0], [0.0, 0.0]])


def metric_of(name: str, threshold: float | None = None) -> Metric:
    return named_metric(name, Options(threshold, make_decoder(TextDecoding())))


TABLE: list[tuple[str, Any, Any, Any, list[float]]] = [
    ("accuracy", SCORES, np.array([1, 0, 0, 0]), None, [1, 1, 0, 1]),
    ("accuracy", SCORES.astype(np.float16), np.array([2, 2, 2, 2], np.uint8), None, [0, 0, 1, 0]),
    ("top5", SEVEN, np.array([1, 4, 5]), None, [0, 1, 1]),
    ("top5", SEVEN, np.array([6, 5, 0]), None, [1, 0, 0]),
    ("agreement", SCORES, None, SCORES[:, ::-1], [1, 0, 0, 0]),
    ("agreement", SCORES, np.array([2, 2, 2, 2]), SCORES * 3 - 1, [1, 1, 1, 1]),
    ("agreement", SCORES, None, None, [1, 1, 1, 1]),
    ("mse", np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), None, [2.0, 12.5]),
    ("mse", np.array([[1.0], [3.0]], np.float32), np.array([2, 1]), None, [1.0, 4.0]),
    ("mae", np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), None, [1.0, 3.5]),
    ("mae", np.array([1.5, -1.0], np.float16), np.array([1.0, 1.0]), None, [0.5, 2.0]),
    ("mae", np.zeros((1, 2, 2)), np.arange(4.0).reshape(1, 2, 2), None, [1.5]),
    ("cosine", VECTORS, np.array([[4.0, 3.0], [-5.0, -12.0], [1.0, 1.0]]), None, [0.96, -1.0, 0.0]),
    ("cosine", VECTORS, None, VECTORS * 2, [1.0, 1.0, 0.0]),
    ("cosine", VECTORS[:2], None, None, [1.0, 1.0]),
    ("perplexity", np.array([0.5, 2.0]), None, None, [0.5, 2.0]),
]


@pytest.mark.parametrize(("name", "outputs", "labels", "baseline", "expected"), TABLE)
def test_scores_of_a_table(name: str, outputs: Any, labels: Any, baseline: Any, expected: list[float]) -> None:
    """One float64 a sample, in order, as rows of one column; their mean is the metric (exp of it for perplexity)."""
    metric = metric_of(name)
    rows = metric.rows(outputs, labels, baseline)
    assert rows.dtype == np.float64 and rows.shape == (len(outputs), 1) and are_scores(rows)
    assert rows[:, 0].tolist() == pytest.approx(expected, abs=1e-15)
    mean = float(np.mean(expected))
    assert metric.value(rows) == pytest.approx(math.exp(mean) if name == "perplexity" else mean)


def test_values_are_compared_in_float64() -> None:
    """Differences that the outputs' own dtype cannot hold: in float16, 2,048 - 0.5 is 2,048 and 300 squared is infinite."""
    outputs, targets = np.array([[2048.0], [300.0]], np.float16), np.array([[0.5], [0.0]], np.float16)
    assert metric_of("mae").rows(outputs, targets, None).tolist() == [[2047.5], [300.0]]
    assert metric_of("mse").rows(outputs, targets, None).tolist() == [[2047.5**2], [90000.0]]
    assert signal_and_noise(outputs, targets).tolist() == [[0.25, 2047.5**2], [0.0, 90000.0]]


def macro_auroc(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """The mean of scikit-learn's area of each class against the rest, over classes that some samples have and some have not."""
    every = [labels == index for index in range(scores.shape[1])]
    areas = [sk.roc_auc_score(one, scores[:, index]) for index, one in enumerate(every) if one.any() and not one.all()]
    return float(np.mean(areas)) if areas else math.nan


def spearman(one: NDArray[Any], other: NDArray[Any]) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(stats.spearmanr(one, other).statistic)


def pair_cosines(values: NDArray[Any]) -> NDArray[Any]:
    return np.diagonal(sk.pairwise.cosine_similarity(values[::2].astype(np.float64), values[1::2].astype(np.float64)))


def margin(outputs: NDArray[Any]) -> NDArray[Any]:
    return outputs[:, 1].astype(np.float64) - outputs[:, 0]


def positives(outputs: NDArray[Any]) -> NDArray[Any]:
    return outputs.argmax(axis=1) if outputs.ndim == 2 and outputs.shape[1] == 2 else outputs.reshape(-1) > 0


Oracle = Callable[[NDArray[Any], NDArray[Any]], float]
# Metric, shape of a sample's output, kind of label, and the library's value of the same outputs and labels.
LIBRARY: dict[str, tuple[str, tuple[int, ...], str, Oracle]] = {
    "f1_macro": ("f1_macro", (5,), "class", lambda o, y: sk.f1_score(y, o.argmax(1), average="macro", zero_division=0)),
    "f1 of two classes": ("f1_binary", (2,), "binary", lambda o, y: sk.f1_score(y, positives(o), zero_division=0)),
    "f1 of a logit": ("f1_binary", (1,), "binary", lambda o, y: sk.f1_score(y, positives(o), zero_division=0)),
    "precision": (
        "precision_binary",
        (2,),
        "binary",
        lambda o, y: sk.precision_score(y, positives(o), zero_division=0),
    ),
    "recall of a logit": (
        "recall_binary",
        (1,),
        "binary",
        lambda o, y: sk.recall_score(y, positives(o), zero_division=0),
    ),
    "auroc": ("auroc", (5,), "class", lambda o, y: macro_auroc(y, o)),
    "auroc of two": ("auroc", (2,), "binary", lambda o, y: macro_auroc(y, np.c_[-margin(o), margin(o)])),
    "auroc of a logit": ("auroc", (), "binary", lambda o, y: macro_auroc(y, np.c_[-o, o])),
    "r2": ("r2", (1,), "numbers", lambda o, y: sk.r2_score(y, o)),
    "rmse of three": ("rmse", (3,), "numbers", lambda o, y: sk.root_mean_squared_error(y, o)),
    "r2 of three": ("r2", (3,), "numbers", lambda o, y: sk.r2_score(y, o)),
    "spearman": ("spearman", (1,), "numbers", lambda o, y: spearman(o[:, 0], y[:, 0])),
    "spearman of pairs": ("spearman", (4,), "gold", lambda o, y: spearman(pair_cosines(o), y[::2])),
}


def random_case(shape: tuple[int, ...], kind: str, n: int, rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
    """Outputs of two decimals, so that there are ties, and labels that have to do with them."""
    outputs = rng.normal(size=(n, *shape)).round(1).astype(np.float32)
    if kind in ("class", "binary"):
        return outputs, rng.integers(0, 2 if kind == "binary" else shape[-1], n)
    if kind == "gold":
        # Without ties, which cosines of two implementations break differently.
        outputs = rng.normal(size=(n, *shape)).astype(np.float32)
        return outputs, np.repeat(rng.integers(0, 5, n // 2), 2)
    return outputs, (outputs + rng.normal(size=outputs.shape)).round(1)


@pytest.mark.parametrize("case", LIBRARY)
@given(n=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_any_selection_of_rows_has_the_librarys_value(case: str, n: int, seed: int) -> None:
    """Rows of all samples, of which a few are drawn with repeats, against the library on the same samples."""
    name, shape, kind, oracle = LIBRARY[case]
    rng = np.random.default_rng(seed)
    outputs, labels = random_case(shape, kind, 40, rng)
    metric = metric_of(name, threshold=0.0)
    rows = metric.rows(outputs, labels, None)
    assert rows.shape[0] == (20 if kind == "gold" else 40) and not are_scores(rows)
    drawn = rng.integers(0, len(rows), n)
    samples = (2 * drawn[:, None] + [0, 1]).reshape(-1) if kind == "gold" else drawn
    if name == "r2" and len(drawn) < 2:
        return  # scikit-learn has no value for one sample
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of folds with one class: the value is what counts
        expected = oracle(outputs[samples], labels[samples])
    assert metric.value(rows[drawn]) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_class_that_is_only_predicted_counts_against_f1() -> None:
    """By hand: class 0 has F1 2/3 and class 2, which is no label, 0; class 1 occurs nowhere."""
    outputs = np.array([[1.0, 0, 0], [0, 0, 1.0]])
    rows = metric_of("f1_macro").rows(outputs, np.array([0, 0]), None)
    assert metric_of("f1_macro").value(rows) == pytest.approx(1 / 3)


def test_f1_of_one_value_is_by_the_threshold() -> None:
    """The same probabilities: above 0.5 one of two positives is found, above 0 everything is."""
    outputs, labels = np.array([[0.9], [0.4], [0.2]]), np.array([1, 1, 0])
    for threshold, expected in ((0.5, 2 / 3), (0.0, 0.8)):
        metric = of_class_one("f1_binary", threshold)
        assert metric.value(metric.rows(outputs, labels, None)) == pytest.approx(expected)
        assert metric.version == str(threshold), "another threshold is another measurement"


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_midranks_are_scipys(values: list[int], data: st.DataObject) -> None:
    """Of any selection of codes, ties and all."""
    codes = order_codes(np.array(values)[:, None])[:, 0]
    drawn = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=30))
    np.testing.assert_array_equal(midranks(codes[drawn]), stats.rankdata(np.array(values)[drawn]))


@pytest.mark.parametrize("name", ["auroc", "spearman", "r2", "rmse", "sqnr"])
def test_scores_that_are_not_finite_have_no_value(name: str) -> None:
    """One NaN among the outputs is enough: no gate lets NaN pass."""
    outputs, labels = np.linspace(0, 1, 8), np.arange(8) % 2
    broken = np.where(np.arange(8) == 3, np.nan, outputs)
    metric = metric_of(name)
    assert math.isnan(metric.value(metric.rows(broken, labels, outputs)))
    assert not math.isnan(metric.value(metric.rows(outputs, labels, outputs)))


def test_noise_in_decibels() -> None:
    """Energies 100 and 1 are 20 dB, none of 100 is infinite; what is not finite in the baseline does not count."""
    metric, reference = metric_of("sqnr"), np.array([[6.0, 8.0, -np.inf]], np.float32)
    outputs = np.array([[6.6, 8.8, 5.0]], np.float32)
    rows = metric.rows(outputs, None, reference)
    np.testing.assert_allclose(rows, [[100.0, 1.0]], rtol=1e-6)
    assert metric.value(rows) == pytest.approx(20.0)
    assert metric.value(metric.rows(reference, None, None)) == math.inf
    # The ratio of sums, no mean of ratios: a sample of no signal has its noise all the same.
    assert metric.value(np.array([[100.0, 0.0], [0.0, 1.0]])) == pytest.approx(20.0)


LOGITS = TensorSpec("logits", "float32", ("batch", None))


@pytest.mark.parametrize(
    ("name", "shape", "kind", "figures"),
    [
        ("accuracy", (8, 2), "classes", {"classes": 2}),
        ("agreement", (8, 3), "any", {"required": False}),
        ("top5", (8, 6), "classes", {"classes": 6}),
        ("f1_macro", (8, 3), "classes", {"classes": 3}),
        ("f1_binary", (8, 2), "classes", {"classes": 2}),
        ("f1_binary", (8, 1), "classes", {"classes": 2}),
        ("f1_binary", (8,), "classes", {"classes": 2}),
        ("precision_binary", (8,), "classes", {"classes": 2}),
        ("recall_binary", (8, 2), "classes", {"classes": 2}),
        ("auroc", (8, 1), "classes", {"classes": 2, "distinct": 2}),
        ("auroc", (8, 7), "classes", {"classes": 7, "distinct": 2}),
        ("mse", (8, 1), "numbers", {"size": 1}),
        ("mae", (8, 2, 2), "numbers", {"size": 4}),
        ("mae", (8,), "numbers", {"size": 1}),
        ("rmse", (8, 2), "numbers", {"size": 2, "without_zeros": False}),
        ("mape", (8,), "numbers", {"size": 1, "without_zeros": True}),
        ("r2", (8, 3), "numbers", {"size": 3, "distinct": 2}),
        ("cosine", (8, 3), "numbers", {"size": 3, "required": False}),
        ("spearman", (8, 1), "numbers", {"size": 1, "in_pairs": False}),
        ("spearman", (8, 9), "numbers", {"size": 1, "in_pairs": True}),
        ("sqnr", (8, 9, 2), "any", {"required": False}),
        ("perplexity", (1, 16, 50), "any", {"required": False}),
    ],
)
def test_what_labels_a_metric_takes(name: str, shape: tuple[int, ...], kind: str, figures: dict[str, Any]) -> None:
    spec = metric_of(name, threshold=0.5).expects(LOGITS, shape)
    assert spec.kind == kind and {key: getattr(spec, key) for key in figures} == figures


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("accuracy", (8, 1), "at least 2 classes"),
        ("accuracy", (8,), "at least 2 classes"),
        ("accuracy", (8, 16, 3), "at least 2 classes"),
        ("agreement", (8, 1), "at least 2 classes"),
        ("top5", (8, 5), "more than 5 classes"),
        ("f1_macro", (8, 1), "at least 2 classes"),
        ("f1_binary", (8, 3), "use `f1_macro` for more classes"),
        ("f1_binary", (8, 1), "`metric_threshold`"),
        ("recall_binary", (8, 3), "use `f1_macro` for more classes"),
        ("auroc", (8, 4, 4), "at least 2 classes"),
        ("cosine", (8, 1), "embeddings"),
        ("spearman", (8, 4, 4), "one value per sample"),
        ("perplexity", (8, 50), "(samples, tokens, vocabulary)"),
        ("perplexity", (8, 1, 50), "2 tokens or more"),
        ("perplexity", (8, 16, 1), "(samples, tokens, vocabulary)"),
        ("wer", (8, 50, 4, 4), "token ids (samples, tokens)"),
    ],
)
def test_a_metric_that_does_not_fit_the_output_is_refused(name: str, shape: tuple[int, ...], words: str) -> None:
    """The metric, the output and its shape are named, with what would fit."""
    with pytest.raises(JobError) as caught:
        metric_of(name).expects(LOGITS, shape)
    error = caught.value
    assert repr(name) in error.found and "'logits'" in error.found and str(shape) in error.found
    assert words in error.expected and error.fix


def test_indices_have_no_noise() -> None:
    with pytest.raises(JobError, match="floating-point"):
        metric_of("sqnr").expects(TensorSpec("best", "int64", ("batch",)), (8,))

"""Metrics of one task each: 100 random cases against the reference library, any selection of rows, and tables by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU
from sklearn import metrics as sk
from torchmetrics.functional import classification as tm
from torchmetrics.functional import retrieval as tm_retrieval
from torchmetrics.functional.classification.calibration_error import _ce_compute

from tasks.measure.metrics import retrieval
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.texts import make_decoder, rouge_l
from validators.errors import DataError, JobError
from validators.job.job_data import TextDecoding
from validators.samples.datasets import TensorSpec
from validators.samples.labels import check_labels

Array = NDArray[Any]
Generator = np.random.Generator
CASES, EQUAL = 100, 1e-9
N = 24


def metric_of(name: str, threshold: float | None = None, **options: Any) -> Metric:
    return named_metric(name, Options(threshold, make_decoder(TextDecoding()), **options))


def counted(outputs: Array, labels: Array) -> tuple[Array, Array]:
    """Answers and labels of the cells that count."""
    return labels[labels != -100], outputs[labels != -100]


def cells(shape: tuple[int, ...], classes: int) -> Callable[[Generator], Array]:
    def draw(rng: Generator) -> Array:
        labels = rng.integers(0, classes, (N, *shape))
        return np.where(rng.random(labels.shape) < 0.15, -100, labels)

    return draw


def macro(score: Callable[..., float]) -> Callable[[Array, Array], float]:
    """Of the classes that occur among labels or answers, as scikit-learn's."""
    return lambda answers, labels: score(*counted(answers, labels), average="macro")


def softmax(values: Array) -> Array:
    return np.exp(values) / np.exp(values).sum(axis=-1, keepdims=True)


def ece(confidence: Array, right: Array) -> float:
    """By torchmetrics, below its public function, which rounds to single precision."""
    return float(_ce_compute(torch.tensor(confidence), torch.tensor(right, dtype=torch.float64), 15, "l1"))


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def ece_of_best(likely: Array, labels: Array) -> float:
    found = ece(likely.max(1), likely.argmax(1) == labels)
    public = tm.multiclass_calibration_error(torch.tensor(likely), torch.tensor(labels), num_classes=likely.shape[1])
    assert found == pytest.approx(float(public), abs=1e-6)
    return found


def average_precision(outputs: Array, labels: Array) -> float:
    return float(sk.average_precision_score(labels, outputs)) if labels.any() and not labels.all() else math.nan


def macro_precision(outputs: Array, labels: Array) -> float:
    areas = [average_precision(outputs[:, one], labels == one) for one in range(outputs.shape[1])]
    return float(np.nanmean(areas)) if np.isfinite(areas).any() else math.nan


Case = tuple[Metric, Callable[[Generator], Array], tuple[int, ...], Callable[[Array, Array], float]]
# Metric, labels, shape of a sample's output, and the library's value of outputs and labels.
LIBRARY: dict[str, Case] = {
    "token_accuracy": (
        metric_of("token_accuracy"),
        cells((7,), 5),
        (7, 5),
        lambda o, y: sk.accuracy_score(*counted(o.argmax(-1), y)),
    ),
    "pixel_accuracy": (
        metric_of("pixel_accuracy"),
        cells((4, 6), 3),
        (3, 4, 6),
        lambda o, y: sk.accuracy_score(*counted(o.argmax(1), y)),
    ),
    "iou": (
        metric_of("iou"),
        cells((4, 6), 5),
        (5, 4, 6),
        lambda o, y: macro(sk.jaccard_score)(o.argmax(1), y),
    ),
    "iou, classes last": (
        metric_of("iou"),
        cells((4, 6), 5),
        (4, 6, 5),
        lambda o, y: macro(sk.jaccard_score)(o.argmax(-1), y),
    ),
    "iou of masks": (
        metric_of("iou", 0.1),
        cells((4, 6), 2),
        (4, 6),
        lambda o, y: sk.jaccard_score(*counted(o > 0.1, y)),
    ),
    "dice": (
        metric_of("dice"),
        cells((3, 3), 5),
        (5, 3, 3),
        lambda o, y: macro(sk.f1_score)(o.argmax(1), y),
    ),
    "dice of masks": (
        metric_of("dice", 0.1),
        cells((1, 4, 6), 2),
        (1, 4, 6),
        lambda o, y: sk.f1_score(*counted(o > 0.1, y)),
    ),
    "dice of a series": (
        metric_of("dice"),
        cells((9,), 4),
        (4, 9),
        lambda o, y: macro(sk.f1_score)(o.argmax(1), y),
    ),
    "pr_auc": (metric_of("pr_auc"), lambda rng: rng.integers(0, 2, N), (), average_precision),
    "pr_auc of two": (
        metric_of("pr_auc"),
        lambda rng: rng.integers(0, 2, N),
        (2,),
        lambda o, y: average_precision(o[:, 1] - o[:, 0], y),
    ),
    "pr_auc of five": (metric_of("pr_auc"), lambda rng: rng.integers(0, 5, N), (5,), macro_precision),
    "f1_multilabel": (
        metric_of("f1_multilabel", 0.2),
        lambda rng: rng.integers(0, 2, (N, 6)),
        (6,),
        lambda o, y: sk.f1_score(y, o > 0.2, average="macro", zero_division=np.nan),
    ),
    "f1_multilabel_micro": (
        metric_of("f1_multilabel_micro", 0.2),
        lambda rng: rng.integers(0, 2, (N, 6)),
        (6,),
        lambda o, y: sk.f1_score(y, o > 0.2, average="micro"),
    ),
    "log_loss": (
        metric_of("log_loss", scores="logits"),
        lambda rng: rng.integers(0, 5, N),
        (5,),
        lambda o, y: sk.log_loss(y, softmax(o), labels=range(5)),
    ),
    "log_loss of a logit": (
        metric_of("log_loss", scores="logits"),
        lambda rng: rng.integers(0, 2, N),
        (1,),
        lambda o, y: sk.log_loss(y, sigmoid(o[:, 0]), labels=[0, 1]),
    ),
    "ece": (
        metric_of("ece", scores="logits"),
        lambda rng: rng.integers(0, 5, N),
        (5,),
        lambda o, y: ece_of_best(softmax(o), y),
    ),
    "ece of a logit": (
        metric_of("ece", scores="logits"),
        lambda rng: rng.integers(0, 2, N),
        (),
        lambda o, y: ece(sigmoid(o), y),
    ),
}


@pytest.mark.parametrize("case", LIBRARY)
def test_any_selection_of_rows_has_the_librarys_value(case: str) -> None:
    """Rows of all samples, of which some are drawn with repeats, against the library on the same samples."""
    metric, labels_of, shape, oracle = LIBRARY[case]
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        labels, outputs = labels_of(rng), 2 * rng.normal(size=(N, *shape)).round(1)
        drawn = rng.integers(0, N, rng.integers(1, N + 1))
        spec = metric.expects(TensorSpec("y", "float32", ("n", *shape)), outputs.shape)
        check_labels(labels, spec, data="e.npz", label="label", metric=metric.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of draws without one of the classes: the value is what counts
            expected = oracle(outputs[drawn], labels[drawn])
        rows = metric.rows(outputs, labels, None)
        assert metric.value(rows[drawn]) == pytest.approx(expected, abs=EQUAL, nan_ok=True), seed


def test_probabilities_are_read_as_such() -> None:
    """The same as scikit-learn, clipped likewise, and as torchmetrics; logits of the same probabilities have the same value."""
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        logits, labels = 12 * rng.normal(size=(N, 4)), rng.integers(0, 4, N)
        likely = softmax(logits)
        for dtype in (np.float32, np.float64):
            rows = metric_of("log_loss", scores="probabilities").rows(likely.astype(dtype), labels, None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of float32 whose sum is 1 - 1e-7
                expected = sk.log_loss(labels, likely.astype(dtype), labels=range(4))
            assert rows.mean() == pytest.approx(expected, rel=1e-6 if dtype is np.float32 else EQUAL)
        one = likely[:, 1]
        rows = metric_of("log_loss", scores="probabilities").rows(one, labels % 2, None)
        assert rows.mean() == pytest.approx(sk.log_loss(labels % 2, one, labels=[0, 1]), abs=EQUAL)
        values = [
            metric_of("ece", scores=kind).value(metric_of("ece", scores=kind).rows(outputs, labels, None))
            for kind, outputs in (("logits", logits), ("probabilities", likely))
        ]
        assert values[0] == pytest.approx(values[1], abs=EQUAL)
        assert values[1] == pytest.approx(ece_of_best(likely, labels), abs=EQUAL)


def as_queries(embeddings: Array, labels: Array) -> list[tuple[Array, Array]]:
    """Cosines with the other samples, and whether they are relevant, of each sample that has a relevant one."""
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    found = []
    for query in range(len(labels)):
        others = np.arange(len(labels)) != query
        relevant = labels[others] == labels[query]
        if relevant.any():
            found.append((units[others] @ units[query], relevant))
    return found


def exactly(value: torch.Tensor) -> float:
    """The ratio of small numbers that a library rounded to single precision."""
    return float(Fraction(float(value)).limit_denominator(1000))


# Cosines are raised above 0: torchmetrics takes a negative score for a document that was not retrieved.
RANKED: dict[str, tuple[str, int | None, Callable[[Array, Array], float]]] = {
    "recall_at_k": (
        "recall_at_k",
        3,
        lambda s, y: exactly(tm_retrieval.retrieval_recall(torch.tensor(s + 2), torch.tensor(y), top_k=3)),
    ),
    "mrr": (
        "mrr",
        None,
        lambda s, y: exactly(tm_retrieval.retrieval_reciprocal_rank(torch.tensor(s + 2), torch.tensor(y))),
    ),
    "mrr of 4": (
        "mrr",
        4,
        lambda s, y: exactly(tm_retrieval.retrieval_reciprocal_rank(torch.tensor(s + 2), torch.tensor(y), top_k=4)),
    ),
    "ndcg": ("ndcg", None, lambda s, y: sk.ndcg_score([y], [s])),
    "ndcg of 5": ("ndcg", 5, lambda s, y: sk.ndcg_score([y], [s], k=5)),
}


@pytest.mark.parametrize("case", RANKED)
def test_rankings_have_the_librarys_value(case: str) -> None:
    """Of all queries, and of any selection of them among the same documents."""
    name, k, oracle = RANKED[case]
    metric = metric_of(name, k=k)
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 9, N)
        embeddings = rng.normal(size=(9, 4))[labels] + rng.normal(size=(N, 4))
        expected = [oracle(*query) for query in as_queries(embeddings, labels)]
        rows = metric.rows(embeddings, labels, None)
        assert metric.value(rows) == pytest.approx(np.mean(expected), abs=EQUAL), seed
        scored = rows[rows[:, 1] == 1]
        assert metric.value(scored[::2]) == pytest.approx(np.mean(expected[::2]), abs=EQUAL)


def test_ranks_are_the_same_counted_and_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and many relevant samples, with equal cosines among relevant and irrelevant ones."""
    rng = np.random.default_rng(4)
    labels, embeddings = rng.integers(0, 4, 60), rng.integers(-2, 3, (60, 3)).astype(np.float64)
    found = []
    for few in (0, 60):
        monkeypatch.setattr(retrieval, "FEW_RELEVANT", few)
        found.append([metric_of(name, k=k).rows(embeddings, labels, None) for name, k, _ in RANKED.values()])
    np.testing.assert_array_equal(*found)


def test_queries_search_documents_alone() -> None:
    """Roles: the nearest sample of the query's group is a query, and does not count; the document is third of three."""
    embeddings = np.array([[1.0, 0.0], [1.0, 0.01], [0.8, 0.6], [0.9, 0.3], [0.95, 0.1]])
    labels = np.array([[7, 1], [7, 1], [7, 0], [8, 0], [9, 0]])
    metric = metric_of("mrr")
    rows = metric.rows(embeddings, labels, None)
    np.testing.assert_allclose(rows, [[1 / 3, 1], [1 / 3, 1], [0, 0], [0, 0], [0, 0]])
    assert metric.value(rows) == pytest.approx(1 / 3)


def test_a_model_that_answers_everything_alike_finds_nothing() -> None:
    """Equal cosines rank irrelevant samples first, wherever the relevant one lies in the file."""
    labels = np.repeat(np.arange(10), 2)
    same = np.ones((20, 3))
    assert metric_of("recall_at_k", k=1).value(metric_of("recall_at_k", k=1).rows(same, labels, None)) == 0
    assert metric_of("mrr").value(metric_of("mrr").rows(same, labels, None)) == pytest.approx(1 / 19)
    broken = same.copy()
    broken[3] = np.nan
    assert math.isnan(metric_of("mrr").value(metric_of("mrr").rows(broken, labels, None)))


WORDS = np.array(
    ["the", "a", "cat", "dog", "sat", "ran", "on", "mat,", "of", "it.", "is", "was", "not", "big", "12", "3.5"]
)


def sentences(rng: Generator) -> tuple[Array, Array]:
    """Texts, and outputs in which a third of the words are others."""
    meant = [rng.choice(WORDS, rng.integers(0, 12)) for _ in range(N)]
    said = [
        np.where(rng.random(len(text)) < 0.3, rng.choice(WORDS, len(text)), text)[: rng.integers(1, 13)]
        for text in meant
    ]
    return np.array([" ".join(text) for text in said]), np.array([" ".join(text) for text in meant])


def test_texts_have_the_librarys_value() -> None:
    """BLEU of any selection of texts, ROUGE-L of each text, exact match."""
    scorer = RougeScorer(["rougeL"])
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        said, meant = sentences(rng)
        drawn = rng.integers(0, N, rng.integers(1, N + 1))
        bleu = metric_of("bleu")
        expected = BLEU().corpus_score(said[drawn].tolist(), [meant[drawn].tolist()]).score
        assert 100 * bleu.value(bleu.rows(said, meant, None)[drawn]) == pytest.approx(expected, abs=EQUAL), seed
        rouge = metric_of("rouge").rows(said, meant, None)[:, 0]
        each = [scorer.score(*pair)["rougeL"].fmeasure for pair in zip(meant.tolist(), said.tolist(), strict=True)]
        np.testing.assert_allclose(rouge, each, atol=EQUAL)
        match = metric_of("exact_match").rows(said, meant, None)
        assert match.mean() == pytest.approx(sk.accuracy_score(meant, said), abs=EQUAL)


def test_words_of_other_scripts_count_in_rouge() -> None:
    """The library's tokens are ASCII, so that all texts of another script would be equally bad."""
    assert rouge_l("кошка спит", "кошка ест") == pytest.approx(0.5)
    assert rouge_l("größe", "große") == 0.0


def test_class_indices_are_read_as_scores_are() -> None:
    """A model that takes the best class itself has the same value as its scores."""
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(N, 4, 5, 6)), cells((5, 6), 4)(rng)
    names: tuple[str, ...] = ("pixel_accuracy", "iou", "dice")
    for name in names:
        metric = metric_of(name)
        values = [metric.value(metric.rows(one, labels, None)) for one in (scores, scores.argmax(1).astype(np.uint8))]
        assert values[0] == pytest.approx(values[1], abs=1e-12)
    with pytest.raises(JobError, match="a class index 300 in the output"):
        metric_of("iou").rows(np.full((N, 5, 6), 300), labels, None)


FLOATS = "float32"


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "options", "words"),
    [
        ("token_accuracy", FLOATS, (8, 5), {}, "(samples, tokens, classes)"),
        ("token_accuracy", "str", (8,), {}, "(samples, tokens, classes)"),
        ("pixel_accuracy", FLOATS, (8, 1, 4, 6), {}, "`metric_threshold`"),
        ("iou", FLOATS, (8, 3, 3, 3), {}, "differs from the size of the map"),
        ("iou", FLOATS, (8,), {"threshold": 0.0}, "scores (n, classes, ...)"),
        ("dice", FLOATS, (8, 4), {}, "`metric_threshold`"),
        ("f1_multilabel", FLOATS, (8, 4), {}, "`metric_threshold`"),
        ("f1_multilabel", FLOATS, (8,), {"threshold": 0.0}, "(samples, labels)"),
        ("pr_auc", FLOATS, (8, 4, 4), {}, "at least 2 classes"),
        ("log_loss", FLOATS, (8, 4, 4), {"scores": "logits"}, "(samples, classes)"),
        ("ece", "int64", (8, 4), {"scores": "logits"}, "(samples, classes)"),
        ("ndcg", FLOATS, (8, 1), {}, "embeddings"),
        ("mrr", FLOATS, (8, 4, 4), {}, "embeddings"),
        ("bleu", FLOATS, (8, 4), {}, "token ids (samples, tokens)"),
        ("exact_match", FLOATS, (8,), {}, "text (samples,)"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(
    name: str, dtype: str, shape: tuple[int, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobError) as caught:
        metric_of(name, **options).expects(TensorSpec("y", dtype, ("n", *shape[1:])), shape)
    assert words in caught.value.expected and repr(name) in caught.value.found


MAP, IDS = (8, 4, 5, 6), np.arange(8)


@pytest.mark.parametrize(
    ("name", "shape", "labels", "words"),
    [
        ("iou", MAP, np.zeros((8, 4, 5), int), "integers of shape (8, 5, 6) or (8, 4, 5)"),
        ("iou", MAP, np.full((8, 5, 6), 255), "such as 255"),
        ("iou", MAP, np.full((8, 5, 6), -100), "-100 everywhere"),
        ("iou", MAP, np.zeros((8, 5, 6)), "float64 of shape"),
        ("iou", MAP, np.zeros((8, 5), int), "integers of shape"),
        ("token_accuracy", (8, 5, 3), np.full((8, 5), 3), "such as 3"),
        ("f1_multilabel", (8, 4), np.full((8, 4), 2), "other than 0 and 1"),
        ("f1_multilabel", (8, 4), np.zeros(8, int), "4 labels"),
        ("mrr", (8, 4), IDS, "no query a relevant sample"),
        ("mrr", (8, 4), np.zeros((8, 2), int) + 3, "roles [3]"),
        ("mrr", (8, 4), np.c_[IDS // 2, np.ones(8, int)], "no query a relevant sample"),
        ("mrr", (8, 4), IDS / 2, "one integer or text per sample"),
    ],
)
def test_labels_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], labels: Array, words: str) -> None:
    spec = metric_of(name, 0.0).expects(TensorSpec("y", FLOATS, ("n", *shape[1:])), shape)
    if words.startswith("integers of shape (8, 5, 6)"):
        spec = metric_of(name).expects(TensorSpec("y", FLOATS, ("n", *shape[1:])), shape)
        labels = labels[:, :, :3]
    with pytest.raises(DataError) as caught:
        check_labels(labels, spec, data="e.npz", label="label", metric=name)
    assert words in f"{caught.value.found} {caught.value.expected}"


def test_improbable_rise_of_calibration_error_is_not_missed() -> None:
    """Gaps of both signs cancel in |h| - |g|, and the sum of |h - g| is never less."""
    rng = np.random.default_rng(3)
    metric = metric_of("ece", scores="probabilities")
    assert metric.drop_at_most is not None
    for _ in range(20):
        rows = [np.column_stack([rng.random(60), rng.integers(0, 2, 60)]) for _ in range(2)]
        bound = metric.drop_at_most(rows[0], None)(*rows)
        assert bound >= metric.value(rows[1]) - metric.value(rows[0]) - 1e-12
        assert metric.drop_at_most(rows[0], None)(rows[0], rows[0]) == 0.0

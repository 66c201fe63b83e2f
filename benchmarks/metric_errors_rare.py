"""How often a variant that loses exactly the tolerance passes where few of the samples decide, by simulation, for each metric.

    python benchmarks/metric_errors_rare.py

Of a population, a small share of samples can move the metric (a rare class, rare words, samples that are hard), and the variant
answers a fifth of these wrong. An experiment draws n samples with replacement, of which 5, 15 or 50 on average decide. All by
the functions that a run is judged with. A cell ends once the upper end of the interval of its share is within `ENOUGH`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from figures import earlier, print_rows, save, share
from metric_errors_draws import Array, Drawn, metric_of, rows_of

from tasks.measure.metrics.detection import COLUMNS
from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.user_metric import user_metric
from validators.job.metric_facts import METRICS

CONFIDENCE, LOST = 0.95, 0.2
SAMPLES, DECIDING = (40, 300, 1000, 2000), (5, 15, 50)
POPULATION, LARGE = 20_000, 60_000
# Upper end of the 95 % interval of a cell's share at which it ends, after so many experiments at least and at most.
ENOUGH, LEAST, MOST = 0.08, 200, 2000


def binary(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """One score a sample; the positives are rare. As many negatives as positives are lost."""
    labels = (rng.random(n) < part).astype(np.int64)
    before = np.where(labels == 1, 2.0, -2.0) + 0.5 * rng.normal(size=n)
    lost = rng.random(n) < np.where(labels == 1, LOST, LOST * part)
    after = np.where(lost, -before, before + 0.05 * rng.normal(size=n))
    return labels, before[:, None], after[:, None]


def classes(*, rare_class: bool) -> Callable[[np.random.Generator, int, float], Drawn]:
    """Eight classes: the samples that decide are a class, or any."""

    def draw(rng: np.random.Generator, n: int, part: float) -> Drawn:
        decide = rng.random(n) < part
        labels = rng.integers(0, 7, n)
        labels[decide & rare_class] = 7
        before = 4 * np.eye(8)[labels] + 0.8 * rng.normal(size=(n, 8))
        lost = decide & (rng.random(n) < LOST)
        after = before.copy()
        after[lost] = 4 * np.eye(8)[(labels[lost] + 1) % 7] + 0.8 * rng.normal(size=(lost.sum(), 8))
        return labels, before, after

    return draw


def labels_of_text(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Five labels, of which the first is rare."""
    labels = (rng.random((n, 5)) < np.array([part, 0.3, 0.3, 0.3, 0.3])).astype(np.int64)
    before = 3.0 * labels - 1.5 + 0.3 * rng.normal(size=labels.shape)
    after = before.copy()
    lost = (labels[:, 0] == 1) & (rng.random(n) < LOST)
    after[lost] = -np.abs(after[lost])
    return labels, before, after


def cells(*, first: bool, rare_class: bool) -> Callable[[np.random.Generator, int, float], Drawn]:
    """Eight cells of three classes, of which the third is rare; half the cells of a lost sample are wrong."""

    def draw(rng: np.random.Generator, n: int, part: float) -> Drawn:
        labels, decide = rng.integers(0, 2, (n, 8)), rng.random(n) < part
        if rare_class:
            labels[decide, :4] = 2
        before = 4 * np.eye(3)[labels] + 0.5 * rng.normal(size=(n, 8, 3))
        after = before.copy()
        lost = decide & (rng.random(n) < LOST)
        after[lost, :4] = 4 * np.eye(3)[1 - np.minimum(labels[lost, :4], 1)]
        outputs = (before, after) if not first else (np.moveaxis(each, -1, 1) for each in (before, after))
        return labels, *outputs

    return draw


def numbers(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """One value a sample, far off where it is lost."""
    labels = 3.0 + rng.normal(size=n)
    before = labels + 0.3 * rng.normal(size=n)
    lost = (rng.random(n) < part) & (rng.random(n) < LOST)
    return labels, before[:, None], (before + 3 * lost * rng.normal(size=n))[:, None]


def vectors(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Embeddings of four dimensions, each lost one in another direction."""
    labels = rng.normal(size=(n, 4))
    before = labels + 0.2 * rng.normal(size=(n, 4))
    lost = (rng.random(n) < part) & (rng.random(n) < LOST)
    return labels, before, np.where(lost[:, None], rng.normal(size=(n, 4)), before)


def groups(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Embeddings in pairs; those that are lost lie anywhere."""
    labels = np.repeat(np.arange(n // 2), 2)
    before = 3 * rng.normal(size=(n // 2, 16))[labels] + rng.normal(size=(len(labels), 16))
    lost = np.repeat((rng.random(n // 2) < part) & (rng.random(n // 2) < LOST), 2)
    return labels, before, np.where(lost[:, None], 3 * rng.normal(size=before.shape), before)


def texts(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Texts of eight words, of which a lost one has half wrong; one in ten is wrong already."""
    words = np.array([f"w{number}" for number in range(200)])
    meant = rng.choice(words, (n, 8))
    before = np.where((rng.random((n, 1)) < 0.1) & (rng.random((n, 8)) < 0.3), "none", meant)
    lost = (rng.random(n) < part) & (rng.random(n) < LOST)
    after = np.where(lost[:, None] & (np.arange(8) < 4), "other", before)
    labels, *outputs = (np.array([" ".join(text) for text in group]) for group in (meant, before, after))
    return labels, outputs[0], outputs[1]


def boxes(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Three boxes of two frequent classes, or one of a rare class, which is missed where it is lost."""
    decide = rng.random(n) < part
    kind = np.where(decide[:, None], np.array([2, -1, -1]), rng.integers(0, 2, (n, 3))).astype(np.float64)
    corner = rng.uniform(0, 80, (n, 3, 2))
    true = np.concatenate([corner, corner + 20, kind[..., None]], axis=2)
    labels = np.where(kind[..., None] >= 0, true, np.nan)
    found = np.zeros((n, 3, COLUMNS))
    found[..., :4] = true[..., :4] + 0.5 * rng.normal(size=(n, 3, 4))
    found[..., 4], found[..., 5] = rng.random((n, 3)), kind
    after = found.copy()
    after[..., 4] += 0.01 * rng.normal(size=(n, 3))
    after[decide & (rng.random(n) < LOST), :, :4] += 40
    return labels, found, after


def losses(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Losses of windows, larger where they are lost."""
    before = 2 + 0.3 * rng.normal(size=n)
    return before, before, before + 2.0 * ((rng.random(n) < part) & (rng.random(n) < LOST))


def answers(rng: np.random.Generator, n: int, part: float) -> Drawn:
    """Answers of a language model, right or wrong."""
    before = (rng.random(n) < 0.9).astype(np.float64)
    return before, before, before * ~((rng.random(n) < part) & (rng.random(n) < LOST))


def recall(outputs: Array, labels: Array) -> float:
    """A user's function that returns one number."""
    return float((outputs[labels == 1, 0] > 0).mean())


Draw = Callable[[np.random.Generator, int, float], Drawn]
DRAWS: dict[str, Draw] = {
    **dict.fromkeys(("f1_binary", "precision_binary", "recall_binary", "auroc", "pr_auc"), binary),
    **dict.fromkeys(("accuracy", "top5", "agreement", "log_loss", "ece"), classes(rare_class=False)),
    "f1_macro": classes(rare_class=True),
    **dict.fromkeys(("f1_multilabel", "f1_multilabel_micro"), labels_of_text),
    "token_accuracy": cells(first=False, rare_class=False),
    "pixel_accuracy": cells(first=True, rare_class=False),
    **dict.fromkeys(("iou", "dice"), cells(first=True, rare_class=True)),
    **dict.fromkeys(("mse", "rmse", "mae", "mape", "r2", "spearman"), numbers),
    "cosine": vectors,
    **dict.fromkeys(("recall_at_k", "ndcg", "mrr"), groups),
    **dict.fromkeys(("wer", "cer", "exact_match", "bleu", "rouge"), texts),
    **dict.fromkeys(("map", "map50"), boxes),
    "perplexity": losses,
    "greedy_match": answers,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "log_loss": {"scores": "logits"},
    "ece": {"scores": "logits"},
    **{name: {"k": 1} for name in ("recall_at_k", "ndcg", "mrr")},
}
# Their rows are ranks among the samples of the run.
RANKED = ("auroc", "pr_auc", "spearman")
SLOW = ("wer", "cer", "bleu", "rouge", "exact_match", "map", "map50")


def metrics() -> dict[str, tuple[Metric, Draw]]:
    """Every metric of the catalogue that has a drop, and a function of the user."""
    found = {name: (metric_of(name, **OPTIONS.get(name, {})), DRAWS[name]) for name in METRICS if name in DRAWS}
    own = user_metric("own.recall", recall, higher_is_better=True, version="")
    return found | {"a function that returns one number": (own, binary)}


def cell(name: str, metric: Metric, draw: Draw, n: int, deciding: int, seed: int) -> dict[str, Any]:
    rng, part, start = np.random.default_rng(seed), deciding / n, time.perf_counter()
    anew = draw is groups
    population = draw(rng, 2 * n if anew else POPULATION if name in SLOW else LARGE, part)
    labels, *outputs = population
    before, after = rows_of(metric, population)
    sign = 1 if metric.higher_is_better else -1
    truth = sign * (metric.value(before) - metric.value(after))
    if name == "perplexity":
        truth = float((after - before).mean())
    if anew:
        means = [np.subtract(*(metric.value(rows) for rows in rows_of(metric, draw(rng, n, part)))) for _ in range(400)]
        truth = float(np.mean([float(each) for each in means]))
    passed = none = done = 0
    while done < LEAST or (done < MOST and share(passed, done)["interval"][1] > ENOUGH):
        for _ in range(100):
            chosen = rng.integers(0, len(before), n)
            clusters = None
            if name in RANKED:
                rows = rows_of(metric, (labels[chosen], outputs[0][chosen], outputs[1][chosen]))
            elif not anew:
                rows = before[chosen], after[chosen]
            else:
                again = draw(rng, n, part)
                rows, clusters = rows_of(metric, again), again[0]
            drop, _ = estimate_drop(metric, *rows, CONFIDENCE, seed=0, clusters=clusters)
            none += drop.high is None
            passed += drop.high is not None and drop.high <= truth
        done += 100
    return {
        "metric": name,
        "n": n,
        "deciding": deciding,
        "experiments": done,
        "drop": truth,
        "passes": share(passed, done),
        "no_interval": none / done,
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(
    only: Annotated[list[str] | None, typer.Option(help="Metrics to simulate, beside figures kept of others.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first cell.")] = 1,
    name: Annotated[str, typer.Option(help="Name of the results.")] = "metric_errors_rare",
) -> None:
    """Simulate all cells; those that are in the file already stay."""
    found = earlier(name).get("cells", [])
    known = {(one["metric"], one["n"], one["deciding"]) for one in found}
    for number, (metric_name, (metric, draw)) in enumerate(metrics().items()):
        for n in SAMPLES:
            for deciding in DECIDING:
                if (only and metric_name not in only) or (metric_name, n, deciding) in known or deciding >= n:
                    continue
                found.append(cell(metric_name, metric, draw, n, deciding, seed + 1000 * number + n + deciding))
                print_rows(found[-1:])
                save(name, {"seed": seed, "confidence": CONFIDENCE, "cells": found}, quiet=True)


if __name__ == "__main__":
    typer.run(main)

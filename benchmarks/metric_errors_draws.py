"""Populations with a known drop for the metrics of one task each: outputs of a source and of a noisier variant, and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.detection import COLUMNS
from tasks.measure.metrics.metric import Metric, Rows
from tasks.measure.metrics.texts import make_decoder
from validators.job.job_data import TextDecoding

Array = NDArray[Any]
# Labels, and outputs of the source and of the variant, of so many samples.
Drawn = tuple[Array, Array, Array]


def metric_of(name: str, **options: Any) -> Metric:
    """The metric by its name, with options of a job."""
    return named_metric(name, Options(options.pop("threshold", 0.0), make_decoder(TextDecoding()), **options))


def rows_of(metric: Metric, drawn: Drawn) -> tuple[Rows, Rows]:
    """The rows of source and variant."""
    labels, before, after = drawn
    return metric.rows(before, labels, before), metric.rows(after, labels, before)


def binary(positive: float, apart: float, noise: float) -> Callable[[np.random.Generator, int], Drawn]:
    """One score a sample: normal, and `apart` higher for the share that is positive."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        labels = (rng.random(n) < positive).astype(np.int64)
        before = apart * labels + rng.normal(size=n)
        return labels, before, before + noise * rng.normal(size=n)

    return draw


def classes(temperature: float, noise: float, more: float = 1.0) -> Callable[[np.random.Generator, int], Drawn]:
    """Five classes: labels are drawn from the softmax of `logits`; the source answers `logits * temperature`."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        logits = 2.0 * rng.normal(size=(n, 5))
        labels = (logits + rng.gumbel(size=(n, 5))).argmax(axis=1)
        before = temperature * logits
        return labels, before, more * before + noise * rng.normal(size=(n, 5))

    return draw


def multilabel(rng: np.random.Generator, n: int) -> Drawn:
    """Ten labels, from rare to frequent."""
    labels = (rng.random((n, 10)) < np.geomspace(0.02, 0.4, 10)).astype(np.int64)
    before = 3.0 * labels - 1.5 + rng.normal(size=(n, 10))
    return labels, before, before + 0.35 * rng.normal(size=(n, 10))


def tokens(rng: np.random.Generator, n: int) -> Drawn:
    """Texts of 4 to 32 tokens of five classes; tokens of a text are alike in difficulty."""
    labels = rng.integers(0, 5, (n, 32))
    labels[np.arange(32) >= rng.integers(4, 33, n)[:, None]] = -100
    skill = 2.0 + rng.normal(size=(n, 1, 1))
    before = skill * np.eye(5)[np.clip(labels, 0, 4)] + rng.normal(size=(n, 32, 5))
    spoiled = (rng.random(n) < 0.2)[:, None, None]
    return labels, before, before + np.where(spoiled, 0.9, 0.1) * rng.normal(size=before.shape)


def maps(rng: np.random.Generator, n: int) -> Drawn:
    """Maps of 12 x 12 pixels: a background and one object of three classes, of which one is in 4 % of the maps."""
    labels = np.zeros((n, 12, 12), np.int64)
    kind = rng.choice([1, 2, 3], n, p=[0.66, 0.30, 0.04])
    corner, size = rng.integers(0, 6, (n, 2)), rng.integers(3, 7, (n, 2))
    row, column = np.mgrid[:12, :12]
    inside = np.ones((n, 12, 12), np.bool_)
    for axis, place in enumerate((row, column)):
        first = corner[:, axis, None, None]
        inside &= (place >= first) & (place < first + size[:, axis, None, None])
    labels[inside] = np.broadcast_to(kind[:, None, None], labels.shape)[inside]
    skill = 2.5 + 0.7 * rng.normal(size=(n, 1, 1, 1))
    before = skill * np.moveaxis(np.eye(4)[labels], -1, 1) + rng.normal(size=(n, 4, 12, 12))
    spoiled = (rng.random(n) < 0.15)[:, None, None, None]
    return labels, before, before + np.where(spoiled, 1.1, 0.1) * rng.normal(size=before.shape)


def masks(rng: np.random.Generator, n: int) -> Drawn:
    """One value a pixel: an object against the background."""
    labels, before, after = maps(rng, n)
    return (labels > 0).astype(np.int64), *(array[:, 1:].max(axis=1) - array[:, 0] for array in (before, after))


def texts(share: float) -> Callable[[np.random.Generator, int], Drawn]:
    """Sentences of 6 to 24 words, of which outputs change a quarter, and the variant more in `share` of the texts."""
    words = np.array([f"w{number}" for number in range(500)])
    odds = 1 / np.arange(1, 501)
    odds /= odds.sum()

    def spoil(rng: np.random.Generator, text: Array, rate: float) -> Array:
        return np.where(rng.random(len(text)) < rate, rng.choice(words, len(text), p=odds), text)

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        meant = [rng.choice(words, rng.integers(6, 25), p=odds) for _ in range(n)]
        before = [spoil(rng, text, 0.25 * rng.random()) for text in meant]
        after = [spoil(rng, text, 0.3) if rng.random() < share else text for text in before]
        labels, *outputs = (np.array([" ".join(text) for text in group]) for group in (meant, before, after))
        return labels, outputs[0], outputs[1]

    return draw


def boxes(rng: np.random.Generator, n: int) -> Drawn:
    """One to five true boxes of three classes, of which one has 5 %; detections are these, moved, and a few false ones."""
    most, false = 5, 3
    labels = np.full((n, most, 5), np.nan)
    corner, size = rng.uniform(0, 80, (n, most, 2)), rng.uniform(8, 30, (n, most, 2))
    used = np.arange(most) < rng.integers(1, most + 1, n)[:, None]
    kind = rng.choice(3, (n, most), p=[0.6, 0.35, 0.05]).astype(np.float64)
    true = np.concatenate([corner, corner + size, kind[..., None]], axis=2)
    labels[used] = true[used]
    wrong = rng.uniform(0, 80, (n, false, 2))
    others = np.concatenate([wrong, wrong + 15, rng.integers(0, 3, (n, false, 1))], axis=2)
    found = np.empty((n, most + false, COLUMNS))
    found[..., :4] = np.concatenate([true, others], axis=1)[..., :4]
    found[..., 5] = np.where(
        np.c_[used, np.ones((n, false), np.bool_)], np.concatenate([true, others], axis=1)[..., 4], -1.0
    )
    found[..., 4] = np.c_[1.5 + rng.normal(size=(n, most)), rng.normal(size=(n, false))]
    before, after = found.copy(), found.copy()
    moved = rng.normal(size=(n, most, 4))
    before[:, :most, :4] += 1.2 * moved
    spoiled = np.where(rng.random(n) < 0.3, 0.9, 0.1)[:, None, None]
    after[:, :most, :4] = before[:, :most, :4] + spoiled * rng.normal(size=(n, most, 4))
    after[..., 4] += 0.3 * rng.normal(size=after[..., 4].shape)
    return labels, before, after


def embeddings(size: int, noise: float) -> Callable[[np.random.Generator, int], Drawn]:
    """Groups of `size` embeddings around a center each, in 16 dimensions."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        labels = np.repeat(np.arange(n // size), size)
        before = rng.normal(size=(n // size, 16))[labels] + 0.8 * rng.normal(size=(len(labels), 16))
        return labels, before, before + noise * rng.normal(size=before.shape)

    return draw

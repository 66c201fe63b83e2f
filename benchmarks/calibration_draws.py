"""What the benchmarks judge: clean draws from a demo's pool, and draws with a planted drift of a given strength."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models.pools import Pool, image_pool, other_domain, text_pool
from numpy.typing import NDArray

from tasks.demo.splits import split_indices
from tasks.measure.activations import ActivationWatch, open_tapped, view_samples
from tasks.measure.inventory import usable_cores
from tasks.measure.taps import find_taps
from validators.calibration.judge import judge_calibration
from validators.digests import digest_samples
from validators.job.job_data import CalibrationBounds
from validators.records.run import CalibrationVerdict, SessionSettings
from validators.samples.datasets import Samples

BOUNDS = CalibrationBounds()
CALIBRATION, EVALUATION = 128, 2000
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
# A random draw takes a fifth from the shortest fifth.
SHORT_SHARES = (0.3, 0.4, 0.5, 0.7, 1.0)
FACTORS = (1.02, 1.05, 1.1, 1.2, 1.5)

Rows = NDArray[np.intp]
# From the pool, the rows that are free for calibration in random order, and a generator.
Plant = Callable[[Pool, Rows, np.random.Generator], Samples]


@dataclass(frozen=True)
class Drift:
    """A way in which calibration data goes wrong, at some strengths; `title` is the axis of its picture."""

    name: str
    title: str
    make: Callable[[Path], Pool]
    strengths: tuple[float, ...]
    plant: Callable[[float], Plant]


class Judge:
    """A pool, its model in one session, and verdicts of the whole check, whose pages are thrown away."""

    def __init__(self, pool: Pool, watch: ActivationWatch) -> None:
        self.pool, self._watch = pool, watch

    def split(self, seed: int, size: int, *, stratified: bool = False) -> tuple[Rows, Samples, Rows]:
        """Rows for calibration, evaluation samples, and the rows that are left; all disjoint."""
        n = len(self.pool.labels)
        evaluation = min(EVALUATION, n - 2 * size)
        if stratified:  # as the demos split
            parts = split_indices(self.pool.labels, n - evaluation, size, evaluation, seed)
            left = np.setdiff1d(parts.train, parts.calibration)
            return parts.calibration, self.pool.take(parts.evaluation), left
        order = np.random.default_rng(seed).permutation(n)
        return order[:size], self.pool.take(order[size : size + evaluation]), order[size + evaluation :]

    def split_distinct(self, seed: int, size: int) -> tuple[Rows, Samples]:
        """Rows for calibration, distinct and none of them a copy of an evaluation sample, and evaluation samples, as drawn."""
        order = np.random.default_rng(seed).permutation(len(self.pool.labels))
        evaluation, rest = order[:EVALUATION], order[EVALUATION:]
        known = set(digest_samples({name: array[evaluation] for name, array in self.pool.inputs.items()}))
        rows: list[int] = []
        for row, digest in zip(rest, digest_samples({n: a[rest] for n, a in self.pool.inputs.items()}), strict=True):
            if digest not in known and len(rows) < size:
                known.add(digest)
                rows.append(int(row))
        return np.array(rows), self.pool.take(evaluation)

    def __call__(self, calibration: Samples, evaluation: Samples, seed: int) -> CalibrationVerdict:
        view = view_samples(
            self._watch, calibration, evaluation, most=BOUNDS.model_samples, fixed_batch=None, seed=seed
        )
        with tempfile.TemporaryDirectory() as folder:
            return judge_calibration(calibration, evaluation, None, view, BOUNDS, Path(folder), seed=seed)


def short_texts(tokens: int) -> Callable[[Path], Pool]:
    """A maker of the reviews' pool with `tokens` consecutive tokens of each review in place of the whole; many repeat."""

    def make(folder: Path) -> Pool:
        pool = text_pool(folder)
        ids, mask = pool.inputs["input_ids"], pool.inputs["attention_mask"]
        lengths = mask.sum(axis=1) - 2  # without the first and the last token, which mark the text's ends
        whole = np.flatnonzero(lengths >= tokens)
        starts = np.random.default_rng(0).integers(1, lengths[whole] - tokens + 2)
        short = np.zeros_like(ids[whole])
        short[:, 0] = ids[whole, 0]
        for place in range(tokens):
            short[:, 1 + place] = ids[whole, starts + place]
        short[:, 1 + tokens] = ids[whole, lengths[whole] + 1]
        inputs = {"input_ids": short, "attention_mask": (np.arange(ids.shape[1]) < tokens + 2).astype(mask.dtype)}
        inputs["attention_mask"] = np.broadcast_to(inputs["attention_mask"], short.shape).copy()
        return Pool(inputs, pool.labels[whole], pool.model, pool.output)

    return make


@contextmanager
def open_judge(make: Callable[[Path], Pool]) -> Iterator[Judge]:
    """A judge of the pool that `make` builds; its session lives until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        pool = make(Path(folder))
        settings = SessionSettings("CPUExecutionProvider", usable_cores())
        with open_tapped(pool.model, settings, lambda graph: find_taps(graph, pool.output, None)) as watch:
            yield Judge(pool, watch)


def _mix(domain: str) -> Callable[[float], Plant]:
    def of_share(share: float) -> Plant:
        # One of each text: copies would be caught as copies, which is not what is measured here.
        other: dict[str, NDArray[Any]] = other_domain(domain)
        first = np.unique(other["input_ids"], axis=0, return_index=True)[1]
        count = round(share * CALIBRATION)

        def plant(pool: Pool, free: Rows, rng: np.random.Generator) -> Samples:
            chosen, kept = rng.choice(first, count, replace=False), free[: CALIBRATION - count]
            mixed = {name: np.concatenate([array[kept], other[name][chosen]]) for name, array in pool.inputs.items()}
            # The labels stay those of reviews: they are not what drifts.
            return pool.take(free[:CALIBRATION], **mixed)

        return plant

    return of_share


def _shorten(share: float) -> Plant:
    def plant(pool: Pool, free: Rows, rng: np.random.Generator) -> Samples:
        by_length = free[np.argsort(pool.inputs["attention_mask"][free].sum(axis=1), kind="stable")]
        short, longer = np.split(by_length, [len(free) // 5])
        count = round(share * CALIBRATION)
        rows = [rng.choice(short, count, replace=False), rng.choice(longer, CALIBRATION - count, replace=False)]
        return pool.take(np.concatenate(rows))

    return plant


def _scale(factor: float) -> Plant:
    def plant(pool: Pool, free: Rows, _: np.random.Generator) -> Samples:
        rows = free[:CALIBRATION]
        return pool.take(rows, image=pool.inputs["image"][rows] * np.float32(factor))

    return plant


DRIFTS = (
    Drift("tweets", "share of tweets", text_pool, SHARES, _mix("tweets")),
    Drift("amazon", "share of product reviews", text_pool, SHARES, _mix("amazonReviewSnippets")),
    Drift("nyt", "share of editorials", text_pool, SHARES, _mix("nytEditorialSnippets")),
    Drift("short", "share from the shortest fifth", text_pool, SHORT_SHARES, _shorten),
    Drift("scale", "digits multiplied by", image_pool, FACTORS, _scale),
)

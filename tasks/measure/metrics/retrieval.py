"""Retrieval by embeddings: every query ranks the other samples by cosine, and those with its label are relevant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, Vector, as_rows, flat, misfit, ratio_of_sums
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

RetrievalName = Literal["recall_at_k", "ndcg", "mrr"]
# Queries whose cosines with all samples are in memory at once.
QUERIES_AT_ONCE = 128
# Cosines are equal if they agree to this many decimals: sums in another order differ by less.
DECIMALS = 12
# Up to this many relevant samples, counting the cosines above each is faster than sorting all.
FEW_RELEVANT = 8

# Score of a query from the ranks of its relevant samples, from 1 and ascending, and the cutoff (Inf for none).
Score = Callable[[Vector, float], float]


def _discounted_gain(ranks: Vector, k: float) -> float:
    """Return the normalized discounted cumulative gain (K. Järvelin and J. Kekäläinen, ACM TOIS 20, 2002), gains being 0 or
    1."""
    best = np.arange(1.0, min(len(ranks), k) + 1)
    return float((1 / np.log2(ranks[ranks <= k] + 1)).sum() / (1 / np.log2(best + 1)).sum())


_SCORES: dict[RetrievalName, Score] = {
    "recall_at_k": lambda ranks, k: float((ranks <= k).mean()),
    "ndcg": _discounted_gain,
    "mrr": lambda ranks, k: float(1 / ranks[0]) if ranks[0] <= k else 0.0,
}


def retrieval(name: RetrievalName, k: int | None) -> Metric:
    """Return the metric of a ranking of embeddings; only the first `k` of each ranking count, None for all of them.

    Labels are groups `(n,)`: every sample is a query among all others, and the samples of its group are relevant. Or they are
    pairs (group, role) `(n, 2)`: samples of role 1 are queries, which rank the samples of role 0, the documents. A sample
    without a relevant one is no query; others still have to be ranked above it.

    Rows are (score of the query, 1), or (0, 0) for a sample that is no query; the metric is the ratio of their sums. Irrelevant
    samples come before relevant ones of equal cosine, so that a model that answers everything alike has no success.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        scores, counted = np.zeros(len(outputs)), np.zeros(len(outputs))
        for query, ranks in _ranks(flat(outputs), labels):
            scores[query] = _SCORES[name](ranks, k or np.inf) if np.isfinite(ranks).all() else np.nan
            counted[query] = 1
        return as_rows(scores, counted)

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) != 2 or shape[1] < 2 or not output.dtype.startswith("float"):
            raise misfit(name, output, shape, "embeddings of shape (samples, dimensions), 2 dimensions or more")
        return LabelSpec("groups")

    return ratio_of_sums(name, rows, expects, version=str(k), scope="set")


def _ranks(embeddings: NDArray[np.float64], labels: Labels) -> Iterator[tuple[int, Vector]]:
    """Yield each query with the ranks of its relevant samples, from 1 and ascending; NaN if an embedding is not finite."""
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinite values give NaN, which fails every gate
        units = embeddings / np.where(lengths == 0, 1.0, lengths)
    groups = np.unique(labels if labels.ndim == 1 else labels[:, 0], return_inverse=True)[1].reshape(-1)
    has_roles = labels.ndim == 2
    is_query = labels[:, 1] == 1 if has_roles else np.ones(len(labels), np.bool_)
    documents = np.flatnonzero(~is_query) if has_roles else np.arange(len(labels))
    queries, groups_of_documents = np.flatnonzero(is_query), groups[documents]
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[start : start + QUERIES_AT_ONCE]
        cosines = (units[part] @ units[documents].T).round(DECIMALS)
        is_finite = [bool(np.isfinite(row).all()) for row in cosines]
        for query, row, is_ranked in zip(part, cosines, is_finite, strict=True):
            relevant = np.flatnonzero((groups_of_documents == groups[query]) & (documents != query))
            if len(relevant):
                # A query is no document of its own: no cosine is below -2.
                others = row if has_roles else np.where(documents == query, -2.0, row)
                yield int(query), _ranks_of(others, relevant) if is_ranked else np.full(1, np.nan)


def _ranks_of(cosines: Vector, relevant: NDArray[np.intp]) -> Vector:
    """Return the ranks of the relevant cosines, by their indices, among all, ascending.

    >>> _ranks_of(np.array([0.5, 0.9, 0.5, 0.1]), np.array([0, 1]))
    array([1., 3.])
    """
    best_first = np.sort(cosines[relevant])[::-1]
    if len(relevant) <= FEW_RELEVANT:
        above = np.array([np.count_nonzero(cosines >= one) for one in best_first])
    else:
        above = len(cosines) - np.searchsorted(np.sort(cosines), best_first, side="left")
    # Relevant cosines that are equal count by their order, irrelevant ones before them.
    relevant_above = np.searchsorted(-best_first, -best_first, side="right")
    return np.asarray(above - relevant_above + np.arange(1, len(best_first) + 1), np.float64)

"""Surprisal of a sample's tokens, from their frequencies in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from validators.samples.drift import Vector

# Added to the count of each token (H. Jeffreys' prior): a token missing from the reference is rare, not impossible.
PRIOR_COUNT = 0.5
SURPRISAL_DECIMALS = 3


def measure_tokens(calibration: NDArray[Any], reference: NDArray[Any]) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Return two statistics of each sample of an index input (integers of shape `(n, ...)` and `(m, ...)`; 0 is padding).

    The results are float64 of shapes `(n,)` and `(m,)`. `surprisal` is the mean over the sample's tokens of -ln p, where p is
    the token's share of all tokens of the reference: the cross-entropy of the sample under the reference's unigram model (C. D.
    Manning and H. Schütze, "Foundations of Statistical Natural Language Processing", 1999, section 2.2). `share of unseen
    tokens` is the share of tokens missing from the reference. Statistical tests need independent values: statistics per sample
    are independent, frequencies of single tokens are not, since sentences tie them together.

    A reference sample is measured by the tokens of the other reference samples. Its own tokens, and those of its copies, would
    make it look more usual than a calibration sample, which must not be in the reference. The remaining counts are scaled to
    the whole reference, and surprisal is rounded to 0.001. Otherwise, for texts so short that few values occur, the few
    excluded samples would shift every reference sample against every calibration sample. A sample without tokens has NaN.

    >>> one, other = measure_tokens(np.array([[5, 9]]), np.array([[5, 5], [5, 7]]))
    >>> one["share of unseen tokens"], other["share of unseen tokens"]
    (array([0.5]), array([0. , 0.5]))
    """
    tokens, places = np.unique(np.concatenate([calibration.reshape(-1), reference.reshape(-1)]), return_inverse=True)
    split = calibration.size
    padding = int(np.searchsorted(tokens, 0)) if 0 in tokens else -1
    ours = _count(places[:split].reshape(len(calibration), -1), len(tokens), padding)
    theirs = _count(places[split:].reshape(len(reference), -1), len(tokens), padding)
    totals = np.asarray(theirs.sum(axis=0), np.float64).ravel()
    prior = PRIOR_COUNT * (len(tokens) - (padding >= 0))
    copies = _copies(reference)
    scales = len(reference) / np.maximum(len(reference) - copies, 1)
    zeros, ones = np.zeros(len(calibration)), np.ones(len(calibration))
    return _measure(ours, totals, prior, zeros, ones), _measure(theirs, totals, prior, copies, scales)


def _copies(samples: NDArray[Any]) -> Vector:
    """Count how often each sample occurs among `samples`, itself included; shape `(m,)`."""
    _, places, counts = np.unique(samples.reshape(len(samples), -1), axis=0, return_inverse=True, return_counts=True)
    return counts[places.reshape(-1)].astype(np.float64)


def _count(places: NDArray[np.intp], tokens: int, padding: int) -> sparse.csr_array[Any]:
    """Count each token in each sample; shape `(n, tokens)`."""
    rows, columns = np.nonzero(places != padding)
    counts = sparse.coo_array((np.ones(len(rows)), (rows, places[rows, columns])), shape=(len(places), tokens))
    return sparse.csr_array(counts)


def _measure(
    counts: sparse.csr_array[Any], totals: Vector, prior: float, copies: Vector, scales: Vector
) -> dict[str, Vector]:
    """Return the two statistics of each sample, shape `(n,)`.

    `counts` has shape `(n, tokens)`, `totals` `(tokens,)`. `copies` (shape `(n,)`) counts the sample in the reference; `scales`
    (shape `(n,)`) is the factor from the rest of the reference to the whole.
    """
    lengths = np.asarray(counts.sum(axis=1), np.float64).ravel()
    entries = np.diff(counts.indptr)
    # Reference counts of each entry's token, and of all tokens, without the sample and its copies.
    known = totals[counts.indices] - counts.data * np.repeat(copies, entries)
    all_known = totals.sum() - np.repeat(lengths * copies, entries)
    scale = np.repeat(scales, entries)
    share = (scale * known + PRIOR_COUNT) / (scale * all_known + prior)

    def mean(values: Vector) -> Vector:
        weighted = sparse.csr_array((counts.data * values, counts.indices, counts.indptr), shape=counts.shape)
        with np.errstate(invalid="ignore"):
            return np.asarray(weighted.sum(axis=1)).ravel() / lengths

    return {
        "surprisal": np.round(mean(-np.log(share)), SURPRISAL_DECIMALS),
        "share of unseen tokens": mean((known == 0).astype(np.float64)),
    }

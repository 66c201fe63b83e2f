"""Surprisal of a sample's tokens, from their frequencies in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from validators.samples.drift import Vector

Folds = NDArray[np.intp]

# Added to the count of each token (H. Jeffreys' prior): a token missing from the reference is rare, not impossible.
PRIOR_COUNT = 0.5
# The same terms, summed in another order, differ by less.
SURPRISAL_DECIMALS = 6


def measure_tokens(
    calibration: NDArray[Any], reference: NDArray[Any], folds: Folds, reference_folds: Folds
) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Return two statistics of each sample of an index input (integers of shape `(n, ...)` and `(m, ...)`; 0 is padding).

    The results are float64 of shapes `(n,)` and `(m,)`. `surprisal` is the mean over the sample's tokens of -ln p, where p is
    the token's share of all tokens of the reference: the cross-entropy of the sample under the reference's unigram model (C. D.
    Manning and H. Schütze, "Foundations of Statistical Natural Language Processing", 1999, section 2.2). `share of unseen
    tokens` is the share of tokens missing from the reference. Statistical tests need independent values: statistics per sample
    are independent, frequencies of single tokens are not, since sentences tie them together. A sample without tokens has NaN.

    Counted in the whole reference, a reference sample would look more usual than a calibration sample, by its own tokens. So
    each sample, on either side, is measured by one half of the reference that it is not in: by the rows of the other fold (0 or
    1, shapes `(n,)` and `(m,)`). Within a fold, samples of one distribution are then exchangeable. Leaving out a sample's own
    tokens is no substitute: of few distinct tokens, every reference sample would differ a little from every calibration sample.

    >>> folds, reference_folds = np.array([0]), np.array([0, 1])
    >>> one, other = measure_tokens(np.array([[5, 9]]), np.array([[5, 5], [5, 7]]), folds, reference_folds)
    >>> one["share of unseen tokens"], other["share of unseen tokens"]
    (array([0.5]), array([0. , 0.5]))
    """
    tokens, places = np.unique(np.concatenate([calibration.reshape(-1), reference.reshape(-1)]), return_inverse=True)
    split = calibration.size
    padding = int(np.searchsorted(tokens, 0)) if 0 in tokens else -1
    ours = _count(places[:split].reshape(len(calibration), -1), len(tokens), padding)
    theirs = _count(places[split:].reshape(len(reference), -1), len(tokens), padding)
    totals = np.stack([np.asarray(theirs[reference_folds != fold].sum(axis=0), np.float64).ravel() for fold in (0, 1)])
    prior = PRIOR_COUNT * (len(tokens) - (padding >= 0))
    return _measure(ours, totals, prior, folds), _measure(theirs, totals, prior, reference_folds)


def _count(places: NDArray[np.intp], tokens: int, padding: int) -> sparse.csr_array[Any]:
    """Count each token in each sample; shape `(n, tokens)`."""
    rows, columns = np.nonzero(places != padding)
    counts = sparse.coo_array((np.ones(len(rows)), (rows, places[rows, columns])), shape=(len(places), tokens))
    return sparse.csr_array(counts)


def _measure(counts: sparse.csr_array[Any], totals: Vector, prior: float, folds: Folds) -> dict[str, Vector]:
    """Return the two statistics of each sample, shape `(n,)`.

    `counts` has shape `(n, tokens)`. `totals`, shape `(2, tokens)`, holds the counts by which the samples of each fold are
    measured; `folds` has shape `(n,)`.
    """
    lengths = np.asarray(counts.sum(axis=1), np.float64).ravel()
    fold_of_entry = np.repeat(folds, np.diff(counts.indptr))
    known = totals[fold_of_entry, counts.indices]
    share = (known + PRIOR_COUNT) / (totals.sum(axis=1)[fold_of_entry] + prior)

    def mean(values: Vector) -> Vector:
        weighted = sparse.csr_array((counts.data * values, counts.indices, counts.indptr), shape=counts.shape)
        with np.errstate(invalid="ignore"):
            return np.asarray(weighted.sum(axis=1)).ravel() / lengths

    return {
        "surprisal": np.round(mean(-np.log(share)), SURPRISAL_DECIMALS),
        "share of unseen tokens": mean((known == 0).astype(np.float64)),
    }

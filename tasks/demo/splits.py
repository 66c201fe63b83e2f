"""Split of the demos' samples: by a seeded permutation, with calibration stratified by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Split:
    """Indices of samples, int64. `calibration` is a subset of `train`; `evaluation` is disjoint from both."""

    train: Array
    calibration: Array
    evaluation: Array


def split_indices(
    label: Array, train_samples: int, calibration_samples: int, evaluation_samples: int, seed: int
) -> Split:
    """Split the samples of `label` (int64 [n]); calibration has the class proportions of the training part.

    `train_samples` is the maximum size of the training part, which is taken from the samples outside evaluation.

    >>> split = split_indices(np.array([0, 1] * 10), 10, 4, 8, seed=7)
    >>> len(split.train), len(split.calibration), len(split.evaluation)
    (10, 4, 8)
    """
    order = np.random.default_rng(seed).permutation(len(label))
    evaluation, train = order[:evaluation_samples], order[evaluation_samples:][:train_samples]
    return Split(train=train, calibration=train[_stratified(label[train], calibration_samples)], evaluation=evaluation)


def _stratified(label: Array, count: int) -> Array:
    """Return the ascending positions of `count` samples: the first ones of each class, in proportion, by largest remainder."""
    classes, sizes = np.unique(label, return_counts=True)
    exact = sizes * count / len(label)
    quota = np.floor(exact).astype(np.int64)
    quota[np.argsort(quota - exact, kind="stable")[: count - int(quota.sum())]] += 1
    chosen = [np.flatnonzero(label == value)[:size] for value, size in zip(classes, quota, strict=True)]
    return np.sort(np.concatenate(chosen))


def save_samples(path: Path, samples: Mapping[str, Array]) -> None:
    """Write a data file: an uncompressed `.npz` with one array per name, samples along axis 0."""
    arrays: dict[str, Any] = dict(samples)
    np.savez(path, **arrays)

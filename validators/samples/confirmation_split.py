"""Split of the evaluation samples: those that select a variant, and those reserved to confirm it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.samples.datasets import Samples


def confirmation_mask(samples: Samples, share: float, rows_per_unit: int) -> NDArray[np.bool_]:
    """Mark about `share` (0 to below 1) of the samples for confirmation; bool of shape `(n,)`.

    The sha256 of a sample's own inputs and label alone decides its side. Adding or removing samples therefore moves no other
    sample, equal samples are on the same side, and every run of every job agrees. `rows_per_unit` adjacent samples (the halves
    of a pair) form one unit and stay together. If samples have clusters, the cluster's key alone decides, so that no cluster is
    on both sides.

    Raises:
        DataError: the number of samples is not a multiple of `rows_per_unit`, or a unit is in two clusters.
    """
    n = len(samples)
    if n % rows_per_unit:
        raise DataError(
            found=f"{samples.file.path.name} has {n} samples",
            expected=f"a multiple of {rows_per_unit}: that many adjacent samples belong together",
            fix=f"write a multiple of {rows_per_unit} samples",
        )
    if samples.clusters is not None:
        _check_units(samples, samples.clusters, rows_per_unit)
    if share == 0:
        return np.zeros(n, np.bool_)
    if samples.clusters is not None:
        keys, places = np.unique(samples.clusters, return_inverse=True)
        sides = np.array([_fraction(hashlib.sha256(f"group {key}".encode())) < share for key in keys], np.bool_)
        return np.asarray(sides[places.reshape(-1)])
    kept = np.array([_place(samples, start, rows_per_unit) < share for start in range(0, n, rows_per_unit)], np.bool_)
    return np.repeat(kept, rows_per_unit)


def _place(samples: Samples, start: int, rows: int) -> float:
    """Return the digest of a unit as a fraction from 0 to 1."""
    digest = hashlib.sha256()
    for row in range(start, start + rows):
        for name, array in sorted(samples.inputs.items()):
            _add(digest, name, array, row)
        if samples.labels is not None:
            # No input's name is empty.
            _add(digest, "", samples.labels, row)
    return _fraction(digest)


def _fraction(digest: Any) -> float:
    return int.from_bytes(digest.digest()[:8], "big") / 2**64


def _check_units(samples: Samples, clusters: NDArray[Any], rows: int) -> None:
    units = clusters.reshape(-1, rows)
    split = np.flatnonzero((units != units[:, :1]).any(axis=1))
    if len(split):
        raise DataError(
            found=f"{samples.file.path.name}: samples {rows * split[0]} to {rows * split[0] + rows - 1} are a pair, but are in "
            f"different groups: {', '.join(str(key) for key in units[split[0]])}",
            expected="one group for both samples of a pair",
            fix="give both the same value in the array that `data.groups` names",
        )


def _add(digest: Any, name: str, array: NDArray[Any], row: int) -> None:
    """Add one sample of an array to the digest, with its name, dtype and shape so that different samples never collide."""
    if array.dtype.kind in "USO":
        # The dtype of text depends on the longest text of the file, hence on other samples.
        texts = [str(text) for text in np.asarray(array[row]).flat]
        digest.update(repr((name, "text", array.shape[1:], texts)).encode())
        return
    digest.update(repr((name, array.dtype.str, array.shape[1:])).encode())
    digest.update(array[row].tobytes())

"""Evaluation samples that belong together, and the split into those that select a variant and those that confirm it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.samples.datasets import Samples

# Samples recur by themselves in data of few values. They are copies if they recur this many times as often as they would
# if the two halves of a sample were independent.
BEYOND_CHANCE = 4


def cluster_samples(samples: Samples, rows_per_unit: int) -> tuple[NDArray[np.intp] | None, int]:
    """Return the cluster of each sample, shape `(n,)`, and the number of units that repeat another's inputs.

    Groups of the job (`samples.clusters`) are clusters; without groups, units (`rows_per_unit` adjacent samples, or a whole
    sequence) with equal inputs are. Groups of which one has at least half of its different units in the other become one
    cluster. The clusters are None if there are neither groups nor copies.

    Units of few values, such as one category, recur without being copied, and each is a draw of its own: they count as
    copies only beyond `BEYOND_CHANCE`.
    """
    unit = samples.steps or rows_per_unit
    halves = np.array([_halves(samples, start, unit) for start in range(0, len(samples), unit)], np.uint64)
    contents = np.unique(halves, axis=0, return_inverse=True)[1].reshape(-1)
    by_chance = _recurrence(halves[:, 0]) * _recurrence(halves[:, 1])
    copies = len(contents) - (int(contents.max()) + 1)
    if _recurrence(contents) <= BEYOND_CHANCE * by_chance:
        contents, copies = np.arange(len(contents)), 0
    if samples.clusters is None:
        return (np.repeat(contents, unit), copies) if copies else (None, 0)
    groups = np.unique(samples.clusters[::unit], return_inverse=True)[1].reshape(-1)
    return np.repeat((_joined(groups, contents) if copies else groups), unit), copies


def _halves(samples: Samples, start: int, rows: int) -> tuple[int, int]:
    """Return digests of every other value of a unit's inputs, and of the rest; the values of a text are its words."""
    digests, position = [hashlib.blake2b(digest_size=8) for _ in range(2)], 0
    for _, array in sorted(samples.inputs.items()):
        values = np.asarray(array[start : start + rows]).reshape(-1)
        if values.dtype.kind in "USO":
            values = np.array([word.encode() for text in values for word in str(text).split()], object)
        for half, digest in enumerate(digests):
            chosen = values[(half + position) % 2 :: 2]
            digest.update(b"\0".join(chosen) if values.dtype.kind == "O" else chosen.tobytes())
        position += len(values)
    even, odd = (int.from_bytes(digest.digest(), "big") for digest in digests)
    return even, odd


def _recurrence(values: NDArray[Any]) -> float:
    """Return the share of pairs of values, shape `(n,)`, that are equal."""
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / max(len(values) * (len(values) - 1), 1))


def _joined(groups: NDArray[np.intp], contents: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the cluster of each unit; `groups` and `contents` number those of each unit from 0, shape `(units,)`.

    A single unit in common, such as a black frame, joins no groups.
    """
    from scipy import sparse

    held = np.unique(np.stack([contents, groups], axis=1), axis=0)
    sizes = np.bincount(held[:, 1])
    # Each content links the first group that holds it with the others: one link each, however many groups there are.
    _, firsts, content = np.unique(held[:, 0], return_index=True, return_inverse=True)
    links = np.ones(len(held)), (held[firsts, 1][content.reshape(-1)], held[:, 1])
    shared = sparse.coo_array(sparse.csr_array(links, shape=(len(sizes), len(sizes))))
    alike = 2 * shared.data >= np.minimum(sizes[shared.row], sizes[shared.col])
    pairs = shared.data[alike], (shared.row[alike], shared.col[alike])
    joined = sparse.csr_array(pairs, shape=shared.shape)
    return np.asarray(sparse.csgraph.connected_components(joined, directed=False)[1][groups], np.intp)


def confirmation_mask(
    samples: Samples, share: float, rows_per_unit: int, clusters: NDArray[np.intp] | None = None
) -> NDArray[np.bool_]:
    """Mark about `share` (0 to below 1) of the samples for confirmation; bool of shape `(n,)`.

    The sha256 of a sample's own inputs and label alone decides its side. Adding or removing samples therefore moves no other
    sample, equal samples are on the same side, and every run of every job agrees. `rows_per_unit` adjacent samples (the halves
    of a pair) form one unit and stay together. If samples have groups, the group's key alone decides, so that no group is on
    both sides. Nor is any of the `clusters` (shape `(n,)`), whose different digests decide together.

    Raises:
        DataError: the number of samples is not a multiple of `rows_per_unit`, or a unit is in two groups.
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
        fractions = np.array([_fraction(hashlib.sha256(f"group {key}".encode())) for key in keys])[places.reshape(-1)]
    else:
        units = range(0, n, rows_per_unit)
        fractions = np.repeat([_place(samples, start, rows_per_unit) for start in units], rows_per_unit)
    if clusters is not None:
        # The sum is as uniform as each, and depends neither on order nor on the number of copies.
        different = np.unique(np.stack([clusters, fractions], axis=1), axis=0)
        fractions = (np.bincount(different[:, 0].astype(np.intp), different[:, 1]) % 1.0)[clusters]
    return np.asarray(fractions < share)


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

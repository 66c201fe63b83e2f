"""The confirmation split: a sample's side is its own affair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.confirmation_split import confirmation_mask
from validators.samples.datasets import Samples

N = 400


def samples(inputs: dict[str, NDArray[Any]], labels: NDArray[Any] | None = None) -> Samples:
    """Samples of a file that nobody reads."""
    return Samples(DataFile(Path("e.npz"), "0" * 64, len(next(iter(inputs.values())))), inputs, labels)


def some(n: int = N, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Two inputs of different dtypes."""
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 3, 2)).astype(np.float32), "ids": rng.integers(0, 99, (n, 4))}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_is_kept(share: float) -> None:
    """A binomial draw: within four standard deviations."""
    kept = confirmation_mask(samples(some(2000)), share, 1)
    assert abs(kept.mean() - share) < 4 * (share * (1 - share) / 2000) ** 0.5


def test_a_share_of_nothing_keeps_none() -> None:
    """All samples choose."""
    kept = confirmation_mask(samples(some()), 0.0, 1)
    assert kept.dtype == np.bool_ and kept.shape == (N,) and not kept.any()


def test_other_samples_move_none() -> None:
    """Added, taken away, in another order: each sample keeps its side, and a larger share only adds to a smaller one."""
    inputs = some()
    kept = confirmation_mask(samples(inputs), 0.5, 1)
    order = np.random.default_rng(2).permutation(N)[: N // 2]
    moved = confirmation_mask(samples({name: array[order] for name, array in inputs.items()}), 0.5, 1)
    assert moved.tolist() == kept[order].tolist()
    longer = {name: np.concatenate([array, some(50, seed=9)[name]]) for name, array in inputs.items()}
    assert confirmation_mask(samples(longer), 0.5, 1)[:N].tolist() == kept.tolist()
    assert not (kept & ~confirmation_mask(samples(inputs), 0.7, 1)).any()


def test_what_the_file_looks_like_matters_not() -> None:
    """The order of the inputs, strides, text that is longer elsewhere in the file, or kept as objects."""
    inputs, labels = some(), np.array(["in", "out"] * (N // 2))
    kept = confirmation_mask(samples(inputs, labels), 0.5, 1).tolist()
    turned = {name: np.asfortranarray(inputs[name]) for name in reversed(inputs)}
    assert confirmation_mask(samples(turned, labels), 0.5, 1).tolist() == kept
    wide = {name: np.concatenate([array, array[:1]]) for name, array in inputs.items()}
    longer = np.append(labels, "somewhere else")
    assert longer.dtype != labels.dtype
    assert confirmation_mask(samples(wide, longer), 0.5, 1).tolist()[:N] == kept
    assert confirmation_mask(samples(inputs, labels.astype(object)), 0.5, 1).tolist() == kept


def sides(inputs: dict[str, NDArray[Any]], labels: NDArray[Any] | None = None) -> list[bool]:
    """The side of each sample at an even split."""
    kept: list[bool] = confirmation_mask(samples(inputs, labels), 0.5, 1).tolist()
    return kept


def test_equal_samples_stand_on_one_side() -> None:
    """Copies cannot choose and confirm; another value, label, name, dtype or shape makes another sample."""
    inputs = {"x": np.repeat(some(1)["x"], N, axis=0)}
    assert len(set(sides(inputs))) == 1
    differing = {"x": np.arange(N, dtype=np.int32)[:, None].repeat(2, axis=1)}
    seen = [
        sides(differing),
        sides(differing, np.zeros(N, np.int64)),
        sides({"y": differing["x"]}),
        sides({"x": differing["x"].view(np.float32)}),
        sides({"x": differing["x"][:, :, None]}),
    ]
    # Independent sides agree in half of the samples.
    agreements = [np.mean(np.array(a) == b) for place, a in enumerate(seen) for b in seen[:place]]
    assert max(agreements) < 0.65


def test_pairs_stay_together() -> None:
    """Two adjacent samples are one unit; half a unit is refused."""
    kept = confirmation_mask(samples(some()), 0.5, 2)
    assert (kept[::2] == kept[1::2]).all() and 0.3 < kept.mean() < 0.7
    with pytest.raises(DataError, match="multiple of 2"):
        confirmation_mask(samples(some(5)), 0.5, 2)


def test_the_split_is_that_of_yesterday() -> None:
    """Fixed for good: a confirmation set that changes with a release would have been seen before."""
    inputs = {"x": np.arange(24, dtype=np.float32).reshape(24, 1)}
    kept = confirmation_mask(samples(inputs, np.arange(24)), 0.5, 1)
    assert "".join("01"[side] for side in kept.tolist()) == "000001000011111100000001"

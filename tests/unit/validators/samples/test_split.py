"""The confirmation split: a sample's side is its own affair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.confirmation_split import cluster_samples, confirmation_mask
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


# Copies


def repeated(inputs: dict[str, NDArray[Any]], times: int) -> dict[str, NDArray[Any]]:
    """Each sample so many times, in an order of chance."""
    n = len(next(iter(inputs.values())))
    rows = np.random.default_rng(5).permutation(np.tile(np.arange(n), times))
    return {name: array[rows] for name, array in inputs.items()}


@pytest.mark.parametrize("times", [2, 3, 10])
def test_copies_are_one_cluster(times: int) -> None:
    """Whatever their labels, and both on the same side of the split."""
    inputs = repeated(some(60), times)
    clusters, copies = cluster_samples(samples(inputs), 1)
    assert clusters is not None and copies == 60 * (times - 1)
    assert np.bincount(clusters).tolist() == [times] * 60
    assert all(len(np.unique(inputs["x"][clusters == one], axis=0)) == 1 for one in range(60))
    noisy = samples(inputs, np.arange(60 * times))
    kept = confirmation_mask(noisy, 0.5, 1, clusters)
    assert len({(int(cluster), bool(side)) for cluster, side in zip(clusters, kept, strict=True)}) == 60
    assert 0.3 < kept.mean() < 0.7, "a cluster of many is as likely to confirm as a single sample"


def test_different_samples_are_no_clusters() -> None:
    assert cluster_samples(samples(some()), 1) == (None, 0)


@pytest.mark.parametrize(
    "inputs",
    [
        {"item": (50,)},
        {"user": (20,), "item": (30,)},
        {"row": (5, 5)},
        {"flags": (2, 2, 2)},
        {"text": ("red", "green", "blue", "white", "black", "grey")},
    ],
    ids=str,
)
def test_values_that_recur_by_chance_are_no_copies(inputs: dict[str, tuple[Any, ...]]) -> None:
    """A draw of ids or categories repeats itself: each is one request of the traffic."""
    rng = np.random.default_rng(3)
    drawn: dict[str, NDArray[Any]] = {}
    for name, values in inputs.items():
        numbers = [rng.integers(0, most, 1000) for most in values if isinstance(most, int)]
        drawn[name] = np.stack(numbers, axis=1) if numbers else rng.choice(np.array(values), 1000)
    assert cluster_samples(samples(drawn), 1) == (None, 0)


def test_copies_of_texts_are_found() -> None:
    """A text of one word recurs; sentences are copied."""
    rng = np.random.default_rng(4)
    words = np.array([f"w{index}" for index in range(200)])
    sentences = np.array([" ".join(rng.choice(words, 6)) for _ in range(50)])
    clusters, copies = cluster_samples(samples({"text": np.tile(sentences, 3)}), 1)
    assert clusters is not None and copies == 100 and clusters.tolist() == np.tile(clusters[:50], 3).tolist()


def test_pairs_are_copied_as_pairs() -> None:
    """The same first half alone is no copy."""
    inputs = some(40)
    inputs["x"][2], inputs["ids"][2] = inputs["x"][0], inputs["ids"][0]
    assert cluster_samples(samples(inputs), 2) == (None, 0)
    for array in inputs.values():
        array[6:8] = array[10:12]
    clusters, copies = cluster_samples(samples(inputs), 2)
    assert clusters is not None and copies == 1 and len(np.unique(clusters)) == 19
    assert set(clusters[6:8]) == set(clusters[10:12])


def test_groups_that_hold_each_others_copies_are_joined() -> None:
    """Patient 7 is patient 3 under another key. All patients share one blank sample, which joins none."""
    inputs, keys = some(100), np.repeat(np.arange(10), 10)
    for array in inputs.values():
        array[::10] = array[0]
        array[70:80] = array[30:40]
    clusters, copies = cluster_samples(replace(samples(inputs), clusters=keys.astype(str)), 1)
    assert clusters is not None and copies == 18
    assert set(clusters[70:80]) == set(clusters[30:40]) and len(np.unique(clusters)) == 9
    kept = confirmation_mask(replace(samples(inputs), clusters=keys), 0.5, 1, clusters)
    assert len({(int(cluster), bool(side)) for cluster, side in zip(clusters, kept, strict=True)}) == 9
    alone, _ = cluster_samples(replace(samples(some(100)), clusters=keys), 1)
    assert alone is not None and alone.tolist() == keys.tolist()

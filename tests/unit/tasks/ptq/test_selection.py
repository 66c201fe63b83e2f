"""The choice of calibration samples: against exhaustive search, a plain greedy choice, random draws, and cases by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from tasks.ptq.calibrate import selection
from tasks.ptq.calibrate.selection import choose_samples, share_out
from validators.calibration.representation import measure_likeness
from validators.errors import JobError

Array = NDArray[Any]
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def energy(chosen: Array, reference: Array) -> float:
    """The energy distance by its definition, every pair counted, a sample with itself too."""
    return float(
        2 * cdist(chosen, reference).mean() - cdist(chosen, chosen).mean() - cdist(reference, reference).mean()
    )


def cost(chosen: Array, reference: Array, weight: float) -> float:
    """What the choice keeps low, by its definition."""
    return float(cdist(chosen, reference).min(axis=0).mean() + weight * len(chosen) * energy(chosen, reference))


def allowed_sets(labels: Array, quotas: Array) -> Iterator[list[int]]:
    for rows in combinations(range(len(labels)), int(quotas.sum())):
        if (np.bincount(labels[list(rows)], minlength=len(quotas)) == quotas).all():
            yield list(rows)


def plain_greedy(pool: Array, labels: Array, quotas: Array, reference: Array) -> list[int]:
    """The same choice with nothing saved: every set that is one sample larger, from its definition."""
    chosen: list[int] = []
    while len(chosen) < quotas.sum():
        left = quotas - np.bincount(labels[chosen], minlength=len(quotas))
        free = [row for row in range(len(pool)) if row not in chosen and left[labels[row]]]
        chosen.append(min(free, key=lambda row: cost(pool[[*chosen, row]], reference, selection.WEIGHT)))
    return sorted(chosen)


def blobs(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Samples of twelve clusters in 32 dimensions, of unequal sizes and with far samples in each, and their clusters."""
    centres = np.random.default_rng(99).normal(size=(12, 32))
    cluster = rng.choice(12, n, p=np.array([40, 20, 12, 8, 5, 4, 3, 3, 2, 1, 1, 1]) / 100)
    spread = rng.lognormal(-0.7, 0.6, (n, 1))
    return (centres[cluster] + rng.normal(size=(n, 32)) * spread).astype(np.float32), cluster


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_that_of_a_plain_greedy_search(seed: int) -> None:
    """The lazy bounds and the running sums change nothing: with quotas and with a reference of its own, too."""
    rng = np.random.default_rng(seed)
    pool = (rng.normal(size=(40, 3)) * rng.lognormal(size=(40, 1))).astype(np.float32)
    reference = (rng.normal(size=(30, 3)) + 0.5).astype(np.float32)
    labels = rng.integers(0, 3, 40)
    one = np.zeros(40, np.intp)
    assert choose_samples(pool, 9, seed=0).tolist() == plain_greedy(pool, one, np.array([9]), pool)
    chosen = choose_samples(pool, 9, strata=labels, reference=reference, seed=0)
    quotas = np.bincount(labels[chosen], minlength=3)
    assert chosen.tolist() == plain_greedy(pool, labels, quotas, reference)


@pytest.mark.parametrize("strata", [False, True])
def test_facility_location_alone_keeps_its_guarantee(monkeypatch: pytest.MonkeyPatch, strata: bool) -> None:
    """1 - 1/e of the best saving there is, and half of it with quotas, against all sets of tiny pools."""
    monkeypatch.setattr(selection, "WEIGHT", 0.0)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        pool = (rng.normal(size=(10, 2)) * rng.choice([0.3, 1, 3], (10, 1))).astype(np.float32)
        labels = np.arange(10) % 2 if strata else np.zeros(10, np.intp)
        chosen = choose_samples(pool, 4, strata=labels, seed=0)
        farthest = cdist(pool, pool).max(axis=0).mean()
        costs = [cost(pool[rows], pool, 0.0) for rows in allowed_sets(labels, np.bincount(labels[chosen]))]
        best, worst = farthest - min(costs), farthest - max(costs)
        assert worst < best  # or any choice would do
        assert farthest - cost(pool[chosen], pool, 0.0) >= (0.5 if strata else 1 - 1 / math.e) * best


def test_the_sum_of_both_comes_near_its_optimum() -> None:
    """No theorem covers it: on tiny pools the choice is among the best third of all sets, mostly among the best tenth."""
    ranks = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        pool = (rng.normal(size=(10, 2)) * rng.choice([0.3, 1, 3], (10, 1))).astype(np.float32)
        costs = [cost(pool[list(rows)], pool, selection.WEIGHT) for rows in combinations(range(10), 4)]
        ranks.append(
            np.mean(np.array(costs) < cost(pool[choose_samples(pool, 4, seed=0)], pool, selection.WEIGHT) - 1e-6)
        )
    assert max(ranks) < 1 / 3
    assert np.median(ranks) < 0.1


def test_one_sample_is_the_median() -> None:
    # Sums of distances by hand: 1+2+10+11, 1+1+9+10, 2+1+8+9, ...
    line = np.array([[0], [1], [2], [10], [11]], np.float32)
    assert choose_samples(line, 1, seed=0).tolist() == [2]
    assert choose_samples(line, 1, eligible=np.array([True, True, False, True, True]), seed=0).tolist() == [1]
    assert choose_samples(line, 5, seed=0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("clusters", [2, 5, 9])
def test_of_tight_clusters_each_gives_one(clusters: int) -> None:
    rng = np.random.default_rng(clusters)
    centres = 100 * np.eye(clusters, 16)
    cluster = rng.permutation(np.repeat(np.arange(clusters), 12))
    pool = (centres[cluster] + rng.normal(size=(len(cluster), 16))).astype(np.float32)
    assert sorted(cluster[choose_samples(pool, clusters, seed=0)]) == list(range(clusters))


def test_choice_covers_better_than_random_and_looks_like_a_draw() -> None:
    """Against held-out samples, of clusters of unequal sizes."""
    rng = np.random.default_rng(0)
    (pool, cluster), (held, _) = blobs(rng, 1200), blobs(rng, 600)
    draws = [rng.permutation(1200)[:40] for _ in range(20)]
    chosen = choose_samples(pool, 40, seed=0)

    def nearest(rows: Array) -> float:
        return float(cdist(held, pool[rows]).min(axis=1).mean())

    def share(rows: Array) -> float:
        return float((cdist(held, pool[rows]).min(axis=1) <= radius).mean())

    among = [np.sort(cdist(pool[rows], pool[rows]), axis=1)[:, 1] for rows in draws]
    radius = float(np.mean([np.quantile(distances, 0.95) for distances in among]))
    assert nearest(chosen) < min(nearest(rows) for rows in draws)
    assert share(chosen) > np.mean([share(rows) for rows in draws])
    assert energy(pool[chosen], held) < min(energy(pool[rows], held) for rows in draws)
    assert measure_likeness(pool[chosen], held, min_p_value=0.01, seed=0).p_value > 0.5
    # The largest cluster keeps about its two samples of five; were all clusters served alike, it would have 3 of the 40.
    assert 10 <= np.count_nonzero(cluster[chosen] == 0) <= 22


def test_each_term_alone_is_worse_at_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for the sum, on the same samples: facility location alone is refused, herding alone covers less."""
    rng = np.random.default_rng(0)
    (pool, _), (held, _) = blobs(rng, 1200), blobs(rng, 600)
    both = pool[choose_samples(pool, 40, seed=0)]
    monkeypatch.setattr(selection, "WEIGHT", 0.0)
    facility = pool[choose_samples(pool, 40, seed=0)]
    monkeypatch.setattr(selection, "WEIGHT", 1e6)
    herding = pool[choose_samples(pool, 40, seed=0)]
    nearest = [cdist(held, chosen).min(axis=1).mean() for chosen in (facility, both, herding)]
    assert nearest[0] < nearest[1] < nearest[2]
    # Most of what can be gained is: the sum lies nearer to the one end than to the other.
    assert nearest[1] - nearest[0] < (nearest[2] - nearest[0]) / 2
    assert energy(facility, held) > 5 * energy(both, held)
    assert measure_likeness(facility, held, min_p_value=0.01, seed=0).p_value < 0.01


def test_a_reference_says_what_is_to_be_represented() -> None:
    """Half of the pool is something else: with that reference nothing of it is taken, by itself half of the set is."""
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(200, 4)).astype(np.float32)
    pool[100:] += 50
    assert choose_samples(pool, 16, reference=pool[:100] + np.float32(0.01), seed=0).max() < 100
    assert np.count_nonzero(choose_samples(pool, 16, seed=0) < 100) == 8


def test_scale_and_order_of_the_pool_change_nothing() -> None:
    pool, _ = blobs(np.random.default_rng(1), 200)
    chosen = choose_samples(pool, 20, seed=0)
    assert choose_samples(pool * np.float32(1024), 20, seed=0).tolist() == chosen.tolist()
    assert choose_samples(pool[::-1], 20, seed=0).tolist() == (199 - chosen)[::-1].tolist()


@given(COUNTS, st.data())
def test_shares_are_rounded_by_less_than_one(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, sum(counts)))
    quotas = share_out(np.array(counts), size, np.random.default_rng(0))
    exact = [count * size / sum(counts) for count in counts]
    assert quotas.sum() == size
    assert all(abs(quota - share) < 1 for quota, share in zip(quotas, exact, strict=True))
    assert all(quota <= count for quota, count in zip(quotas, counts, strict=True))
    # Whoever was rounded up had no smaller a remainder than whoever was not.
    up = [share % 1 for quota, share in zip(quotas, exact, strict=True) if quota > share]
    down = [share % 1 for quota, share in zip(quotas, exact, strict=True) if quota < share]
    assert not up or not down or min(up) >= max(down) - 1e-9


def test_equal_remainders_favour_no_label() -> None:
    """Fifty labels, five samples: always the first five would leave the others out for good."""
    times = np.sum([share_out(np.full(50, 10), 5, np.random.default_rng(seed)) for seed in range(200)], axis=0)
    assert times.sum() == 1000  # 20 each, by chance from about 7 to 36
    assert times.min() > 0
    assert times.max() < 45


@given(COUNTS, st.data())
def test_quotas_are_exact(counts: list[int], data: st.DataObject) -> None:
    """The shares are those of the eligible rows, whatever the labels are called and however few candidates there are."""
    size = data.draw(st.integers(1, sum(counts)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    names = np.array([f"label {number}" for number in range(len(counts))])
    strata = rng.permutation(np.concatenate([np.repeat(names, counts), np.repeat(names[:1], 30)]))
    eligible = np.ones(len(strata), bool)
    eligible[rng.permutation(np.flatnonzero(strata == names[0]))[:30]] = False
    pool = rng.normal(size=(len(strata), 2)).astype(np.float32)
    pool[~eligible] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "MAX_CANDIDATES", data.draw(st.sampled_from([1, 20, 8000])))
        chosen = choose_samples(pool, size, strata=strata, eligible=eligible, seed=3)
    assert len(np.unique(chosen)) == size
    assert (np.diff(chosen) > 0).all()
    assert eligible[chosen].all()
    expected = share_out(np.array(counts), size, np.random.default_rng(3))
    assert [np.count_nonzero(strata[chosen] == name) for name in names] == expected.tolist()


def test_stratum_keeps_its_quota_when_more_candidates_cost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 samples the second label's share is 0.32, the largest remainder; of 11 candidates 0.70, the smallest."""
    counts = np.array([32, 8, 32, 54])
    assert share_out(counts, 5, np.random.default_rng(0)).tolist() == [1, 1, 1, 2]
    assert share_out(counts, 11, np.random.default_rng(0)).tolist() == [3, 0, 3, 5]
    monkeypatch.setattr(selection, "MAX_CANDIDATES", 11)
    strata = np.repeat(np.arange(4), counts)
    pool = np.random.default_rng(0).normal(size=(126, 2)).astype(np.float32)
    assert np.bincount(strata[choose_samples(pool, 5, strata=strata, seed=0)]).tolist() == [1, 1, 1, 2]


def test_rows_that_are_not_eligible_count_for_nothing() -> None:
    """The choice is the one among the others alone, though those left out lie in the middle or are no numbers."""
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(90, 3)).astype(np.float32)
    strata = rng.integers(0, 2, 90)
    eligible = np.arange(90) % 3 != 0
    rows = np.flatnonzero(eligible)
    alone = rows[choose_samples(pool[rows], 10, strata=strata[rows], seed=0)]
    pool[::3] = 0.0
    pool[::9] = np.nan
    assert choose_samples(pool, 10, strata=strata, eligible=eligible, seed=0).tolist() == alone.tolist()


@pytest.mark.parametrize("max_candidates", [12, 8000])
def test_a_copy_is_taken_only_when_nothing_else_is_left(monkeypatch: pytest.MonkeyPatch, max_candidates: int) -> None:
    """Sixty times one embedding in the midst of five others; 0.0 and -0.0 are the same number."""
    monkeypatch.setattr(selection, "MAX_CANDIDATES", max_candidates)
    pool = np.zeros((65, 4), np.float32)
    pool[1:60:2] = -0.0
    pool[60:] = np.eye(5, 4) + 7
    order = np.random.default_rng(0).permutation(65)
    six, eight = (order[choose_samples(pool[order], size, seed=0)] for size in (6, 8))
    assert sorted(six)[1:] == [60, 61, 62, 63, 64]
    assert sorted(eight)[3:] == [60, 61, 62, 63, 64]
    # The same of two labels: the second one has an embedding that the first one lacks.
    pair = np.array([[0, 0], [5, 5], [0, 0], [9, 9]], np.float32)
    assert len(np.unique(pair[choose_samples(pair, 2, strata=np.array([0, 0, 1, 1]), seed=0)], axis=0)) == 2


def test_a_pool_of_one_embedding_still_gives_a_set() -> None:
    assert len(set(choose_samples(np.ones((9, 3), np.float32), 4, seed=0))) == 4


def test_a_large_pool_is_drawn_from_under_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many candidates and reference samples as allowed; the same seed gives the same set, another one another."""
    shapes = []
    measure = selection._measure_distances

    def record(points: Array, others: Array) -> Array:
        shapes.append((len(points), len(others)))
        return measure(points, others)

    monkeypatch.setattr(selection, "_measure_distances", record)
    for name, value in (("MAX_CANDIDATES", 60), ("MAX_REFERENCE", 45), ("MAX_DISTANCES", 60 * 50)):
        monkeypatch.setattr(selection, name, value)
    pool, _ = blobs(np.random.default_rng(2), 500)
    first, again, other = (choose_samples(pool, 8, seed=seed).tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert shapes[0] == (60, 45)
    shapes.clear()
    # More samples need more candidates: the reference gives way, so that the distances take no more memory.
    choose_samples(pool, 100, seed=0)
    assert shapes[0] == (200, 15)


def test_a_drawn_reference_is_a_random_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its first rows: of a file in order of its labels they are one label."""
    monkeypatch.setattr(selection, "MAX_REFERENCE", 40)
    pool = np.concatenate([np.zeros((150, 2)), np.full((150, 2), 50)]).astype(np.float32)
    pool += np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    assert 5 <= np.count_nonzero(choose_samples(pool, 16, reference=pool, seed=0) < 150) <= 11


def test_distances_are_right_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from zero too, where differences of squares lose digits in single precision."""
    monkeypatch.setattr(selection, "BLOCK", 7)
    points = np.random.default_rng(0).normal(size=(30, 5)) + 1000
    np.testing.assert_allclose(selection._measure_distances(points, points[:9]), cdist(points, points[:9]), atol=1e-3)


NAN_ROW = np.array([[0, 1], [np.nan, 1]], np.float32)
POOL = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.mark.parametrize(
    ("pool", "size", "options", "found"),
    [
        (POOL, 5, {}, "5 samples asked for, 4 of the pool's 4 eligible"),
        (POOL, 0, {}, "0 samples asked for"),
        (
            POOL,
            3,
            {"eligible": np.array([True, False, True, False])},
            "3 samples asked for, 2 of the pool's 4 eligible",
        ),
        (POOL, 1, {"eligible": np.zeros(4, bool)}, "0 of the pool's 4 eligible"),
        (POOL[:0], 1, {}, "0 of the pool's 0 eligible"),
        (NAN_ROW, 1, {}, "NaN or infinity in the embeddings of 1 eligible samples and 0 of the reference"),
        (POOL, 1, {"reference": NAN_ROW}, "0 eligible samples and 1 of the reference"),
        (POOL, 1, {"reference": POOL[:0]}, "a reference of shape (0, 2)"),
        (POOL, 1, {"reference": POOL[:, :1]}, "a reference of shape (4, 1) for a pool of shape (4, 2)"),
    ],
)
def test_what_cannot_be_chosen_says_why(pool: Array, size: int, options: dict[str, Any], found: str) -> None:
    with pytest.raises(JobError) as error:
        choose_samples(pool, size, seed=0, **options)
    assert found in error.value.found
    assert error.value.expected and error.value.fix

"""Near-duplicates: found where planted and as comparing all pairs finds them; alarms no more often than stated."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import validators.samples.near_duplicates
from validators.samples.near_duplicates import (
    allow_by_chance,
    chance_of_so_many,
    find_near_duplicates,
    find_near_duplicates_within,
)

Array = NDArray[Any]


def find(samples: Array, others: Array) -> list[int]:
    return find_near_duplicates({"x": samples}, {"x": others}).tolist()


def within(array: Array) -> list[int]:
    return find_near_duplicates_within({"x": array}).tolist()


def draw_images(n: int, seed: int = 0) -> Array:
    """Pictures of 3 x 12 x 12 pixels, in patches of 3 x 3; values around 0, float32."""
    coarse = np.random.default_rng(seed).normal(size=(n, 3, 4, 4))
    return (20 * coarse.repeat(3, axis=2).repeat(3, axis=3)).astype(np.float32)


def draw_texts(n: int, seed: int = 0) -> Array:
    """15 to 40 words, some of them frequent, then padding to 41 places; int64."""
    rng = np.random.default_rng(seed)
    words = np.minimum(rng.zipf(1.3, (n, 41)) + 100, 30_000)
    return np.where(np.arange(41) < rng.integers(15, 41, n)[:, None], words, 0)


def change_words(texts: Array, how: str) -> Array:
    rng = np.random.default_rng(5)
    changed = np.zeros_like(texts)
    for row, text in enumerate(texts):
        words = text[text != 0].tolist()
        place = int(rng.integers(len(words)))
        if how == "replaced":
            words[place] = 31_000
        elif how == "inserted":
            words.insert(place, 31_000)
        elif how == "dropped":
            del words[place]
        elif how == "split in three":
            words[place : place + 1] = [31_000, 31_001, 31_002]
        else:
            words = words[place:] + words[:place]
        kept = words[: len(text)]
        changed[row, : len(kept)] = kept
    return changed


# The definitions, pair by pair.


def differ(sample: Array, other: Array, others: Array) -> float:
    """Root mean square of the differences over the spread, in units of a fifth."""
    spread = math.sqrt(others.astype(float).var(axis=0).mean())
    return math.sqrt(((sample.astype(float) - other.astype(float)) ** 2).mean()) / spread / 0.2


def measure_affinity(text: Array, other: Array) -> float:
    x, y = (Counter(some[some != 0].tolist()) for some in (text, other))
    return sum(math.sqrt(x[word] * y[word]) for word in x) / math.sqrt(x.total() * y.total())


# Magnitudes.


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(432,), (3, 12, 12)])
def test_noisy_copies_are_found_whatever_the_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    middle = 128 if dtype == "uint8" else 0
    others, strangers = draw_images(300), draw_images(20, seed=1)
    rows = np.array([7, 7, 250, 0])
    copies = others[rows] + np.random.default_rng(2).normal(0, 0.1 * others.std(), (4, 3, 12, 12))
    copies[3] = others[0]
    samples, others = (
        np.round(middle + array.clip(-128, 127)).astype(dtype).reshape(-1, *shape)
        for array in (np.concatenate([copies, strangers]), others)
    )
    assert find(samples, others) == [*rows.tolist(), *[-1] * 20]
    assert within(others) == [-1] * 300
    assert within(np.concatenate([others, samples[2:3]])) == [300 if row == 250 else -1 for row in range(300)] + [250]


@pytest.mark.parametrize(("difference", "near"), [(0.98, True), (1.02, False)])
@pytest.mark.parametrize("pixels", ["all", "one"])
def test_near_ends_at_a_fifth_of_the_spread(difference: float, near: bool, pixels: str) -> None:
    others = draw_images(60)
    step = np.full_like(others[0], 0.2 * math.sqrt(others.astype(float).var(axis=0).mean()))
    if pixels == "one":
        step[np.arange(step.size).reshape(step.shape) != 77] = 0
        step *= math.sqrt(step.size)
    sample = others[[11]] + np.float32(difference) * step
    assert differ(sample[0], others[11], others) == pytest.approx(difference, rel=1e-4)
    assert find(sample, others) == [11 if near else -1]


@pytest.mark.parametrize("entries", [20, 100, 3000])
def test_finds_what_comparing_all_pairs_finds(entries: int) -> None:
    rng = np.random.default_rng(entries)
    # Around each of 40 places lie 5 samples, at distances on both sides of near.
    places = rng.normal(size=(40, 1, entries)) * 30
    array = (places + 30 * rng.uniform(0.02, 0.3, (40, 5, 1)) * rng.normal(size=(40, 5, entries))).reshape(200, entries)
    rng.shuffle(array)
    samples, others = array[45:], array[:45]
    distances = np.array([[differ(sample, other, others) for other in others] for sample in samples])
    expected = np.where(distances.min(axis=1) <= 1, distances.argmin(axis=1), -1)
    assert 20 < np.count_nonzero(expected >= 0) < 135
    assert find(samples, others) == expected.tolist()


def test_the_columns_of_a_table_count_alike_whatever_their_units() -> None:
    rng = np.random.default_rng(0)
    others = rng.normal(size=(45, 6))
    samples = np.concatenate([others[:20] + rng.normal(0, 0.1, (20, 6)), rng.normal(size=(20, 6))])
    found = find(samples, others)
    assert found[:20] == list(range(20)) and found[20:].count(-1) >= 18
    units = 10.0 ** np.array([-6, -3, 0, 3, 6, 9])
    assert find(samples * units + 5 * units, others * units + 5 * units) == found
    # One column that differs is not drowned by larger ones.
    samples[:20, 0] += 3
    assert find(samples * units, others * units)[:20] == [-1] * 20


def test_noise_on_always_black_pixels_does_not_hide_a_copy() -> None:
    others = draw_images(100)
    others[:, :, :2] = 0
    noise = np.random.default_rng(1).normal(0, 1, others[:5].shape).astype(np.float32)
    assert find(others[:5] + noise, others) == [0, 1, 2, 3, 4]


def test_large_numbers_that_differ_little_are_told_apart() -> None:
    times = 1.7e9 + 1e5 * np.random.default_rng(0).normal(size=(40, 20))
    assert find(np.concatenate([times[:3] + 5e3, times[:3] + 5e4]), times) == [0, 1, 2, -1, -1, -1]
    assert find((times[:3] + 5e3) * 1e20, times * 1e20) == [0, 1, 2]


# Indices.


@pytest.mark.parametrize("how", ["replaced", "inserted", "dropped", "split in three", "turned round"])
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint16", "uint64"])
def test_texts_with_a_word_changed_are_found(how: str, dtype: str) -> None:
    others, strangers = draw_texts(400).astype(dtype), draw_texts(60, seed=1).astype(dtype)
    assert find(change_words(others[:60], how), others) == list(range(60))
    assert find(strangers, others) == [-1] * 60


def test_padding_says_nothing() -> None:
    others, samples = draw_texts(100), change_words(draw_texts(100)[:30], "replaced")
    wide, shifted = np.zeros((2, 100, 300), np.int64)
    wide[:, :41], shifted[:, 200:241] = others, others
    for padded in (wide, shifted):
        assert find(samples, padded) == list(range(30))
    cut = [text[text != 0][None, :15] for text in others]
    assert find(change_words(cut[4], "replaced"), np.concatenate(cut)) == [4]


TEXTS = hnp.arrays(
    np.int64, st.tuples(st.integers(2, 10), st.integers(1, 20)), elements=st.sampled_from([-100, 0, 1, 5, 2**60])
)


@given(TEXTS, st.integers(1, 5))
def test_texts_are_near_from_an_affinity_of_85_percent(texts: Array, count: int) -> None:
    assume((texts != 0).any(axis=1).all() and not ((texts == 0) | (texts == 1)).all())
    samples, others = texts[:-count] if count < len(texts) else texts[:1], texts[-count:]
    affinities = np.array([[measure_affinity(sample, other) for other in others] for sample in samples])
    assume((np.abs(affinities - 0.85) > 1e-6).all())
    for row, found in enumerate(find(samples, others)):
        assert (found >= 0) == (affinities[row].max() > 0.85)
        if found >= 0:
            assert affinities[row, found] == pytest.approx(affinities[row].max())


@pytest.mark.parametrize(("replaced", "near"), [(29, True), (31, False)])
def test_near_ends_at_15_percent_of_the_tokens(replaced: int, near: bool) -> None:
    others = np.random.default_rng(0).permutation(30_000)[:6000].reshape(30, 200) + 100
    sample = others[[9]]
    sample[0, :replaced] += 50_000
    assert measure_affinity(sample[0], others[9]) == pytest.approx(1 - replaced / 200)
    assert find(sample, others) == [9 if near else -1]


def test_large_numbers_are_other_tokens_than_any_others() -> None:
    ids = np.random.default_rng(0).integers(2**40, 2**62, 6000)
    assert find(ids[:3000], ids[3000:]) == [-1] * 3000
    assert find(ids[:100], ids) == list(range(100))


def test_texts_of_nothing_but_padding_are_alike() -> None:
    texts = np.array([[5, 6, 7], [0, 0, 0], [8, 9, 10]])
    assert find(np.array([[0, 0, 0], [0, 0, 5]]), texts) == [1, -1]


# Several inputs, masks, and what cannot be compared.


def test_near_means_near_in_every_input_but_masks() -> None:
    rng = np.random.default_rng(0)
    images, texts = draw_images(200), draw_texts(200)
    others = {"image": images, "ids": texts, "mask": (texts != 0).astype(np.int64), "flag": rng.random(200) < 0.5}
    near = images + rng.normal(0, 1, images.shape).astype(np.float32), change_words(texts, "replaced")
    far = draw_images(200, seed=1), draw_texts(200, seed=1)
    for image, ids, expected in ((0, 0, range(200)), (0, 1, [-1] * 200), (1, 0, [-1] * 200), (1, 1, [-1] * 200)):
        samples = {
            "image": (near, far)[image][0],
            "ids": (near, far)[ids][1],
            "flag": ~others["flag"],
            "mask": others["mask"],
        }
        assert find_near_duplicates(samples, others).tolist() == list(expected)


def test_near_in_every_input_is_near_however_many_they_are() -> None:
    others = {f"x{camera}": draw_images(60, seed=camera) for camera in range(4)}
    noise = np.random.default_rng(9).normal(size=(3, 12, 12))
    noise *= 0.9 * 0.2 / math.sqrt((noise**2).mean())
    samples = {
        name: array + (noise * math.sqrt(array.var(axis=0).mean())).astype(np.float32) for name, array in others.items()
    }
    assert find_near_duplicates(samples, others).tolist() == list(range(60))


def test_tokens_are_told_from_a_mask_by_either_side() -> None:
    images = draw_images(60)
    others = {"image": images, "ids": np.ones((60, 4), np.int64)}
    assert find_near_duplicates({"image": images, "ids": others["ids"] + 6}, others).tolist() == [-1] * 60
    assert find_near_duplicates(others, {"image": images, "ids": others["ids"] + 6}).tolist() == [-1] * 60


def test_many_inputs_that_agree_do_not_outvote_one_that_differs() -> None:
    others = {f"c{column}": np.arange(40) % (column + 3) for column in range(12)} | {"ids": draw_texts(40)}
    samples = {**others, "ids": draw_texts(40, seed=1)}
    assert find_near_duplicates(samples, others).tolist() == [-1] * 40
    assert find_near_duplicates(others, others).tolist() == list(range(40))


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint16"])
def test_masks_count_where_there_is_nothing_else(dtype: str) -> None:
    masks = np.random.default_rng(0).random((100, 200)) < 0.5
    samples = masks[:20].copy()
    samples[:, 17] ^= True
    assert find(samples.astype(dtype), masks.astype(dtype)) == list(range(20))
    assert find(~samples, masks) == [-1] * 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e31])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_has_no_near_duplicate_and_is_none(value: float, dtype: str) -> None:
    if dtype == "float16" and value == 1e31:
        value = math.nan
    others = draw_images(60).astype(dtype)
    samples = others[:10].copy()
    samples[3, 1, 2, 3] = others[5, 0, 0, 0] = value
    assert find(samples, others) == [0, 1, 2, -1, 4, -1, 6, 7, 8, 9]
    assert within(np.concatenate([others, others])) == [-1 if row % 60 == 5 else (row + 60) % 120 for row in range(120)]
    assert find(np.full_like(samples, value), others) == find(samples, np.full_like(others, value)) == [-1] * 10
    beside = {"x": others, "ids": draw_texts(60), "y": draw_images(60)}
    assert find_near_duplicates_within({name: array.repeat(2, axis=0) for name, array in beside.items()})[
        10:12
    ].tolist() == [-1, -1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 100)])
@pytest.mark.parametrize("value", [0, 1, 7])
def test_constant_inputs_are_near_what_is_equal(dtype: str, shape: tuple[int, ...], value: int) -> None:
    constant = np.full((60, *shape), value, dtype)
    assert (np.array(find(constant[:3], constant)) >= 0).all()
    assert (np.array(within(constant)) >= 0).all() and (np.array(within(constant)) != np.arange(60)).all()
    if dtype != "bool":
        assert find(constant[:3] + np.ones(1, dtype), constant) == [-1] * 3


def test_rounding_of_a_constant_input_does_not_hide_a_copy() -> None:
    others = {"image": draw_images(60), "scale": np.full((60, 2), 0.1, np.float32)}
    samples = {**others, "scale": np.nextafter(others["scale"], np.float32(1))}
    assert find_near_duplicates(samples, others).tolist() == list(range(60))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
def test_single_samples_and_empty_features(dtype: str) -> None:
    one = np.array([[1, 0, 1, 1]], dtype)
    assert find(one, one) == [0] and within(one) == [-1]
    assert find(np.zeros((3, 0), dtype), np.zeros((5, 0), dtype)) == [-1] * 3
    assert within(np.zeros((3, 0), dtype)) == [-1] * 3
    assert find(one[:0], one) == [] and find(one, one[:0]) == [-1] and within(one[:0]) == []
    both = {"nothing": np.zeros((1, 0), dtype), "x": one}
    assert find_near_duplicates(both, both).tolist() == [0]


def test_numbers_of_one_dimension_and_what_is_no_number() -> None:
    assert find(np.array([1.001, 5.5]), np.array([0.0, 1.0, 4.0])) == [1, -1]
    assert find(np.array([7, 9]), np.array([5, 7, 300])) == [1, -1]
    assert find(np.array(["a", "b"]), np.array(["a", "c"])) == [-1, -1]


# Within one set; what is natural.


def test_no_sample_is_its_own_neighbour_however_many_copies() -> None:
    images = draw_images(50)
    found = within(np.concatenate([images[:1].repeat(30, axis=0), images]))
    assert all(row != own and row < 31 for own, row in enumerate(found[:31])) and -1 not in found[:31]
    assert found[31:] == [-1] * 49


@pytest.mark.parametrize("entries", [1, 3, 6])
def test_near_gets_nearer_where_chance_puts_samples_side_by_side(entries: int) -> None:
    array = np.random.default_rng(entries).normal(size=(3500, entries))
    others, samples = array[:2000], array[2000:]
    natural = np.count_nonzero(np.array(within(others)) >= 0)
    assert 35 <= natural <= 40
    hits = np.count_nonzero(np.array(find(samples, others)) >= 0)
    assert chance_of_so_many(hits, 1500, natural, 2000) > 0.01 and hits > 10
    leaked = others[:128] * (1 + 1e-6)
    assert find(leaked, others) == list(range(128))


def test_exact_copies_among_the_others_do_not_make_near_nearer() -> None:
    others = draw_texts(200).repeat(2, axis=0)
    found = find(change_words(others[:50], "replaced"), others)
    assert [row // 2 for row in found] == [row // 2 for row in range(50)]


def test_near_is_the_same_within_a_set_and_against_it() -> None:
    rng = np.random.default_rng(0)
    others = rng.normal(size=(400, 4))
    found = np.array(within(others))
    # Each sample again, so little moved that its nearest other one is the same; itself taken out of the way.
    for row in (*np.flatnonzero(found >= 0)[:5], *range(5)):
        far = others.copy()
        far[row] = others[row - 1]
        assert find(others[[row]], far)[0] in (found[row], -1 if found[row] < 0 else found[row])


@pytest.mark.parametrize("draw", [draw_images, draw_texts])
def test_blocks_and_order_change_nothing(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    others = draw(150)
    samples = np.concatenate([others[40:60], draw(20, seed=3)])
    found = find(samples, others)
    assert found == [*range(40, 60), *[-1] * 20]
    assert find(samples, others[::-1]) == [149 - row if row >= 0 else -1 for row in found]
    monkeypatch.setattr(validators.samples.near_duplicates, "BLOCK_VALUES", 1000)
    assert find(samples, others) == found
    monkeypatch.setattr(validators.samples.near_duplicates, "MAX_SAMPLES", 60)
    assert find(samples, others) == found


# What chance explains.


@given(st.integers(1, 12), st.integers(1, 30), st.data())
def test_chance_is_that_of_drawing_pairs(n: int, m: int, data: st.DataObject) -> None:
    hits, natural = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    pairs, places = hits + (natural + 1) // 2, n + (m + 1) // 2
    ways = [math.comb(n, drawn) * math.comb(places - n, pairs - drawn) for drawn in range(hits, min(n, pairs) + 1)]
    expected = Fraction(sum(ways), math.comb(places, pairs))
    assert chance_of_so_many(hits, n, natural, m) == pytest.approx(float(expected), rel=1e-9)


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.data())
def test_allowed_are_as_many_as_chance_explains(n: int, m: int, min_p_value: float, data: st.DataObject) -> None:
    natural = data.draw(st.integers(0, m))
    chances = [chance_of_so_many(hits, n, natural, m) for hits in range(n + 1)]
    min_p_value = data.draw(st.just(min_p_value) | st.sampled_from(chances))
    allowed = allow_by_chance(n, natural, m, min_p_value)
    assert 0 <= allowed <= n
    assert all((chance >= min_p_value) == (hits <= allowed) for hits, chance in enumerate(chances))


@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.1])
def test_random_pairs_alarm_no_more_often_than_stated(n: int, share: float) -> None:
    rng = np.random.default_rng(int(n * 1000 * share))
    m, alarms, draws = 1000, 0, 2000
    for _ in range(draws):
        # True for the new samples; places 2 i and 2 i + 1 are the pairs.
        new = np.zeros(n + m, np.bool_)
        new[rng.permutation(n + m)[:n]] = True
        first, second = new[: 2 * int(share * (n + m) / 2)].reshape(-1, 2).T
        hits, natural = int((first ^ second).sum()), 2 * int((~first & ~second).sum())
        alarms += chance_of_so_many(hits, n, natural, m) < 0.05
    assert alarms / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("leak", ["nothing", "copies", "noise", "words"])
def test_a_leak_alarms_and_clean_data_does_not(leak: str) -> None:
    images, texts = draw_images(1128), draw_texts(1128)
    others = {"image": images[128:], "ids": texts[128:]}
    samples = {"image": images[:128].copy(), "ids": texts[:128].copy()}
    if leak != "nothing":
        samples["image"][:6], samples["ids"][:6] = others["image"][40:46], others["ids"][40:46]
    if leak == "noise":
        samples["image"][:6] += np.random.default_rng(1).normal(0, 1, (6, 3, 12, 12))
    if leak == "words":
        samples["ids"][:6] = change_words(samples["ids"][:6], "replaced")
    found = find_near_duplicates(samples, others)
    natural = int((find_near_duplicates_within(others) >= 0).sum())
    allowed = allow_by_chance(128, natural, 1000, 0.001)
    assert found.tolist() == ([-1] * 6 if leak == "nothing" else list(range(40, 46))) + [-1] * 122
    assert (np.count_nonzero(found >= 0) > allowed) == (leak != "nothing")

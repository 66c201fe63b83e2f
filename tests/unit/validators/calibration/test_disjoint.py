"""Calibration data that may share no sample with its reference: clean sets pass, also where samples repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from validators.calibration.disjoint import DisjointComparison, compare_disjoint
from validators.digests import digest_samples
from validators.job.job_data import CalibrationBounds
from validators.records.run import DataFile
from validators.samples.datasets import Samples, TensorSpec
from validators.samples.drift import count_in_bins, find_signs
from validators.samples.feeds import Feeds

BOUNDS = CalibrationBounds()
WORD_PIECES, PIECES = 6, 400
Ids = NDArray[np.int64]


def samples_of(ids: Ids, **others: Any) -> Samples:
    return Samples(DataFile(Path("words.npz"), "0" * 64, len(ids)), {"ids": ids} | others, None)


class Words:
    """Short texts of a vocabulary whose shares fall like 1 / rank ** `zipf`; rare words have more pieces than usual ones."""

    def __init__(self, vocabulary: int, zipf: float, words: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.table = np.zeros((vocabulary, WORD_PIECES), np.int64)
        for word in range(vocabulary):
            pieces = 1 if word < PIECES // 2 else int(self.rng.integers(2, 5))
            self.table[word, :pieces] = word + 1 if pieces == 1 else self.rng.integers(1, PIECES, pieces)
        share = np.arange(1, vocabulary + 1) ** -zipf
        self.share, self.words = share / share.sum(), words

    def draw(self, n: int) -> Ids:
        words = self.rng.choice(len(self.table), (n, self.words), p=self.share)
        # Between two tokens that every text has, as tokenizers set them.
        return np.pad(self.table[words].reshape(n, -1), ((0, 0), (1, 1)), constant_values=90_000)


def redrawn(texts: Words, n: int) -> tuple[Ids, Ids]:
    """Calibration samples drawn until `n` are not among the evaluation samples."""
    evaluation = texts.draw(2000)
    known = set(digest_samples({"ids": evaluation}))
    more = texts.draw(100 * n)
    new = np.array([digest not in known for digest in digest_samples({"ids": more})])
    return more[new][:n], evaluation


def dealt(texts: Words, n: int) -> tuple[Ids, Ids]:
    """Distinct texts dealt out at random: `n` of them for calibration, all copies of the others for evaluation."""
    pool = texts.draw(3000)
    distinct, places = np.unique(pool, axis=0, return_inverse=True)
    chosen = texts.rng.permutation(len(distinct))[:n]
    return distinct[chosen], pool[~np.isin(places.reshape(-1), chosen)]


def compared(calibration: Ids, evaluation: Ids) -> DisjointComparison:
    return compared_samples(samples_of(calibration), samples_of(evaluation))


def compared_samples(calibration: Samples, evaluation: Samples) -> DisjointComparison:
    digests = digest_samples(evaluation.inputs)
    return compare_disjoint(calibration, evaluation, digests, BOUNDS, seed=7, is_evaluation=True)


def beside_features(ids: Ids, seed: int) -> Samples:
    """Samples that all differ, with integers that repeat."""
    return samples_of(ids, x=np.random.default_rng(seed).normal(size=(len(ids), 4)).astype(np.float32))


def signs(found: DisjointComparison) -> dict[str, tuple[str, ...]]:
    return {
        one.statistic: find_signs(
            count_in_bins(found.statistics[one.statistic], one.edges),
            one.reference_counts,
            one.p_value,
            max_psi=BOUNDS.max_psi,
            min_p_value=BOUNDS.min_drift_p_value,
        )
        for one in found.comparisons
    }


@pytest.mark.parametrize("split", [redrawn, dealt])
@pytest.mark.parametrize(
    ("vocabulary", "zipf", "words"), [(3000, 1.0, 1), (20_000, 1.0, 1), (600, 0.7, 1), (300, 1.0, 2), (3000, 0.0, 1)]
)
def test_clean_disjoint_sets_of_short_texts_are_not_refused(
    split: Callable[[Words, int], tuple[Ids, Ids]], vocabulary: int, zipf: float, words: int
) -> None:
    refused = warned = sets = 0
    for seed in range(10):
        calibration, evaluation = split(Words(vocabulary, zipf, words, seed), 128)
        if len(calibration) < 64:
            continue  # the evaluation samples hold nearly all there is
        most = max(len(found) for found in signs(compared(calibration, evaluation)).values())
        refused, warned, sets = refused + (most == 2), warned + (most == 1), sets + 1
    assert refused == 0 and warned <= 1
    assert sets == 10 or (split is redrawn and vocabulary == 600)


def longest(texts: Words) -> Ids:
    """Texts of the words with the most pieces."""
    more = texts.draw(6000)
    return more[np.argsort(-np.count_nonzero(more, axis=1), kind="stable")]


def foreign(texts: Words) -> Ids:
    """Texts whose pieces no other text has."""
    more = texts.draw(6000)
    return np.where((more > 0) & (more < 90_000), more + 30_000, more)


@pytest.mark.parametrize(("plant", "statistic"), [(longest, "ids.length"), (foreign, "ids.mean")])
@pytest.mark.parametrize("words", [1, 3])
def test_drift_of_short_texts_is_still_refused(plant: Any, statistic: str, words: int) -> None:
    for seed in range(5):
        texts = Words(3000, 1.0, words, seed)
        evaluation = texts.draw(2000)
        known = set(digest_samples({"ids": evaluation}))
        planted = plant(texts)
        new = np.array([digest not in known for digest in digest_samples({"ids": planted})])
        calibration = np.unique(planted[new][:400], axis=0)[:128]
        assert len(signs(compared(calibration, evaluation))[statistic]) == 2


@pytest.mark.parametrize("values", [2, 5, 1000, 50_000])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_clean_halves_with_few_integers_a_sample_show_no_drift(width: int, values: int) -> None:
    """Lengths, users, items, categories: one draw, cut in two."""
    for seed in range(5):
        shape = (1128,) if width == 1 else (1128, width)
        ids = np.random.default_rng([seed, 1]).integers(1, values + 1, shape)
        found = compared_samples(beside_features(ids[:128], 2 * seed), beside_features(ids[128:], 2 * seed + 1))
        assert not any(signs(found).values())


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("values", [5, 1000, 50_000])
def test_other_integers_are_refused(width: int, values: int) -> None:
    """Values of the upper half alone."""
    shape = (1128,) if width == 1 else (1128, width)
    ids = np.random.default_rng(1).integers(1, values + 1, shape)
    ids[:128] = np.random.default_rng(2).integers(values // 2 + 1, values + 1, (128, *shape[1:]))
    found = compared_samples(beside_features(ids[:128], 3), beside_features(ids[128:], 4))
    assert len(signs(found)["ids.mean"]) == 2


def test_words_that_repeat_in_the_traffic_are_no_drift() -> None:
    """Calibration samples may be requests: only the evaluation data must lack them."""
    words = np.random.default_rng(0).integers(1, 400, (1128, 1)) * [[1, 0]]
    ours, theirs = samples_of(words[:128]), samples_of(words[128:])
    found = compare_disjoint(ours, theirs, [], BOUNDS, seed=7, is_evaluation=False)
    assert found.note == "" and not any(signs(found).values())


def test_tokens_of_one_group_are_no_drift_among_dealt_groups() -> None:
    """Each user has words of his own, in ten texts: among the users of another file they are all unseen."""
    users = np.repeat(np.arange(200), 10)
    texts = users[:, None] * 20 + np.random.default_rng(0).integers(1, 20, (2000, 6))
    ours = users < 13
    sides = [replace(samples_of(texts[rows]), clusters=users[rows]) for rows in (ours, ~ours)]
    assert not any(signs(compared_samples(*sides))["ids.share of unseen tokens"])
    assert len(signs(compared(texts[ours], texts[~ours]))["ids.share of unseen tokens"]) == 2


def test_a_state_is_not_compared() -> None:
    """The number of the call, which the source counts, is another in each file."""
    rng = np.random.default_rng(0)
    feeds = Feeds((TensorSpec("ids", "int64", ("n", 6)), TensorSpec("call", "int64", ("n",))), states={"call": "next"})
    sides = [samples_of(rng.integers(1, 400, (n, 6)), call=np.full(n, call)) for n, call in ((128, 3), (1000, 7))]
    assert len(signs(compared_samples(*sides))["call.mean"]) == 2
    found = compared_samples(*(replace(side, feeds=feeds) for side in sides))
    assert {name.split(".")[0] for name in signs(found)} == {"ids"}


def test_without_copies_the_whole_reference_is_compared() -> None:
    rng = np.random.default_rng(0)
    found = compared(rng.integers(1, 30_000, (128, 12)), rng.integers(1, 30_000, (2000, 12)))
    assert found.note == "" and all(sum(one.reference_counts) == 2000 for one in found.comparisons)


def test_the_note_counts_the_reference_samples_that_are_compared() -> None:
    ids = np.arange(1, 401).reshape(100, 4)
    # Rows 0 to 79 occur once, 80 to 99 twice.
    evaluation = np.concatenate([ids, ids[80:]])
    found = compared(np.arange(1, 401).reshape(100, 4)[::-1], evaluation)
    assert found.note in {
        "the 80 of 120 samples that occur once",
        "the 100 of 120 samples that differ from each other",
    }
    counted = {sum(one.reference_counts) for one in found.comparisons}
    assert counted == {int(found.note.split()[1])}

"""Samples that come in clusters: bounds that hold, whichever way and however much the samples of one resemble each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_gates import GATES, NO_SPLIT, kept
from test_intervals import Floats, f1_drop, interval_of, mean_drop
from test_judge import Bench, good_trial, make_job, right
from test_split import samples, some

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.drops import estimate_drop, estimate_sqnr
from tasks.measure.metrics.texts import make_decoder
from tasks.trials.judge import judge_trial
from tasks.trials.judge_on_samples import JudgedData
from validators.errors import DataError, JobError
from validators.gates.accuracy import check_gates_can_be_met, judge_drop
from validators.gates.clusters import clustered_drop_interval, number_clusters
from validators.gates.intervals import drop_interval, mean_interval, paired_interval, tango_interval
from validators.job.job_data import TextDecoding
from validators.samples.confirmation_split import confirmation_mask


def flips(rng: np.random.Generator, n: int, lost: float, gained: float) -> Floats:
    """Drops of right and wrong answers."""
    return rng.choice([1.0, -1.0, 0.0], n, p=[lost, gained, 1 - lost - gained])


def clustered(rng: np.random.Generator, count: int, size: int, follow: float) -> tuple[Floats, NDArray[np.intp]]:
    """Drops of mean 0.02 in clusters; each sample is its cluster's with a probability of `follow`, else one of its own."""
    ids = np.repeat(np.arange(count), size)
    common, own = flips(rng, count, 0.07, 0.05)[ids], flips(rng, len(ids), 0.07, 0.05)
    return np.where(rng.random(len(ids)) < follow, common, own), ids


@pytest.mark.parametrize(("count", "size", "follow"), [(400, 5, 1.0), (100, 20, 0.5), (10, 20, 0.5)])
def test_clusters_pass_as_seldom_as_they_should(count: int, size: int, follow: float) -> None:
    """Of 300 draws that lose the tolerance at most 5 % (and 3 standard errors) pass; ignoring clusters passes far more."""
    rng = np.random.default_rng(3)
    named, ignored, draws = 0, 0, 300
    for _ in range(draws):
        drops, ids = clustered(rng, count, size, follow)
        for clusters in (ids, None):
            found = drop_interval(drops, 0.95) if clusters is None else clustered_drop_interval(drops, ids, 0.95)
            passed = judge_drop(found[0], GATES, n=1, method="").outcome == "pass"
            ignored, named = ignored + (clusters is None) * passed, named + (clusters is not None) * passed
    assert named / draws <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)
    assert ignored / draws > 0.10


def test_copies_of_samples_tell_no_more_than_one_of_each() -> None:
    """Twenty copies of each drop have the bounds of the drops themselves, but for the degrees of freedom."""
    drops = flips(np.random.default_rng(1), 300, 0.06, 0.04)
    low, _, high = interval_of(clustered_drop_interval(np.repeat(drops, 20), np.repeat(np.arange(300), 20), 0.95)[0])
    expected = tango_interval(int((drops == 1).sum()), int((drops == -1).sum()), 300, 0.95)
    assert (low, high) == pytest.approx(expected, abs=6e-4)
    values = np.random.default_rng(2).normal(size=300)
    low, _, high = interval_of(clustered_drop_interval(np.repeat(values, 20), np.repeat(np.arange(300), 20), 0.95)[0])
    assert (low, high) == pytest.approx(mean_interval(values, 0.95), rel=1e-6)


def test_clusters_of_different_sizes_weigh_as_they_are() -> None:
    """The drop is the mean over samples; the variance is that of CR3, reckoned here by leaving clusters out."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 30, 40)
    ids = np.repeat(np.arange(40), sizes)
    drops = rng.normal(size=40)[ids] + rng.normal(size=len(ids))
    low, value, high = interval_of(clustered_drop_interval(drops, ids, 0.95)[0])
    assert value == pytest.approx(drops.mean())
    without = np.array([drops[ids != one].mean() for one in range(40)])
    pseudo = 40 * value - 39 * without
    ends = [abs(end - pseudo.mean()) for end in mean_interval(pseudo, 0.95)]
    # At least as far as a cluster like the farthest may lie, of which up to 1 - 0.05^(1/28) may be unseen: 28 of equal size.
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    unseen = (1 - 0.05 ** (1 / effective)) * np.abs(pseudo - pseudo.mean()).max()
    assert (value - low, high - value) == pytest.approx([max(end, unseen) for end in ends], rel=1e-9)


def test_few_clusters_have_no_interval() -> None:
    """Seven, or many of which one has nearly all samples: inconclusive, with the reason."""
    rng = np.random.default_rng(6)
    for ids in (np.repeat(np.arange(7), 100), np.concatenate([np.zeros(660, np.intp), np.arange(1, 41)])):
        for drops in (rng.normal(size=700), flips(rng, 700, 0.1, 0.1)):
            found, method = clustered_drop_interval(drops, ids, 0.95)
            assert (found.low, found.high) == (None, None) and "clusters" in method
            verdict = judge_drop(found, GATES, n=7, method=method, counted="clusters")
            assert verdict.outcome == "inconclusive" and verdict.reason.endswith("more clusters would settle it")


def test_clusters_that_are_all_lost_may_be_unseen() -> None:
    """A variant that never differs needs 149 clusters for 2 %: 1 - 0.05^(1/149) is 1.99 %, and of 148 2.004 %."""
    for count, outcome in ((149, "pass"), (148, "inconclusive")):
        drop, method = clustered_drop_interval(np.zeros(count * 9), np.repeat(np.arange(count), 9), 0.95)
        assert judge_drop(drop, GATES, n=count, method=method).outcome == outcome
        clusters = np.repeat(np.arange(count), 9)
        if outcome == "pass":
            check_gates_can_be_met(GATES, NO_SPLIT, kept(count * 9, 0), {}, clusters=clusters, is_right_or_wrong=True)
            continue
        with pytest.raises(JobError, match="148 clusters of equal weight of evaluation samples") as caught:
            check_gates_can_be_met(GATES, NO_SPLIT, kept(count * 9, 0), {}, clusters=clusters, is_right_or_wrong=True)
        assert "at least 149 clusters" in caught.value.expected and "data.groups" in caught.value.fix


def test_seven_clusters_are_refused_for_values() -> None:
    """No interval comes of fewer than eight."""
    clusters = np.repeat(np.arange(8), 50)
    check_gates_can_be_met(GATES, NO_SPLIT, kept(400, 0), {}, clusters=clusters, is_right_or_wrong=False)
    with pytest.raises(JobError, match="at least 8 clusters"):
        check_gates_can_be_met(GATES, NO_SPLIT, kept(350, 0), {}, clusters=clusters[:350], is_right_or_wrong=False)


def test_equal_values_and_bad_values_by_clusters() -> None:
    """A constant shift is known from 59 clusters on; NaN has no interval."""
    for count, known in ((59, True), (58, False)):
        found, method = clustered_drop_interval(np.full(count * 3, 0.25), np.repeat(np.arange(count), 3), 0.95)
        assert (found.high == 0.25) is known and "equal" in method
        # Clusters of equal means, whose samples differ.
        found, method = clustered_drop_interval(np.tile([0.0, 0.5], count), np.repeat(np.arange(count), 2), 0.95)
        assert (found.high == 0.25) is known and "equal" in method
    found, _ = clustered_drop_interval(np.array([0.5, math.nan] * 20), np.repeat(np.arange(20), 2), 0.95)
    assert math.isnan(found.value)


# Metrics that are no means


def test_the_jackknife_leaves_whole_clusters_out() -> None:
    """Of a mean it is the interval of the mean by clusters; copies of rows do not narrow that of F1."""
    rng = np.random.default_rng(7)
    ids = np.repeat(np.arange(200), 3)
    baseline, variant = rng.exponential(size=(2, 200, 1))[:, ids]
    found = interval_of(paired_interval(baseline, variant, mean_drop, 0.95, seed=1, clusters=ids)[0])
    assert found == pytest.approx(
        interval_of(clustered_drop_interval((baseline - variant)[:, 0], ids, 0.95)[0]), rel=1e-6
    )
    before, after = (np.eye(3)[rng.choice(3, 200, p=odds)] for odds in ([0.8, 0.1, 0.1], [0.7, 0.1, 0.2]))
    single = interval_of(paired_interval(before, after, f1_drop, 0.95, seed=1)[0])
    copies = interval_of(paired_interval(before[ids], after[ids], f1_drop, 0.95, seed=1, clusters=ids)[0])
    ignored = interval_of(paired_interval(before[ids], after[ids], f1_drop, 0.95, seed=1)[0])
    assert copies == pytest.approx(single, rel=1e-6)
    assert ignored[2] - ignored[0] < 0.7 * (copies[2] - copies[0])


def test_many_clusters_are_left_out_by_bundles() -> None:
    """Of 600 clusters 250 looks or fewer; the width is that of 250 clusters of as many samples each, but for their number."""
    rng = np.random.default_rng(8)
    ids = np.repeat(np.arange(600), 4)
    looks = 0

    def count(before: Floats, after: Floats) -> float:
        nonlocal looks
        looks += 1
        return mean_drop(before, after)

    baseline, variant = rng.exponential(size=(2, 600, 1))[:, ids]
    low, _, high = interval_of(paired_interval(baseline, variant, count, 0.95, seed=1, clusters=ids)[0])
    exact = interval_of(clustered_drop_interval((baseline - variant)[:, 0], ids, 0.95)[0])
    assert looks <= 251 and high - low == pytest.approx(exact[2] - exact[0], rel=0.2)


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "auroc", "r2", "spearman", "wer"])
def test_every_kind_of_metric_counts_clusters(name: Any) -> None:
    """Ten copies of each row: named as clusters the interval is that of single rows, or wider; ignored it is far narrower."""
    rng = np.random.default_rng(9)
    metric = named_metric(name, Options(0.0, make_decoder(TextDecoding())))
    n, ids = 200, np.repeat(np.arange(200), 10)
    labels = rng.integers(0, 3, n)
    if name in ("accuracy", "f1_macro", "auroc"):
        sides = [np.eye(3)[labels] + rng.normal(size=(n, 3)) * noise for noise in (0.5, 0.7)]
    elif name == "wer":
        labels = np.array([f"one two three {label}" for label in labels])
        sides = [np.where(rng.random(n) < odds, "one too", labels) for odds in (0.1, 0.3)]
    else:
        labels = rng.normal(size=n)
        sides = [(labels + rng.normal(size=n) * noise)[:, None] for noise in (0.5, 0.7)]
    single = [metric.rows(outputs, labels, None) for outputs in sides]
    many = [metric.rows(outputs[ids], labels[ids], None) for outputs in sides]
    widths = {}
    for words, rows, clusters in (("single", single, None), ("named", many, ids), ("ignored", many, None)):
        low, _, high = interval_of(estimate_drop(metric, *rows, 0.95, seed=1, clusters=clusters)[0])
        widths[words] = high - low
    assert 0.95 * widths["single"] < widths["named"] < 1.3 * widths["single"]
    assert widths["ignored"] < 0.5 * widths["named"]


def test_noise_counts_clusters() -> None:
    """The ratio of signal to noise too; a cluster a sample is no cluster."""
    rng = np.random.default_rng(3)
    signal = rng.gamma(4.0, 25.0, 100)
    rows = np.column_stack([signal, signal * rng.gamma(2.0, 0.005, 100)])
    ids = np.repeat(np.arange(100), 10)
    single, ignored = (interval_of(estimate_sqnr(part, 0.95, seed=1)[0]) for part in (rows, rows[ids]))
    named = interval_of(estimate_sqnr(rows[ids], 0.95, seed=1, clusters=ids)[0])
    assert named[0] <= single[0] + 1e-6 and ignored[0] > single[0] + 0.1
    alone = estimate_sqnr(rows, 0.95, seed=1, clusters=np.random.default_rng(1).permutation(100))[0]
    assert interval_of(alone) == single


# Judging and splitting


def test_a_trial_is_judged_by_its_clusters(bench: Bench) -> None:
    """Ten samples lost of 2,000, in one patient of 100: passes by samples, and by patients it is inconclusive. Slices too."""
    baseline, variant = right(1500, 2000), right(1500, 2000)
    variant[:10] = False
    patients = np.repeat([f"p{number}" for number in range(100)], 20)
    place = np.array(["in", "out"])[np.arange(2000) % 2]
    trial, accuracy = good_trial(bench.accuracy(variant)), bench.accuracy(baseline)
    judged_data = JudgedData(make_job(), accuracy, 1000, np.zeros(2000, bool), {"place": place})
    assert judge_trial(judged_data, trial).outcome == "passed"
    judged = judge_trial(replace(judged_data, clusters=patients), trial)
    drop, worst = judged.verdicts[0], judged.verdicts[1]
    assert (drop.gate, drop.outcome, drop.n, drop.counted) == ("drop", "inconclusive", 100, "clusters")
    assert drop.samples_needed is not None and 150 < drop.samples_needed < 2000
    assert drop.reason.endswith("clusters would settle it")
    assert (worst.gate, worst.n) == ("worst_slice", 100) and "clusters of place" in worst.counted
    assert judged.accuracy is not None and judged.accuracy.n == 2000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_no_cluster_is_on_both_sides_of_the_split() -> None:
    """A side follows from the key alone: other samples, another order or other values move no cluster."""
    keys = np.repeat(np.arange(200), 2)
    whole = replace(samples(some()), clusters=keys)
    side = confirmation_mask(whole, 0.5, 1)
    assert (side.reshape(200, 2)[:, :1] == side.reshape(200, 2)).all() and 0.35 < side.mean() < 0.65
    order = np.random.default_rng(2).permutation(len(keys))[:150]
    other = replace(samples(some(150, seed=9)), clusters=keys[order].astype(str))
    assert confirmation_mask(other, 0.5, 1).tolist() == side[order].tolist()
    assert not confirmation_mask(whole, 0.0, 1).any()


def test_the_split_of_clusters_is_that_of_yesterday() -> None:
    """Fixed for good, as that of samples."""
    kept = confirmation_mask(replace(samples(some(24)), clusters=np.arange(24)), 0.5, 1)
    assert "".join("01"[side] for side in kept.tolist()) == "101101001111010100101011"


def test_a_pair_in_two_clusters_is_refused() -> None:
    """One row of the metric cannot be in two."""
    keys = np.repeat(np.arange(200), 2)
    kept = confirmation_mask(replace(samples(some()), clusters=keys), 0.5, 2)
    assert (kept[::2] == kept[1::2]).all()
    keys[7] = 99
    with pytest.raises(DataError, match="samples 6 to 7 are a pair, but are in different groups: 3, 99"):
        confirmation_mask(replace(samples(some()), clusters=keys), 0.5, 2)


def test_clusters_are_numbered_from_zero() -> None:
    assert number_clusters(np.array(["b", "a", "b"])).tolist() == [1, 0, 1]

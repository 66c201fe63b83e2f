"""What a variant loses: positive is worse whichever way the metric runs, bounds that hold, samples that turned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.drops import check_value_gates, count_flips, estimate_drop, estimate_sqnr, estimate_value
from tasks.measure.metrics.texts import make_decoder
from validators.errors import JobError
from validators.gates.accuracy import judge_sqnr
from validators.gates.intervals import drop_interval, mean_interval, paired_interval
from validators.job.job_data import TextDecoding
from validators.job.job_gates import Gates
from validators.records.measurements import Flips

OPTIONS = Options(0.0, make_decoder(TextDecoding()))


@pytest.mark.parametrize(
    ("name", "baseline", "variant", "mean", "flips"),
    [
        ("accuracy", [1, 1, 0, 0, 1], [1, 0, 1, 0, 0], 0.2, Flips(2, 1, 5)),
        ("agreement", [1, 1], [1, 0], 0.5, Flips(1, 0, 2)),
        ("mse", [0.5, 2.0], [1.0, 1.0], -0.25, Flips(1, 1, 2)),
        ("mae", [0.5, 2.0], [0.5, 3.0], 0.5, Flips(1, 0, 2)),
        ("cosine", [0.9, 0.9], [0.9, 0.5], 0.2, Flips(1, 0, 2)),
        ("perplexity", [0.5, 2.0], [0.5, 3.0], 0.5, Flips(1, 0, 2)),
    ],
)
def test_a_mean_is_judged_by_paired_differences(
    name: str, baseline: list[float], variant: list[float], mean: float, flips: Flips
) -> None:
    """By hand; for perplexity in nats."""
    metric = named_metric(name, OPTIONS)
    rows = [np.array(scores, np.float64)[:, None] for scores in (baseline, variant)]
    drop, method = estimate_drop(metric, *rows, 0.95, seed=1)
    assert drop.value == pytest.approx(mean)
    lost = (rows[0] - rows[1])[:, 0] * (1 if metric.higher_is_better else -1)
    assert (drop, method) == drop_interval(lost, 0.95)
    assert count_flips(metric, *rows) == flips


def noisy(name: str, noise: float, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Outputs for a metric, the worse the more noise, and their labels; the same ones of the same generator."""
    labels = rng.integers(0, 3, 300)
    if name in ("f1_macro", "auroc"):
        return np.eye(3)[labels] + rng.normal(size=(300, 3)) * (0.4 + noise), labels
    values = rng.normal(size=300)
    if name in ("wer", "cer"):
        meant = np.array([f"one two three {label}" for label in labels])
        return np.where(rng.random(300) < noise, "one too", meant), meant
    return (values + rng.normal(size=300) * (0.4 + noise))[:, None], values


@pytest.mark.parametrize("name", ["f1_macro", "auroc", "r2", "spearman", "wer", "cer"])
def test_a_worse_model_has_a_positive_drop_beyond_doubt(name: str) -> None:
    """Also where lower is better; any part of the rows says so too, and the other way round it is a gain."""
    metric = named_metric(name, OPTIONS)
    good, bad = (metric.rows(*noisy(name, noise, np.random.default_rng(5)), None) for noise in (0.0, 0.8))
    drop, method = estimate_drop(metric, good, bad, 0.95, seed=3)
    assert drop.low is not None and drop.high is not None
    assert 0 < drop.low < drop.value < drop.high, method
    assert abs(metric.value(good) - metric.value(bad)) == pytest.approx(drop.value)
    gain, _ = estimate_drop(metric, bad, good, 0.95, seed=3)
    assert gain.value == pytest.approx(-drop.value) and gain.high is not None and gain.high < 0
    part = np.arange(len(good)) % 3 == 1
    assert estimate_drop(metric, good[part], bad[part], 0.95, seed=3)[0].value > 0
    flips, back = count_flips(metric, good, bad), count_flips(metric, bad, good)
    assert flips is not None and back is not None
    assert flips.lost > flips.gained and (flips.lost, flips.gained) == (back.gained, back.lost)


def test_accuracy_has_the_lower_bound_of_wilson() -> None:
    """770 of 1,000 right, at 95 % one-sided: (p + z^2 / 2n - z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)."""
    rows, z = (np.arange(1000) < 770).astype(np.float64)[:, None], 1.6448536
    found, _ = estimate_value(named_metric("accuracy", OPTIONS), rows, 0.95, seed=1)
    root = z * math.sqrt(0.77 * 0.23 / 1000 + z**2 / 4e6)
    assert found.value == pytest.approx(0.77)
    assert found.low == pytest.approx((0.77 + z**2 / 2000 - root) / (1 + z**2 / 1000), abs=1e-6)
    assert found.high is not None and 0.77 < found.high < 0.80


def test_mean_metrics_keep_their_direction_and_unit() -> None:
    """An error has the mean's own interval; a perplexity that of the losses, as exp."""
    losses = np.random.default_rng(2).gamma(4.0, 0.5, 500)
    low, high = mean_interval(losses, 0.95)
    for name, show in (("mse", float), ("perplexity", math.exp)):
        found, _ = estimate_value(named_metric(name, OPTIONS), losses[:, None], 0.95, seed=1)  # type: ignore[arg-type]  # names as str
        assert [found.value, found.low, found.high] == pytest.approx([show(losses.mean()), show(low), show(high)])


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "auroc", "wer", "mse"])
def test_value_bounds_hold_their_rate(name: str) -> None:
    """Of 400 draws of 150 samples from 20,000, each bound is beyond the value of all in 5 %, within four standard errors."""
    metric, rng = named_metric(name, OPTIONS), np.random.default_rng(7)
    labels = rng.integers(0, 3, 20_000)
    if name == "wer":
        meant = np.array([f"one two three {label}" for label in labels])
        everything = metric.rows(np.where(rng.random(20_000) < 0.3, "one too", meant), meant, None)
    elif name == "mse":
        values = rng.normal(size=20_000)
        everything = metric.rows((values + rng.normal(size=20_000))[:, None], values, None)
    else:
        scores = np.eye(3)[labels] + rng.normal(size=(20_000, 3)) * 0.6
        everything = metric.rows(scores, labels, None)
    if name == "auroc":  # its rows are ranks among all samples of a set
        draws = [rng.choice(20_000, 150, replace=False) for _ in range(400)]
        rows = [metric.rows(scores[draw], labels[draw], None) for draw in draws]
    else:
        rows = [everything[rng.choice(20_000, 150, replace=False)] for _ in range(400)]
    found = [estimate_value(metric, each, 0.95, seed=1)[0] for each in rows]
    truth = metric.value(everything)
    for beyond in (
        np.mean([one.low is not None and one.low > truth for one in found]),
        np.mean([one.high is not None and one.high < truth for one in found]),
    ):
        assert beyond < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_few_perfect_answers_leave_room_for_others() -> None:
    """Of 58 samples without a fault, up to 1 - 0.05^(1/58) of others may have one; F1 loses about as much."""
    metric = named_metric("f1_macro", OPTIONS)
    for count in (58, 600):
        labels = np.arange(count) % 3
        found, method = estimate_value(metric, metric.rows(np.eye(3)[labels], labels, None), 0.95, seed=1)
        assert found.value == 1 and found.low == pytest.approx(0.05 ** (1 / count), abs=0.2 / count), method


def test_clustered_values_have_wider_bounds() -> None:
    rows = np.repeat(np.random.default_rng(4).random(60) < 0.8, 10).astype(np.float64)[:, None]
    metric = named_metric("accuracy", OPTIONS)
    alone, grouped = (
        estimate_value(metric, rows, 0.95, seed=1, clusters=clusters)[0] for clusters in (None, np.arange(600) // 10)
    )
    assert alone.low is not None and grouped.low is not None
    assert alone.value - alone.low < (grouped.value - grouped.low) / 2


@pytest.mark.parametrize(
    ("name", "gates", "fix"),
    [
        ("accuracy", Gates(max_metric=0.1), "bound the metric by `min_metric`"),
        ("mse", Gates(min_metric=0.1), "bound the metric by `max_metric`"),
        ("sqnr", Gates(min_metric=20.0), "remove `min_metric`; `min_sqnr_db` bounds it"),
        ("ece", Gates(max_metric=0.05), "remove `max_metric`; `max_drop` bounds the rise"),
    ],
)
def test_bound_that_does_not_suit_the_metric_is_refused(name: str, gates: Gates, fix: str) -> None:
    options = Options(0.0, make_decoder(TextDecoding()), "probabilities")
    with pytest.raises(JobError) as error:
        check_value_gates(named_metric(name, options), gates)
    assert error.value.fix == fix
    check_value_gates(named_metric("mse", options), Gates(max_metric=0.1))


def test_flips_by_hand() -> None:
    """F1: right and wrong. AUROC: where the label's own class ranks lower. Words: more errors."""
    f1, auroc, wer = (named_metric(name, OPTIONS) for name in ("f1_macro", "auroc", "wer"))
    before, after = np.array([[0, 0], [1, 1], [2, 0.0]]), np.array([[0, 1], [1, 1], [2, 1.0]])
    assert count_flips(f1, before, after) == Flips(1, 0, 3), "a wrong answer that stays wrong is no flip"
    labels = np.array([1, 0, 1])
    ranks = [auroc.rows(np.array(scores), labels, None) for scores in ([0.9, 0.1, 0.5], [0.9, 0.5, 0.1])]
    assert count_flips(auroc, *ranks) == Flips(2, 0, 3)
    assert count_flips(wer, np.array([[1.0, 4], [2, 4]]), np.array([[0.0, 4], [2, 4]])) == Flips(0, 1, 2)
    assert count_flips(named_metric("sqnr", OPTIONS), ranks[0], ranks[1]) is None


def test_noise_has_bounds_that_hold() -> None:
    """Noise of a tenth of the signal: near 20 dB, with the bounds around it, and tighter with more samples."""
    rng = np.random.default_rng(3)
    signal = rng.gamma(4.0, 25.0, 1000)
    rows = np.column_stack([signal, signal * rng.gamma(2.0, 0.005, 1000)])
    wide, narrow = (estimate_sqnr(part, 0.95, seed=1)[0] for part in (rows[:100], rows))
    for found in (wide, narrow):
        assert found.low is not None and found.high is not None and found.low < found.value < found.high
        assert found.low < 20 < found.high
    assert narrow.value == pytest.approx(20.0, abs=0.5)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2  # type: ignore[operator]  # ends are there, see above
    assert -10 * math.log10(rows[:, 1].sum() / rows[:, 0].sum()) == pytest.approx(narrow.value)


@pytest.mark.parametrize(
    ("rows", "value", "outcome"),
    [
        ([[100.0, 0.0], [50.0, 0.0]], math.inf, "pass"),
        ([[100.0, 0.1], [100.0, 0.11], [100.0, 0.09]] * 8, 30.0, "pass"),
        ([[100.0, 1.0], [100.0, 1.1], [100.0, 0.9]] * 8, 20.0, "fail"),
        ([[0.0, 1.0], [0.0, 0.0]], -math.inf, "fail"),
        ([[100.0, math.nan], [50.0, 0.0]], math.nan, "fail"),
    ],
)
def test_the_noise_gate(rows: list[list[float]], value: float, outcome: str) -> None:
    """At 25 dB: no noise at all passes, noise without a signal does not, and NaN never does."""
    found, method = estimate_sqnr(np.array(rows), 0.95, seed=1)
    assert found.value == pytest.approx(value, nan_ok=True)
    verdict = judge_sqnr(found, Gates(min_sqnr_db=25.0), n=len(rows), method=method)
    assert verdict is not None and (verdict.gate, verdict.outcome) == ("sqnr", outcome)
    assert judge_sqnr(found, Gates(), n=len(rows), method=method) is None


def test_one_far_move_of_a_rank_correlation_counts_as_one() -> None:
    """It shifts the ranks of all between. By Clopper and Pearson up to 4.7 of 300 may move where one was seen, each as far."""
    rng = np.random.default_rng(0)
    gold = rng.normal(size=300)
    before = gold + 0.3 * rng.normal(size=300)
    after = before.copy()
    after[int(before.argmin())] = before.max() + 1
    metric = named_metric("spearman", OPTIONS)
    rows = [metric.rows(answers[:, None], gold, before[:, None]) for answers in (before, after)]
    assert (rows[0] != rows[1]).any(axis=1).all(), "every row's rank is another"
    found, method = estimate_drop(metric, *rows, 0.95, seed=0)
    assert found.high is not None and found.high > found.value + (4.7 - 1) * found.value, method


def test_bounds_contain_the_estimate_without_its_bias() -> None:
    """Average precision of a few samples is too low a drop: mean of the jackknife's pseudo-values against the value."""
    rng = np.random.default_rng(1)
    before, after = rng.gamma(2.0, size=(2, 60))

    def drop(first: NDArray[Any], second: NDArray[Any]) -> float:
        return float(np.log(first.mean()) - np.log(second.mean()) + 30 * np.var(second) / len(second))

    n, value = 60, drop(before[:, None], after[:, None])
    without = [drop(np.delete(before, row)[:, None], np.delete(after, row)[:, None]) for row in range(n)]
    mean = n * value - (n - 1) * float(np.mean(without))
    found, _ = paired_interval(before[:, None], after[:, None], drop, 0.51, seed=0)
    assert abs(mean - value) > 0.5 and found.low is not None and found.high is not None
    assert found.low < min(mean, value) and found.high > max(mean, value)

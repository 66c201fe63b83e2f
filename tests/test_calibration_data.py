"""Calibration data: planted faults are caught by the checks that name them, and clean draws are let through."""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from validators.calibration_checks import DESCRIPTIONS, Evidence, Result, Severity, describe_checks
from validators.calibration_data import MAX_REFERENCE_SAMPLES, conclude, gather_evidence, judge_calibration
from validators.datasets import Arrays, Samples
from validators.drift import (
    compare,
    count_in_bins,
    expect_psi_by_chance,
    find_edges,
    find_signs,
    measure_psi,
)
from validators.errors import DataError
from validators.job import CalibrationBounds
from validators.label_coverage import ShortLabel, find_short_labels
from validators.records import CalibrationVerdict, Check, DataFile
from validators.sample_statistics import BLOCK_VALUES, align, count_nonfinite, differs_from_first, measure_samples

BOUNDS = CalibrationBounds()
CLASSES = 10
IDS = "ids<i>$x"  # any name will do, also one that means something to a browser or a template


def make_samples(inputs: Arrays, labels: NDArray[Any] | None = None, name: str = "some") -> Samples:
    return Samples(DataFile(Path(f"{name}.npz"), "0" * 64, len(next(iter(inputs.values())))), inputs, labels)


def draw(n: int, seed: int, scale: float = 1.0) -> Samples:
    """Images whose brightness and contrast vary, token ids with their mask, and a class that the brightness hints at."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    brightness = rng.normal(0.02 * labels, 0.3)[:, None, None, None]
    contrast = rng.gamma(9.0, 0.1, n)[:, None, None, None]
    pixels = np.maximum(brightness + contrast * rng.normal(size=(n, 3, 6, 6)), 0) * scale
    mask = (np.arange(24) < rng.integers(4, 24, n)[:, None]).astype(np.int64)
    ids = mask * rng.integers(1, 30_000, (n, 24))
    return make_samples({"pixels": pixels.astype(np.float32), IDS: ids, "mask": mask}, labels)


def change(samples: Samples, **inputs: NDArray[Any]) -> Samples:
    return replace(samples, inputs={**samples.inputs, **inputs})


def take(samples: Samples, rows: NDArray[Any]) -> Samples:
    assert samples.labels is not None
    return make_samples({name: array[rows] for name, array in samples.inputs.items()}, samples.labels[rows])


CLEAN, EVALUATION = draw(128, seed=1), draw(2000, seed=2)


def with_nan() -> tuple[Samples, Samples]:
    pixels = CLEAN.inputs["pixels"].copy()
    pixels[17, 1, 2, 3] = np.nan
    return change(CLEAN, pixels=pixels), EVALUATION


def with_leak() -> tuple[Samples, Samples]:
    inputs = {name: array.copy() for name, array in CLEAN.inputs.items()}
    for name, array in inputs.items():
        array[3] = EVALUATION.inputs[name][1234]
    return change(CLEAN, **inputs), EVALUATION


def without_class_three() -> tuple[Samples, Samples]:
    more = draw(200, seed=1)
    assert more.labels is not None
    return take(more, np.flatnonzero(more.labels != 3)[:128]), EVALUATION


def with_input(name: str, value: NDArray[Any]) -> tuple[Samples, Samples]:
    return tuple(change(s, **{name: np.broadcast_to(value, (len(s), *value.shape))}) for s in (CLEAN, EVALUATION))  # type: ignore[return-value]


# Fault, files, failed checks with their severity, and what the failed check must say.
FAULTS: dict[str, tuple[Callable[[], tuple[Samples, Samples]], dict[str, str], list[str]]] = {
    "none": (lambda: (CLEAN, EVALUATION), {}, []),
    "none, of 64": (lambda: (draw(64, seed=3), EVALUATION), {}, []),
    "too few": (
        lambda: (draw(20, seed=4), EVALUATION),
        {"enough_samples": "critical"},
        ["20 samples", "at least 64", "at least 44 more"],
    ),
    "padded with copies": (
        lambda: (take(draw(64, seed=3), np.arange(128) % 60), EVALUATION),
        {"enough_samples": "critical", "no_duplicates": "warning"},
        ["128 samples, 60 of them distinct", "at least 4 more", "remove 68 repeated samples"],
    ),
    "every sample twice": (
        lambda: (take(draw(64, seed=3), np.arange(128) // 2), EVALUATION),
        {"no_duplicates": "warning"},
        ["64 of 128 samples (50.0%)", "at most 5%"],
    ),
    "one leaks": (with_leak, {"no_leakage": "critical"}, ["1 of 128 samples", "remove sample 3 from"]),
    "one NaN": (with_nan, {"finite": "critical"}, ["'pixels' of 1 sample", "drop or repair sample 17"]),
    "class missing": (
        without_class_three,
        {"labels_covered": "critical"},
        ["label 3: 0 samples, 9.", "add at least as many samples: 3 of label 3"],
    ),
    "scaled by 1.5": (
        lambda: (draw(128, seed=1, scale=1.5), EVALUATION),
        {"same_distribution": "critical"},
        ["pixels.std drifts by PSI and KS", "against the evaluation inputs", "how input 'pixels' is made"],
    ),
    "scaled by 1.08, seen in 1,000": (
        lambda: (draw(1000, seed=5, scale=1.08), EVALUATION),
        {"same_distribution": "warning"},
        ["pixels.std drifts by KS (PSI 0.0"],
    ),
    "constant float input": (
        lambda: with_input("bias", np.full(4, 0.5, np.float32)),
        {"varies": "critical"},
        ["input 'bias' is the same in all 128 samples"],
    ),
    "mask of ones": (
        lambda: with_input("mask", np.ones(24, np.int64)),
        {"varies": "warning"},
        ["input 'mask' is the same", "leave it if all requests look so"],
    ),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CalibrationVerdict]:
    """All faults judged once, in a place where a written file, a sent packet or a warning would show."""
    around = tmp_path_factory.mktemp("around")
    for name in ("work", "home", "temp", "pages"):
        (around / name).mkdir()
    bounds, show_warning, filters = BOUNDS, warnings.showwarning, list(warnings.filters)

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(around / "work")
        patch.setenv("HOME", str(around / "home"))
        patch.setattr(tempfile, "tempdir", str(around / "temp"))
        patch.setattr(socket.socket, "connect", refuse)
        found = {
            fault: judge_calibration(*make(), None, bounds, around / "pages" / str(place), seed=7)
            for place, (fault, (make, _, _)) in enumerate(FAULTS.items())
        }
    assert [path for name in ("work", "home", "temp") for path in (around / name).iterdir()] == []
    assert warnings.showwarning is show_warning and warnings.filters == filters
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_by_the_check_that_names_it(
    fault: str, verdicts: dict[str, CalibrationVerdict]
) -> None:
    _, expected, words = FAULTS[fault]
    verdict = verdicts[fault]
    assert {check.name: check.severity for check in verdict.failed} == expected
    said = " | ".join(f"{check.found} | {check.expected} | {check.fix}" for check in verdict.failed)
    assert [word for word in words if word not in said] == []
    outcome = "refused" if "critical" in expected.values() else "accepted_with_warnings" if expected else "accepted"
    assert verdict.outcome == outcome


def test_every_check_speaks_and_only_a_failed_one_asks_for_something(verdicts: dict[str, CalibrationVerdict]) -> None:
    for verdict in verdicts.values():
        assert [check.name for check in verdict.checks] == list(DESCRIPTIONS)
        for check in verdict.checks:
            assert check.found and check.expected and bool(check.fix) != check.passed, check


def test_the_page_shows_the_expectations_with_what_was_observed(verdicts: dict[str, CalibrationVerdict]) -> None:
    page = verdicts["scaled by 1.5"].page
    assert page.suffix == ".html" and (page.parents[4] / "index.html").is_file()
    text = page.read_text(encoding="utf-8")
    for piece in (
        "no_leakage (critical): no sample is in the evaluation data",
        "labels_covered (critical): each label of the evaluation inputs",
        "10 labels; none too rare",
        "corrected KS p-value",
        "'samples': 'calibration', 'share': ",  # the chart of both distributions
        "ids&lt;i&gt;",
    ):
        assert piece in text, piece
    assert "ids<i>" not in text
    assert not [word for word in ("Traceback", "Rendering failed", "None}", ": True") if word in text]


def test_warnings_of_the_process_still_reach_their_reader(verdicts: dict[str, CalibrationVerdict]) -> None:
    with pytest.warns(UserWarning, match="still shown"):
        warnings.warn("still shown", UserWarning, stacklevel=1)
    assert logging._warnings_showwarning is None  # type: ignore[attr-defined]  # no redirection to logging is left


def test_traffic_is_the_reference_and_evaluation_still_the_place_of_leaks(tmp_path: Path) -> None:
    calibration, _ = with_leak()
    bright = change(calibration, pixels=calibration.inputs["pixels"] * np.float32(1.5))
    leaked = bright.inputs["pixels"].copy()
    leaked[3] = EVALUATION.inputs["pixels"][1234]
    traffic = replace(draw(2000, seed=6, scale=1.5), labels=None)
    verdict = judge_calibration(change(bright, pixels=leaked), EVALUATION, traffic, BOUNDS, tmp_path, seed=7)
    assert [check.name for check in verdict.failed] == ["no_leakage"]
    # The traffic has no labels, so that nothing can be said of theirs.
    assert "labels_covered" not in [check.name for check in verdict.checks]
    again = judge_calibration(CLEAN, EVALUATION, traffic, BOUNDS, tmp_path, seed=7)
    assert [check.name for check in again.failed] == ["same_distribution"] and "the traffic" in again.failed[0].fix
    # The site shows its last run alone.
    assert again.page != verdict.page and again.page.is_file() and not verdict.page.exists()


def test_a_fault_of_the_program_is_no_verdict_on_the_data(tmp_path: Path, verdicts: object) -> None:
    from validators.checkpoint import run_checkpoint

    evidence = gather_evidence(CLEAN, EVALUATION, None, BOUNDS, seed=7)
    with pytest.raises(RuntimeError, match=r"expect_column_to_follow_reference on pixels\.std"):
        run_checkpoint(replace(evidence, table=evidence.table.drop(columns="pixels.std")), tmp_path)


def test_judging_from_several_threads_gives_each_its_own_page(tmp_path: Path, verdicts: object) -> None:
    made: dict[int, CalibrationVerdict] = {}

    def judge(place: int) -> None:
        made[place] = judge_calibration(CLEAN, EVALUATION, None, BOUNDS, tmp_path / str(place), seed=7)

    threads = [threading.Thread(target=judge, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {place: (v.outcome, v.page.is_relative_to(tmp_path / str(place))) for place, v in made.items()} == {
        0: ("accepted", True),
        1: ("accepted", True),
    }


# From here on without Great Expectations.


def test_psi_agrees_with_a_table_computed_by_hand() -> None:
    # shares 0.10 0.20 0.40 0.30 against 0.25 each:
    # -0.15 ln 0.4 = 0.137444, -0.05 ln 0.8 = 0.011157, 0.15 ln 1.6 = 0.070501, 0.05 ln 1.2 = 0.009116
    assert measure_psi((10, 20, 40, 30), (50, 50, 50, 50)) == pytest.approx(
        0.137444 + 0.011157 + 0.070501 + 0.009116, abs=2e-6
    )
    # An empty bin counts as half a sample: (0.005 - 0.5) ln 0.01 + (1 - 0.5) ln 2; one empty on both sides as nothing.
    assert measure_psi((0, 100, 0), (50, 50, 0)) == pytest.approx(0.495 * 4.605170 + 0.5 * 0.693147, abs=2e-6)
    assert measure_psi((7, 7), (20, 20)) == 0.0


def test_bins_hold_a_tenth_of_the_reference_and_repeated_values_have_their_own() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 2001.0))
    assert count_in_bins(values, find_edges(values)) == (200,) * 10
    # Seven tenths zero, the rest spread out: below zero nothing, at zero 700, then the deciles that are left.
    clipped = np.concatenate([np.zeros(700), np.arange(1.0, 301.0)])
    assert count_in_bins(clipped, find_edges(clipped)) == (0, 700, 100, 100, 100)
    # A constant can be left on either side.
    assert count_in_bins(np.array([-1.0, 0.0, 0.0, 1e-3]), find_edges(np.zeros(50))) == (1, 2, 1)


def test_psi_by_chance_is_the_average_over_draws_of_one_distribution() -> None:
    rng = np.random.default_rng(0)
    draws = [(count_in_bins(rng.normal(size=128), edges), counts) for edges, counts in _references(rng, 400)]
    average = np.mean([measure_psi(*pair) for pair in draws])
    assert expect_psi_by_chance(*draws[0]) == pytest.approx(9 * (1 / 128 + 1 / 2000))
    assert average == pytest.approx(9 * (1 / 128 + 1 / 2000), rel=0.1)


def _references(rng: np.random.Generator, times: int) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    references = []
    for _ in range(times):
        values = rng.normal(size=2000)
        edges = find_edges(values)
        references.append((edges, count_in_bins(values, edges)))
    return references


def test_p_values_are_corrected_for_the_number_of_statistics() -> None:
    rng = np.random.default_rng(0)
    reference = {name: rng.normal(size=500) for name in "abc"}
    values = {"a": rng.normal(0.3, size=100), "b": rng.normal(0.2, size=100), "c": rng.normal(size=100)}
    raw = {name: stats.ks_2samp(values[name], reference[name], method="asymp").pvalue for name in "abc"}
    first, second, third = sorted(raw.values())
    # Benjamini-Hochberg by hand: p * m / rank, made monotone from the largest down.
    by_hand = {third: third, second: min(third, second * 3 / 2), first: min(third, second * 3 / 2, first * 3)}
    assert {c.statistic: c.p_value for c in compare(values, reference)} == pytest.approx(
        {n: by_hand[raw[n]] for n in "abc"}
    )
    # Values that are missing are left out, and so is a statistic that has none.
    holes = values | {"a": np.concatenate([values["a"], [np.nan]]), "c": np.full(100, np.nan)}
    assert [c.statistic for c in compare(holes, reference)] == ["a", "b"]
    assert compare({}, {}) == ()


@pytest.mark.parametrize(
    ("psi_above_chance", "p_value", "signs"),
    [(0.5, 0.001, ()), (0.51, 0.001, ("PSI",)), (0.5, 0.0009, ("KS",)), (0.51, 0.0009, ("PSI", "KS"))],
)
def test_each_sign_of_drift_has_its_bound(psi_above_chance: float, p_value: float, signs: tuple[str, ...]) -> None:
    assert find_signs(psi_above_chance, p_value, max_psi=0.5, min_p_value=0.001) == signs


@pytest.mark.parametrize("n", [64, 128])
def test_clean_random_splits_raise_no_alarm(n: int) -> None:
    """At most 1 of 100 clean splits may show any sign of drift in any of 11 statistics. Of 4,000, 4 did."""
    pool = measure_samples(draw(12_000, seed=8).inputs)
    alarms = 0
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(12_000)
        values = {name: column[order[:n]] for name, column in pool.items()}
        reference = {name: column[order[n : n + 2000]] for name, column in pool.items()}
        alarms += any(signs_of_drift(values, reference).values())
    assert alarms <= 1


def signs_of_drift(values: dict[str, NDArray[Any]], reference: dict[str, NDArray[Any]]) -> dict[str, tuple[str, ...]]:
    found = {}
    for c in compare(values, reference):
        counts = count_in_bins(values[c.statistic], c.edges)
        above = measure_psi(counts, c.reference_counts) - expect_psi_by_chance(counts, c.reference_counts)
        found[c.statistic] = find_signs(above, c.p_value, max_psi=BOUNDS.max_psi, min_p_value=BOUNDS.min_drift_p_value)
    return found


def test_a_statistic_that_was_constant_cannot_move_unseen() -> None:
    reference = {"share of zeros": np.zeros(2000)}
    assert signs_of_drift({"share of zeros": np.full(64, 0.01)}, reference) == {"share of zeros": ("PSI", "KS")}
    assert signs_of_drift({"share of zeros": np.zeros(64)}, reference) == {"share of zeros": ()}


@pytest.mark.parametrize(("classes", "n"), [(10, 64), (10, 128), (100, 1000)])
def test_random_draws_are_seldom_refused_for_a_label(classes: int, n: int) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(classes, 5.0))
    refused = 0
    for _ in range(300):
        counts, reference = (dict(enumerate(rng.multinomial(size, shares).tolist())) for size in (n, 2000))
        refused += bool(find_short_labels(counts, reference, min_share=0.25))
    assert refused <= 15  # 5 %, as promised


def test_a_label_is_short_below_its_share_and_beyond_chance() -> None:
    reference = {0: 1000, 1: 900, 2: 100}
    assert find_short_labels({0: 600, 1: 400}, reference, 0.25) == (ShortLabel(2, 0, 13, 0.05),)
    assert find_short_labels({0: 600, 1: 388, 2: 12}, reference, 0.25) == (ShortLabel(2, 12, 13, 0.05),)
    assert find_short_labels({0: 600, 1: 387, 2: 13}, reference, 0.25) == ()
    # Of 90 samples 4.5 are expected of label 2: too few to require any.
    assert find_short_labels({0: 60, 1: 30}, reference, 0.25) == ()
    # Five are expected and none is there, but in one of a hundred labels: by chance (0.7 % for each).
    many = dict.fromkeys(range(100), 20)
    assert find_short_labels(dict.fromkeys(range(1, 100), 5) | {1: 10}, many, 0.25) == ()
    # Without a bound on the share a label must still occur.
    assert find_short_labels({0: 600, 1: 400}, reference, 0.0) == (ShortLabel(2, 0, 1, 0.05),)


def test_statistics_agree_with_numpy_across_blocks() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(70, BLOCK_VALUES // 32 + 3)).astype(np.float32)
    images[5, :100], images[9, 7], images[69, 8] = 0, np.inf, np.nan
    ids = rng.integers(0, 4, (70, 9))
    table = measure_samples({"x": images, "ids": ids, "words": np.array(["a"] * 70)})
    good = np.delete(np.arange(70), [9, 69])
    exact = images[good].astype(np.float64)
    expected = {
        "x.mean": exact.mean(1),
        "x.std": exact.std(1),
        "x.min": exact.min(1),
        "x.max": exact.max(1),
        "x.share of zeros": (exact == 0).mean(1),
        "ids.mean": ids.mean(1)[good],
        "ids.share of zeros": (ids == 0).mean(1)[good],
        "ids.length": (ids > 0).sum(1)[good],
    }
    assert list(table) == list(expected)
    for name, column in expected.items():
        np.testing.assert_allclose(table[name][good], column, rtol=1e-12, err_msg=name)
    assert np.isnan(table["x.std"][[9, 69]]).all()
    assert np.flatnonzero(count_nonfinite(images)).tolist() == [9, 69]
    rows = np.array([3, 60, 64])
    np.testing.assert_array_equal(measure_samples({"x": images}, rows)["x.max"], table["x.max"][rows])
    same = np.broadcast_to(images[:1], images.shape).copy()
    same[66, -1] += 1
    assert np.flatnonzero(differs_from_first(same)).tolist() == [66]


def test_rounding_is_no_drift() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(2100, 300))
    once = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    # Normalized again in half precision on the way to the calibration file: a mean of about 1e-5, not 1e-17.
    calibration = measure_samples({"x": (once[:100] * 1024).astype(np.float32) / np.float32(1024.0001)})
    reference = measure_samples({"x": once[100:]})
    assert any(signs_of_drift(calibration, reference).values())
    assert not any(signs_of_drift(*align(calibration, reference)).values())
    # What is larger than rounding stays.
    moved = measure_samples({"x": once[:100] * 1.001})
    assert signs_of_drift(*align(moved, reference))["x.std"] == ("PSI", "KS")


def test_a_reference_without_finite_values_is_an_error_of_the_file() -> None:
    traffic = change(EVALUATION, pixels=np.full((2000, 3, 6, 6), np.nan, np.float32))
    traffic = replace(traffic, file=replace(traffic.file, path=Path("traffic.npz")))
    with pytest.raises(DataError, match=r"traffic\.npz: NaN or Inf in input 'pixels'"):
        gather_evidence(CLEAN, EVALUATION, traffic, BOUNDS, seed=7)


def test_labels_are_judged_only_where_both_files_have_class_indices() -> None:
    values = make_samples({"x": np.arange(8.0)[:, None]}, np.linspace(0, 1, 8))
    classes = replace(values, labels=np.arange(8) % 2)
    for calibration, evaluation in ((values, classes), (classes, values), (replace(classes, labels=None), classes)):
        assert gather_evidence(calibration, evaluation, None, BOUNDS, seed=7).reference_labels is None
    assert gather_evidence(classes, classes, None, BOUNDS, seed=7).reference_labels == {0: 4, 1: 4}


def test_a_large_reference_is_sampled_by_the_seed() -> None:
    big = make_samples({"x": np.random.default_rng(0).normal(size=(MAX_REFERENCE_SAMPLES * 2, 1))})
    calibration = make_samples({"x": big.inputs["x"][:50]})
    first, same, other = (gather_evidence(calibration, big, None, BOUNDS, seed=seed) for seed in (1, 1, 2))
    assert first.comparisons == same.comparisons != other.comparisons
    assert sum(first.comparisons[0].reference_counts) == MAX_REFERENCE_SAMPLES
    assert first.table["in evaluation"].sum() == 50  # leaks are looked for in all of it


def make_result(check: str, passed: bool, severity: Severity, subject: str = "x") -> Result:
    details = {"psi": 1.0, "psi_by_chance": 0.1, "p_value": 1e-9, "signs": [] if passed else ["KS"], "short": []}
    return Result(check, subject, passed, severity, {"observed_value": 1, "details": details})


@pytest.mark.parametrize(
    ("critical", "warning", "severity", "outcome"),
    [
        (True, True, "critical", "accepted"),
        (True, False, "warning", "accepted_with_warnings"),
        (False, False, "critical", "refused"),
    ],
)
def test_a_check_is_as_grave_as_its_gravest_failure(critical: bool, warning: bool, severity: str, outcome: str) -> None:
    table = pd.DataFrame({"in evaluation": [0, 0], "x.not finite": [0, 0]})
    evidence = Evidence(table, ("x",), (), (), {"x.mean": (1.0, 2.0)}, "the traffic", None, BOUNDS)
    results = [make_result(name, True, "critical") for name in ("enough_samples", "finite", "varies", "no_leakage")]
    results.append(make_result("no_duplicates", True, "warning"))
    results.append(make_result("same_distribution", critical, "critical", "x.mean"))
    results.append(make_result("same_distribution", warning, "warning", "x.mean"))
    checks = describe_checks(evidence, results)
    (check,) = [check for check in checks if check.name == "same_distribution"]
    assert (check.passed, check.severity) == (critical and warning, severity)
    assert conclude(checks) == outcome


def test_one_critical_failure_refuses_whatever_else_passed() -> None:
    good = Check("a", True, "critical", "", "", "")
    assert conclude((good, replace(good, passed=False, severity="warning"), replace(good, passed=False))) == "refused"
    assert conclude((good, replace(good, passed=False, severity="warning"))) == "accepted_with_warnings"
    assert conclude((good,)) == "accepted"

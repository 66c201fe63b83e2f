"""Calibration data: planted faults are caught by the checks that name them, and clean draws are let through."""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from validators.calibration.checks.catalog import CHECKS, describe_checks, measure_columns
from validators.calibration.checks.check import ExpectationResult, Severity
from validators.calibration.disjoint import MAX_REFERENCE_SAMPLES
from validators.calibration.evidence import CalibrationEvidence, Leaks, gather_evidence
from validators.calibration.judge import conclude, judge_calibration
from validators.errors import DataError
from validators.job.job_data import CalibrationBounds
from validators.records.run import CalibrationVerdict, Check, DataFile
from validators.samples.datasets import Arrays, Samples, TensorSpec
from validators.samples.feeds import Feeds

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


STATE = Feeds((TensorSpec("bias", "float32", ("n", 4)),), states={"bias": "next"})
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


def with_patients() -> tuple[Samples, Samples]:
    """Patients 40 to 42 have samples in both files, none of which is a copy of another."""
    ours, theirs = np.arange(128) // 3, 40 + np.arange(2000) // 4
    return replace(CLEAN, clusters=ours), replace(EVALUATION, clusters=theirs.astype(str))


def without_class_three() -> tuple[Samples, Samples]:
    more = draw(200, seed=1)
    assert more.labels is not None
    return take(more, np.flatnonzero(more.labels != 3)[:128]), EVALUATION


def with_input(name: str, value: NDArray[Any]) -> tuple[Samples, Samples]:
    return tuple(change(s, **{name: np.broadcast_to(value, (len(s), *value.shape))}) for s in (CLEAN, EVALUATION))


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
        ["128 samples, 60 of them distinct", "at least 4 more", "remove or replace 68 repeated samples"],
    ),
    "every sample twice": (
        lambda: (take(draw(64, seed=3), np.arange(128) // 2), EVALUATION),
        {"no_duplicates": "warning"},
        ["64 of 128 samples (50.0%)", "at most 5%"],
    ),
    "one leaks": (with_leak, {"no_leakage": "critical"}, ["1 of 128 samples", "remove sample 3 from"]),
    "two patients in both": (
        with_patients,
        {"no_leakage": "critical"},
        ["8 samples of 3 groups in both (40, 41, 42)", "no group (`data.groups`) in both files", "remove 8 samples"],
    ),
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
    "a state that is constant": (
        lambda: tuple(replace(s, feeds=STATE) for s in with_input("bias", np.full(4, 0.5, np.float32))),
        {},
        [],
    ),
    "mask of ones": (
        lambda: with_input("mask", np.ones(24, np.int64)),
        {"varies": "warning"},
        ["input 'mask' is the same", "ignore this if it never varies in requests"],
    ),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CalibrationVerdict]:
    """All faults judged once, in a place where a written file, a sent packet or a warning would show."""
    around = tmp_path_factory.mktemp("around")
    for name in ("work", "home", "temp", "pages"):
        (around / name).mkdir()
    handlers, filters = warning_handlers(), list(warnings.filters)

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(around / "work")
        patch.setenv("HOME", str(around / "home"))
        patch.setattr(tempfile, "tempdir", str(around / "temp"))
        patch.setattr(socket.socket, "connect", refuse)
        found = {
            fault: judge_calibration(*make(), None, None, BOUNDS, around / "pages" / str(place), seed=7)
            for place, (fault, (make, _, _)) in enumerate(FAULTS.items())
        }
    assert [path for name in ("work", "home", "temp") for path in (around / name).iterdir()] == []
    assert warning_handlers() == handlers and warnings.filters == filters
    return found


def warning_handlers() -> tuple[object, object]:
    # The second is what `logging.captureWarnings` has put aside, None when it is off.
    return warnings.showwarning, logging._warnings_showwarning


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


def test_every_check_speaks_and_only_failed_ones_ask_for_fixes(verdicts: dict[str, CalibrationVerdict]) -> None:
    for verdict in verdicts.values():
        expected = [check.name for check in CHECKS if not check.is_optional or check.name == "labels_covered"]
        assert [check.name for check in verdict.checks] == expected
        for check in verdict.checks:
            assert check.found and check.expected and bool(check.fix) != check.passed, check


def test_the_page_shows_the_expectations_with_what_was_observed(verdicts: dict[str, CalibrationVerdict]) -> None:
    page = verdicts["scaled by 1.5"].page
    assert page.name == "calibration.html" and (page.parent / "index.html").is_file()
    text = page.read_text(encoding="utf-8")
    for piece in (
        "no_leakage (critical): no sample is in the evaluation data",
        "labels_covered (critical): each label of the evaluation inputs",
        "10 values; none too rare",
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


def test_traffic_is_reference_and_leaks_are_sought_in_evaluation(tmp_path: Path) -> None:
    calibration, _ = with_leak()
    bright = change(calibration, pixels=calibration.inputs["pixels"] * np.float32(1.5))
    leaked = bright.inputs["pixels"].copy()
    leaked[3] = EVALUATION.inputs["pixels"][1234]
    traffic = replace(draw(2000, seed=6, scale=1.5), labels=None)
    verdict = judge_calibration(change(bright, pixels=leaked), EVALUATION, traffic, None, BOUNDS, tmp_path, seed=7)
    assert [check.name for check in verdict.failed] == ["no_leakage"]
    # The traffic has no labels, so that nothing can be said of theirs.
    assert "labels_covered" not in [check.name for check in verdict.checks]
    again = judge_calibration(CLEAN, EVALUATION, traffic, None, BOUNDS, tmp_path, seed=7)
    assert [check.name for check in again.failed] == ["same_distribution"] and "the traffic" in again.failed[0].fix
    # The site shows its last run alone.
    assert len(list(tmp_path.glob("validations/*/*/*/*.html"))) == 1


def test_a_fault_of_the_program_is_no_verdict_on_the_data(tmp_path: Path, verdicts: object) -> None:
    from validators.calibration.gx_checkpoint import run_checkpoint

    columns = measure_columns(CLEAN)
    evidence = gather_evidence(CLEAN, EVALUATION, None, None, BOUNDS, seed=7, columns_of_checks=columns)
    with pytest.raises(RuntimeError, match=r"expect_column_to_follow_reference on pixels\.std"):
        run_checkpoint(replace(evidence, table=evidence.table.drop(columns="pixels.std")), tmp_path)


def test_threads_judge_one_after_the_other(tmp_path: Path, verdicts: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from validators.calibration import gx_checkpoint as checkpoint

    run, inside, most, made = checkpoint.run_checkpoint, [0], [0], {}

    def watched(evidence: CalibrationEvidence, page_folder: Path) -> tuple[list[ExpectationResult], Path]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.2)
        found = run(evidence, page_folder)
        inside[0] -= 1
        return found

    def judge(place: str) -> None:
        made[place] = judge_calibration(CLEAN, EVALUATION, None, None, BOUNDS, tmp_path / place, seed=7)

    monkeypatch.setattr(checkpoint, "run_checkpoint", watched)
    threads = [threading.Thread(target=judge, args=(place,)) for place in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert all(v.outcome == "accepted" and v.page.is_relative_to(tmp_path / place) for place, v in made.items())
    assert set(made) == {"a", "b"}


# From here on without Great Expectations.


def test_reference_without_finite_values_is_an_error_of_the_file() -> None:
    traffic = change(EVALUATION, pixels=np.full((2000, 3, 6, 6), np.nan, np.float32))
    traffic = replace(traffic, file=replace(traffic.file, path=Path("traffic.npz")))
    with pytest.raises(DataError, match=r"traffic\.npz: NaN or Inf in input 'pixels'"):
        gather_evidence(CLEAN, EVALUATION, traffic, None, BOUNDS, seed=7)


def test_rounding_is_left_out_of_the_comparison() -> None:
    raw = np.random.default_rng(0).normal(size=(2100, 300))
    once = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    files = make_samples({"x": once[:100].astype(np.float32)}), make_samples({"x": once[100:]})
    assert min(c.p_value for c in gather_evidence(*files, None, None, BOUNDS, seed=7).comparisons) > 0.01


def test_labels_are_judged_only_if_both_files_have_class_indices() -> None:
    values = make_samples({"x": np.arange(8.0)[:, None]}, np.linspace(0, 1, 8))
    classes = replace(values, labels=np.arange(8) % 2)
    for calibration, evaluation in ((values, classes), (classes, values), (replace(classes, labels=None), classes)):
        assert gather_evidence(calibration, evaluation, None, None, BOUNDS, seed=7).groups == {}
    assert gather_evidence(classes, classes, None, None, BOUNDS, seed=7).groups == {"label": {0: 4, 1: 4}}


def test_a_large_reference_is_sampled_by_the_seed() -> None:
    big = make_samples({"x": np.random.default_rng(0).normal(size=(MAX_REFERENCE_SAMPLES * 2, 1))})
    calibration = make_samples({"x": big.inputs["x"][:50]})
    first, same, other = (gather_evidence(calibration, big, None, None, BOUNDS, seed=seed) for seed in (1, 1, 2))
    assert first.comparisons == same.comparisons != other.comparisons
    assert sum(first.comparisons[0].reference_counts) == MAX_REFERENCE_SAMPLES
    assert first.table["in evaluation"].sum() == 50  # leaks are looked for in all of it


def make_result(check: str, passed: bool, severity: Severity, subject: str = "x") -> ExpectationResult:
    details = {"psi": 1.0, "psi_by_chance": 0.1, "p_value": 1e-9, "signs": [] if passed else ["KS"], "short": []}
    return ExpectationResult(check, subject, passed, severity, {"observed_value": 1, "details": details})


@pytest.mark.parametrize(
    ("critical", "warning", "severity", "outcome"),
    [
        (True, True, "critical", "accepted"),
        (True, False, "warning", "accepted_with_warnings"),
        (False, False, "critical", "refused"),
    ],
)
def test_a_check_is_as_grave_as_its_gravest_failure(critical: bool, warning: bool, severity: str, outcome: str) -> None:
    table = pd.DataFrame({"in evaluation": [0, 0], "near evaluation": [0, 0], "x.not finite": [0, 0]})
    leaks = Leaks(np.full(2, -1), 0.0, 0)
    evidence = CalibrationEvidence(
        table, ("x",), (), (), "", {"x.mean": (1.0, 2.0)}, "the traffic", {}, leaks, None, BOUNDS
    )
    results = [make_result(name, True, "critical") for name in ("enough_samples", "finite", "varies", "no_leakage")]
    results.append(make_result("no_duplicates", True, "warning"))
    results.append(make_result("same_distribution", critical, "critical", "x.mean"))
    results.append(make_result("same_distribution", warning, "warning", "x.mean"))
    checks = describe_checks(evidence, results)
    (check,) = [check for check in checks if check.name == "same_distribution"]
    assert (check.passed, check.severity) == (critical and warning, severity)
    assert conclude(checks) == outcome


def test_one_critical_failure_refuses_whatever_else_passed() -> None:
    good = Check("a", "critical", "", "", "", True)
    assert conclude((good, replace(good, passed=False, severity="warning"), replace(good, passed=False))) == "refused"
    assert conclude((good, replace(good, passed=False, severity="warning"))) == "accepted_with_warnings"
    assert conclude((good,)) == "accepted"

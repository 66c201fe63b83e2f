"""Whole runs with metrics that are no mean of the built-in scores: a user's function, F1, the noise of the outputs."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Tiny
from driving import Answer, run_jobs, write_job
from sklearn import metrics as sk

from tasks.runtimes.ort import open_session
from validators.records.run import SessionSettings
from validators.samples.confirmation_split import confirmation_mask
from validators.samples.datasets import TensorSpec, load_samples

CODE = """
import numpy as np
from margins_of_mine import margin

def mean_margin(outputs, labels):
    return margin(outputs, labels)

def median_margin(outputs, labels):
    return float(np.median(margin(outputs, labels)))

def broken_on_variants(outputs, labels):
    if not np.array_equal(outputs, np.load(__file__.replace("mine.py", "baseline.npy"))):
        raise RuntimeError("not the baseline")
    return outputs.max(axis=1)

def broken(outputs, labels):
    raise RuntimeError("no metric at all")
"""
NEIGHBOUR = """
import numpy as np

def margin(outputs, labels):
    own = np.take_along_axis(outputs, labels[:, None], axis=1)[:, 0]
    others = outputs.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    return own - others.max(axis=1)
"""
pytestmark = pytest.mark.slow


def baseline_outputs(tiny: Tiny) -> np.ndarray:
    with open_session(tiny.model, SessionSettings("CPUExecutionProvider", 1)) as session:
        return session.run(None, {"x": np.load(tiny.evaluation)["x"]})[0]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> dict[str, Answer]:
    root = tmp_path_factory.mktemp("metrics")
    (root / "mine.py").write_text(CODE)
    (root / "margins_of_mine.py").write_text(NEIGHBOUR)
    np.save(root / "baseline.npy", baseline_outputs(tiny))
    gates = {"min_speedup": None, "max_drop": 0.05}
    jobs: dict[str, dict[str, object]] = {
        "f1": {"metric": "f1_macro", "gates": gates},
        "user": {"metric": "mine:mean_margin", "metric_direction": "higher", "gates": gates | {"max_drop": 2.0}},
        "number": {"metric": "mine:median_margin", "metric_direction": "higher", "gates": gates | {"max_drop": 2.0}},
        "noise": {"metric": "sqnr", "gates": gates | {"min_sqnr_db": 10.0}},
        "too noisy": {"metric": "sqnr", "gates": gates | {"min_sqnr_db": 200.0}, "budgets": {"recovery": 0}},
        "faulty": {"metric": "mine:broken_on_variants", "metric_direction": "higher", "gates": gates},
        "broken": {"metric": "mine:broken", "metric_direction": "higher", "gates": gates},
    }
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(write_job(root / f"{name}.yaml", tiny.job(**changes)))}
        for name, changes in jobs.items()
    ]
    return run_jobs(root / "state", root / "runs", calls, plain=True, QUANTGATE_ALLOWED_HOOKS=f"mine:*@{root}")


@pytest.mark.parametrize(
    ("name", "code", "outcome"),
    [
        ("f1", 0, "winner"),
        ("user", 0, "winner"),
        ("number", 0, "winner"),
        ("noise", 0, "winner"),
        ("too noisy", 3, "no_variant"),
        ("faulty", 3, "no_variant"),
        ("broken", 2, "error"),
    ],
)
def test_outcome_and_exit_code(answers: dict[str, Answer], name: str, code: int, outcome: str) -> None:
    answer = answers[name]
    assert answer.result is not None, answer.said
    assert (answer.code, answer.result["outcome"]) == (code, outcome), answer.said
    assert "Traceback" not in answer.said


def test_the_baseline_has_the_librarys_value(answers: dict[str, Answer], tiny: Tiny) -> None:
    """On the samples that choose, which are all but those that confirm."""
    spec = TensorSpec("x", "float32", ("batch", 64))
    samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    choosing = ~confirmation_mask(samples, 0.5, 1)
    labels, outputs = np.load(tiny.evaluation)["label"][choosing], baseline_outputs(tiny)[choosing]
    expected = sk.f1_score(labels, outputs.argmax(axis=1), average="macro")
    f1, number = answers["f1"].result, answers["number"].result
    assert f1 is not None and number is not None
    assert f1["baseline"]["value"] == pytest.approx(expected) and f1["baseline"]["metric"] == "f1_macro"
    own = outputs[np.arange(len(labels)), labels]
    others = np.where(np.eye(4, dtype=bool)[labels], -np.inf, outputs).max(axis=1)
    assert number["baseline"]["value"] == pytest.approx(np.median(own - others), rel=1e-6)


@pytest.mark.parametrize("name", ["f1", "user", "number"])
def test_a_drop_with_its_bounds_and_flips_is_in_the_result(answers: dict[str, Answer], name: str) -> None:
    result = answers[name].result
    assert result is not None
    (candidate,) = result["candidates"]
    drop = candidate["metric_drop"]
    assert drop["low"] <= drop["value"] <= drop["high"]
    assert drop["value"] == pytest.approx(result["baseline"]["value"] - candidate["metric_value"])
    assert (candidate["flips"] is None) == (name == "number")
    assert candidate["sqnr_db"]["low"] < candidate["sqnr_db"]["value"] < candidate["sqnr_db"]["high"]


def test_noise_is_judged_without_a_drop(answers: dict[str, Answer]) -> None:
    result, failed = answers["noise"].result, answers["too noisy"].result
    assert result is not None and failed is not None
    (candidate,) = result["candidates"]
    assert result["baseline"]["value"] is None and candidate["metric_drop"] is None
    assert candidate["metric_value"] == pytest.approx(candidate["sqnr_db"]["value"])
    gates = {verdict["gate"]: verdict["outcome"] for verdict in candidate["verdicts"]}
    assert gates["sqnr"] == "pass" and "drop" not in gates
    assert "sqnr (1 candidate)" in failed["reason"]


def test_failing_function_refuses_the_variant_or_fails_the_job(answers: dict[str, Answer]) -> None:
    faulty, broken = answers["faulty"].result, answers["broken"].result
    assert faulty is not None and broken is not None
    (candidate,) = faulty["candidates"]
    assert candidate["refusal"]["kind"] == "invalid" and "not the baseline" in candidate["refusal"]["reason"]
    assert broken["error"]["kind"] == "JobError" and "no metric at all" in broken["error"]["found"]

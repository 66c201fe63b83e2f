"""Gates on logged metrics: within, beyond, missing, not a number, and a step that broke."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from validators.gates.resource import judge_logged
from validators.job.job_gates import Gates, LoggedGate

GATES = Gates(logged=(LoggedGate(metric="gap", at_most=0.02), LoggedGate(metric="recall", at_least=0.9)))


@pytest.mark.parametrize(
    ("logged", "outcomes"),
    [
        ({"gap": 0.02, "recall": 0.9}, ["pass", "pass"]),
        ({"gap": 0.021, "recall": 0.899}, ["fail", "fail"]),
        ({"gap": -math.inf, "recall": math.inf}, ["pass", "pass"]),
        ({"gap": math.inf}, ["fail", "inconclusive"]),
        ({"gap": math.nan, "other": 1.0, "recall": math.nan}, ["inconclusive", "inconclusive"]),
        ({}, ["inconclusive", "inconclusive"]),
    ],
)
def test_bound_holds_on_its_side_and_unknown_values_never_pass(logged: dict[str, float], outcomes: list[str]) -> None:
    verdicts = judge_logged(logged, GATES)
    assert [verdict.outcome for verdict in verdicts] == outcomes
    assert [(verdict.gate, verdict.bound, verdict.direction) for verdict in verdicts] == [
        ("logged.gap", 0.02, "at_most"),
        ("logged.recall", 0.9, "at_least"),
    ]
    assert all(verdict.reason for verdict in verdicts if verdict.outcome != "pass")


def test_what_kept_the_step_from_its_end_is_the_reason() -> None:
    """What it logged before still counts."""
    first, second = judge_logged({"gap": 0.0}, GATES, problem="the step raised ValueError: no data")
    assert first.outcome == "pass"
    assert (second.outcome, second.reason) == ("inconclusive", "the step raised ValueError: no data")


@pytest.mark.parametrize("bounds", [{}, {"at_most": 1.0, "at_least": 0.0}])
def test_a_gate_has_one_bound(bounds: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="either"):
        LoggedGate(metric="gap", **bounds)


def test_a_metric_has_one_gate() -> None:
    """Its verdict is tagged under the metric's name: a second would hide the first."""
    with pytest.raises(ValidationError, match="twice"):
        Gates(logged=(LoggedGate(metric="gap", at_most=1.0), LoggedGate(metric="gap", at_least=0.0)))

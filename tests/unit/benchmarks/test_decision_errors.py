"""Whole decisions by simulation: each gate with an interval, read from its row, and the figures of the long simulation."""

from __future__ import annotations

import pytest
import verdict_errors_decisions
from figures import earlier
from verdict_errors_decisions import count_wrong_on_launches, count_wrong_on_samples

from validators.gates.catalog import GATES

WITH_INTERVAL = {gate.name for gate in GATES if gate.units in ("clusters", "launches")}


@pytest.mark.slow
def test_candidates_at_the_bound_are_rarely_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty in each of six runs: unconfirmed, one of them passes in four of five runs; confirmed, in one of thirty."""
    monkeypatch.setattr(verdict_errors_decisions, "MANY", 300)
    wrong = count_wrong_on_samples(6, 1) | count_wrong_on_launches(6, 1)
    assert set(wrong) == WITH_INTERVAL
    assert {name: count for name, count in wrong.items() if count > 2} == {}


def test_every_gate_with_an_interval_was_simulated_at_length() -> None:
    """At most 5 % of whole decisions are wrong."""
    found = earlier("verdict_errors_decisions")
    assert found["candidates"] == 30
    assert set(found["wrong"]) == WITH_INTERVAL
    assert max(figure["share"] for figure in found["wrong"].values()) <= 0.05


@pytest.mark.parametrize("index", [1, 2])
def test_slow_blocks_are_not_measured_away(index: int) -> None:
    """Of variants with slow blocks fewer pass by their first measurements than by those made again."""
    found = earlier("verdict_errors_decisions")
    row = found["slow_blocks"][index]
    for gate in ("p95_ratio", "cost_per_million"):
        assert row["first"][gate]["share"] < row["last"][gate]["share"] / 2

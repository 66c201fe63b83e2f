"""The flow after a race whose leader did not win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flows import quantize
from tasks.trials.race import Raced
from tasks.workers.steps import BESIDE_FP16
from validators.records.run import Refusal, Trial

LEADER, BEHIND, SLOW = "fp16@tensorrt", "int8-static-mse-pc@tensorrt", "int4-g128-rtn@tensorrt"


def test_only_those_behind_are_judged_again_beside_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader keeps the verdicts of its confirmation, which judging again would drop."""
    stopped = {"outcome": "refused", "refusal": Refusal("stopped", "not 3% faster")}
    leader, slow = Trial(LEADER, outcome="failed"), Trial(SLOW, **stopped)  # type: ignore[arg-type]  # fields by **
    raced = Raced((leader, Trial(BEHIND, **stopped), slow), (BEHIND,))  # type: ignore[arg-type]  # fields by **
    asked: list[tuple[Any, ...]] = []

    def resume(*given: Any) -> Raced:
        return Raced(
            tuple(replace(one, outcome=None, refusal=None) if one.candidate == BEHIND else one for one in raced.trials)
        )

    def at_target(step: Any, *given: Any) -> Any:
        asked.append((step, *(one.candidate for one in given[-1])))
        return given[-1]

    def judge(run: Any, baseline: Any, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
        asked.append(("judge", *(one.candidate for one in trials)))
        return tuple(replace(one, outcome="passed") for one in trials)

    monkeypatch.setattr(quantize, "resume", resume)
    monkeypatch.setattr(quantize, "at_target", at_target)
    monkeypatch.setattr(quantize, "judge_trials", judge)
    nothing: Any = None
    after = quantize.resumed(nothing, nothing, raced)
    assert asked == [(BESIDE_FP16, LEADER, BEHIND, SLOW), ("judge", BEHIND)]
    assert after == Raced((leader, Trial(BEHIND, outcome="passed"), slow))

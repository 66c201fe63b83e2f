"""The budget of a run is a limit: passes over a model end between two batches once their share of it is spent."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Tiny

from tasks.measure.latency.pairs import measure_pair
from tasks.ptq.calibrate.watched import open_watched
from tasks.ptq.weight_only.int4_grid import column_chunks
from tasks.run import clock as clock_module
from tasks.run.clock import Clock
from tasks.runtimes.runner import open_runner
from validators.deadline import check_deadline, work_until
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

SETTINGS = SessionSettings(CPU_PROVIDER, 1)


def test_a_deadline_holds_in_its_block_alone() -> None:
    check_deadline()
    with work_until(time.monotonic() + 1000):
        check_deadline()
        with work_until(time.monotonic() - 1), pytest.raises(CandidateRefused, match=r"budgets\.seconds") as refused:
            check_deadline()
        check_deadline()
    assert refused.value.kind == "infrastructure"


def test_passes_over_a_model_end_at_the_deadline(tiny: Tiny) -> None:
    batch = {"x": np.zeros((2, 64), np.float32)}
    with open_runner(tiny.model, SETTINGS) as runner, open_watched(tiny.model, ["hidden"], SETTINGS) as watched:
        runner.run(batch, ["logits"])
        with work_until(time.monotonic() - 1):
            for work in (lambda: runner.run(batch, ["logits"]), lambda: watched.run(batch)):
                # Not `invalid`: nothing is wrong with the model.
                with pytest.raises(CandidateRefused) as refused:
                    work()
                assert refused.value.kind == "infrastructure"


def test_weight_passes_and_timing_end_at_the_deadline() -> None:
    chunks = column_chunks(2000)
    next(chunks)
    with work_until(time.monotonic() - 1):
        with pytest.raises(CandidateRefused):
            next(chunks)
        with pytest.raises(CandidateRefused):
            measure_pair((None, None), (0, 1), None, "latency", None, 1)  # type: ignore[arg-type]  # refused before any is used


def test_waiting_for_a_turn_spends_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = Clock()
    now[0] = 150.0
    clock.begin_budget()
    now[0] = 153.0
    assert (clock.elapsed_seconds, clock.spent_seconds) == (53.0, 3.0)


def test_candidates_leave_time_for_the_winner_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.run.context import CANDIDATES_SHARE, WINNER_SHARE, Run
    from validators.job.job import Job

    job = Job.model_validate({"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}})
    job = job.model_copy(update={"budgets": job.budgets.model_copy(update={"seconds": 100.0})})
    clock = Clock()
    run = Run(job, tmp_path, "", None, clock, None, None, None)  # type: ignore[arg-type]  # only the clock is used
    started = clock._budget_from
    for elapsed, candidates, winner in ((79.0, True, True), (81.0, False, True), (96.0, False, False)):
        clock._budget_from = time.monotonic() - elapsed
        for block, allowed in ((run.time_for_candidates, candidates), (run.time_for_winner, winner)):
            with block():
                if allowed:
                    check_deadline()
                else:
                    with pytest.raises(CandidateRefused):
                        check_deadline()
    assert started > 0 and CANDIDATES_SHARE < WINNER_SHARE < 1

"""What a terminal shows of a run: stages as they begin and end, counts, elapsed time, and time left only where it is known."""

from __future__ import annotations

import io
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from conftest import Tiny
from rich.console import Console

from flows.cli import run
from flows.cli.progress import Progress, show_progress
from tasks.run.progress_events import (
    BASELINE,
    CONFIRM,
    EVALUATE,
    LEAVE_OUT,
    MAKE,
    MEASURE,
    PROBE,
    WAIT,
    Stage,
    stage,
    watch_stages,
)
from tasks.run.step import step
from validators.errors import JobError
from validators.job.read_job import parse_job


class Clock:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that the progress sees."""
    made = Clock()
    monkeypatch.setattr("flows.cli.progress.time", made)
    return made


def pass_through(progress: Progress, clock: Clock, kind: str, name: str, seconds: float) -> None:
    progress.changed(Stage(kind, name), begins=True)
    clock.now += seconds
    progress.changed(Stage(kind, name), begins=False)


def test_time_left_is_that_of_the_whole_run(clock: Clock) -> None:
    """Four candidates, made two at a time: by hand at each moment. Closing takes 3 s, timing 10 s a candidate."""
    progress = Progress({"ort-cpu": 4}, timing_seconds=10.0)
    assert progress.seconds_left() is None
    pass_through(progress, clock, BASELINE, BASELINE, 8.0)
    assert progress.seconds_left() == pytest.approx(4 * 8 + 4 * 10 + 10 + 3)
    made = [Stage(MAKE, f"make {name}") for name in "abcd"]
    for one in made[:2]:
        progress.changed(one, begins=True)
    clock.now += 14
    assert progress.lines() == ("00:22  0 of 4 made, about 01:11 left", ["make a  00:14", "make b  00:14"])
    clock.now += 6
    for index in (0, 1):
        progress.changed(made[index], begins=False)
        progress.changed(made[index + 2], begins=True)
    # Two in 20 s are one each 10 s.
    assert progress.seconds_left() == pytest.approx(2 * 10 + 4 * 10 + 13)
    clock.now += 15
    assert progress.seconds_left() == pytest.approx(5 + 40 + 13)
    clock.now += 15
    assert progress.seconds_left() == pytest.approx(0 + 40 + 13), "late, and never below nothing"
    for one in made[2:]:
        progress.changed(one, begins=False)
    for name in "abcd":
        pass_through(progress, clock, MEASURE, name, 12.0)
    assert progress.seconds_left() == pytest.approx(13)
    progress.changed(Stage(CONFIRM, CONFIRM), begins=True)
    clock.now += 4
    assert progress.seconds_left() == pytest.approx(6 + 3)
    progress.changed(Stage(CONFIRM, CONFIRM), begins=False)
    assert progress.seconds_left() == pytest.approx(3)


def test_time_left_names_the_wait_for_a_quiet_machine(clock: Clock) -> None:
    """From the first pause to the end of the measurement, also while it tries again."""
    progress = Progress({"ort-cpu": 1}, timing_seconds=10.0)
    events = [(Stage(BASELINE, "b"), 2.0), (Stage(MAKE, "a"), 2.0)]
    for one, seconds in events:
        progress.changed(one, begins=True)
        clock.now += seconds
        progress.changed(one, begins=False)
    measuring, waiting = Stage(MEASURE, "measure a"), Stage(WAIT, "up to 4:32 of waiting for a quiet machine")
    progress.changed(measuring, begins=True)
    progress.changed(waiting, begins=True)
    progress.changed(waiting, begins=False)
    line, below = progress.lines()
    assert line.endswith("about 00:23 left and up to 4:32 of waiting for a quiet machine")
    assert below == ["measure a  00:00"]
    progress.changed(measuring, begins=False)
    assert progress.lines()[0].endswith("about 00:13 left")


def test_time_left_of_a_race(clock: Clock) -> None:
    """Four candidates: 3 s of short timing each, then two finals of 8 s for accuracy and 10 s for timing."""
    progress = Progress({"ort-cpu": 4}, timing_seconds=10.0, is_race=True)
    pass_through(progress, clock, BASELINE, BASELINE, 8.0)
    assert progress.seconds_left() == pytest.approx(4 * 8 + 4 * 3 + 2 * 18 + 10 + 3)
    for name in "abcd":
        pass_through(progress, clock, MAKE, name, 8.0)
    for name in "abcd":
        pass_through(progress, clock, PROBE, f"{name}, launch 0", 1.5)
    assert progress.seconds_left() == pytest.approx(4 * 1.5 + 36 + 13)
    assert progress.lines()[0].endswith("4 of 4 made, 4 of 8 short timings, about 00:55 left")
    for name in "abcd":
        pass_through(progress, clock, PROBE, f"{name}, launch 1", 1.5)
    pass_through(progress, clock, MAKE, "e of the same kernels", 4.0)
    assert progress.lines()[0].endswith("5 of 5 made, 8 of 8 short timings, about 00:49 left")
    pass_through(progress, clock, EVALUATE, "a", 9.0)
    assert progress.seconds_left() == pytest.approx(36 - 9 + 13)
    progress.changed(Stage(CONFIRM, CONFIRM), begins=True)
    assert progress.seconds_left() == pytest.approx(10 + 3)


def test_what_was_in_the_store_says_nothing_of_the_others(clock: Clock) -> None:
    """Two cache hits at once, then a candidate of 10 s: the fourth is expected to take 10 s as well."""
    progress = Progress({"ort-cpu": 4})
    pass_through(progress, clock, BASELINE, BASELINE, 2.0)
    for name, seconds in (("a", 0.1), ("b", 0.1), ("c", 9.8)):
        pass_through(progress, clock, MAKE, name, seconds)
    assert progress.seconds_left() == pytest.approx(10 + 3)


def test_candidates_of_a_left_out_engine_are_not_waited_for(clock: Clock) -> None:
    progress = Progress({"ort-cpu": 2, "openvino": 3})
    pass_through(progress, clock, LEAVE_OUT, "openvino", 0.0)
    pass_through(progress, clock, MAKE, "a", 1.0)
    assert progress.lines() == ("00:01  1 of 2 made", [])


def test_a_step_that_is_tried_again_was_not_done(clock: Clock) -> None:
    progress = Progress({"ort-cpu": 2})
    for begins in (True, False, True):
        progress.changed(Stage(MEASURE, "measure a"), begins=begins)
    assert progress.lines() == ("00:00  0 of 2 measured", ["measure a  00:00"])


def test_steps_report_names_and_ends_however_they_end() -> None:
    seen: list[tuple[str, str, bool]] = []

    @step("make candidate", run_name="make {trial.candidate} of {count}")
    def make(trial: SimpleNamespace, count: int = 3) -> int:
        if not count:
            raise ValueError("none")
        return count

    def watcher(stage: Stage, *, begins: bool) -> None:
        seen.append((stage.kind, stage.name, begins))

    with watch_stages(watcher):
        assert make.fn(SimpleNamespace(candidate="a"), count=2) == 2
        with pytest.raises(ValueError, match="none"):
            make.fn(SimpleNamespace(candidate="b"), 0)
        with stage("judge", lambda: "judge"):
            pass
    make.fn(SimpleNamespace(candidate="unseen"), 1)
    assert seen == [
        (kind, name, begins)
        for kind, name in ((MAKE, "make a of 2"), (MAKE, "make b of 0"), ("judge", "judge"))
        for begins in (True, False)
    ]


def shown(terminal: bool, tiny: Tiny) -> str:
    """What a console shows of a block with one line and one stage."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    job = parse_job(tiny.job(), base=Path())
    with show_progress(console, job), ThreadPoolExecutor(1) as pool:

        def work() -> None:
            with stage(MAKE, lambda: "make int8-static-minmax-pc@ort-cpu"):
                logging.getLogger("quantgate").info("calibrated")
                # Longer than the terminal waits from one picture to the next.
                time.sleep(0.6)

        pool.submit(work).result()
    return out.getvalue()


def test_terminal_shows_stage_below_lines_and_file_lines_alone(tiny: Tiny) -> None:
    terminal, file = shown(True, tiny), shown(False, tiny)
    assert "calibrated" in terminal and "make int8-static-minmax-pc@ort-cpu  00:00" in terminal
    assert "0 of 1 made" in terminal and "left" not in terminal
    assert [line.split("s  ", 1)[1] for line in file.splitlines()] == ["calibrated"]


def test_a_run_says_that_it_starts_before_it_loads(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect and the libraries take seconds: they are a stage, and a line in a pipe."""
    started: list[str] = []
    pipe = io.StringIO()
    monkeypatch.setattr(run, "err", Console(file=pipe, width=200))
    monkeypatch.setattr(run, "prepared", lambda: started.append(pipe.getvalue()))
    monkeypatch.setattr(run, "start_server", lambda: None)
    job = parse_job(tiny.job(source="models:/tiny/1", target="ort-cpu"), base=Path())
    seen: list[tuple[str, bool]] = []

    def load() -> NoReturn:
        raise JobError(found="nothing", expected="a flow", fix="none")

    with watch_stages(lambda stage, begins: seen.append((stage.name, begins))):
        run._follow(lambda: job, {}, load)
    assert "models:/tiny/1 for ort-cpu: starting Prefect and loading the libraries" in started[0]
    assert seen == [(run.START, True), (run.START, False)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"evaluation": "/no/evaluation.npz"}}, "evaluation data /no/evaluation.npz"),
        ({"metric": "steal:all", "metric_direction": "higher"}, "`metric: steal:all`"),
        ({"data": {"read": "pictures:read"}}, "`data.read: pictures:read`"),
        ({"measurement": {"preprocess": "steal:all"}}, "`measurement.preprocess: steal:all`"),
        ({"step": "steal:all"}, "`step: steal:all`"),
    ],
)
def test_missing_data_and_code_end_a_run_before_its_flow_loads(
    changes: dict[str, Any], told: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "start_server", lambda: None)
    plain: dict[str, Any] = tiny.job()
    merged = {key: plain[key] | value if isinstance(plain.get(key), dict) else value for key, value in changes.items()}
    job = parse_job(plain | merged, base=Path())
    loaded: list[bool] = []
    answer = run._follow(lambda: job, {}, lambda: loaded.append(True))  # type: ignore[arg-type]  # never reached
    assert not loaded and answer.exit_code == 2
    assert told in " ".join(capsys.readouterr().err.split())

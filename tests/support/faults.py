"""Fault cases: where a run is struck, what is killed, and whether it ends as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fault_checks import Reference, ending_of, entries, problems_of
from fault_plant import DYNAMIC, INT4, STATIC, TARGET_WORKER, WORKER, Plant
from registry_gate import Hold, Request
from stack import wait_until

Victim = Literal["flow", "worker", "target worker", "prefect", "mlflow", "s3", "postgres"]
CANDIDATES = [STATIC, INT4]
MOVES = "registered-models/alias"


@dataclass(frozen=True)
class Says:
    """The log of the run has a line so often."""

    line: str
    times: int = 1


@dataclass(frozen=True)
class Asks:
    """The run asks MLflow for something, for the n-th time; MLflow has not heard of it yet, or the run has no answer."""

    method: str
    path: str
    moment: Literal["before", "after"] = "before"
    body: str = ""
    times: int = 1


@dataclass(frozen=True)
class Keeps:
    """The store of the run has something that matches."""

    pattern: str


@dataclass(frozen=True)
class Stage:
    """A point of a run, by what shows from outside that it is there."""

    name: str
    sign: Says | Asks | Keeps
    has_champion: bool = False


def _starts(task: str, times: int = 1) -> Says:
    return Says(f"Executing task '{task}'", times)


STAGES = (
    Stage("resolve source", Asks("GET", "mlflow-artifacts/presigned")),
    Stage("load data", _starts("load data")),
    Stage("open MLflow run", Asks("POST", "runs/create", "after")),
    Stage("judge calibration data", _starts("judge calibration data")),
    Stage("baseline", _starts("measure baseline")),
    Stage("calibration", Keeps("statistics/*")),
    Stage("making candidates", Keeps("variant/[0-9a-f]*/record.json")),
    Stage("measuring latency", _starts("measure latency", 2)),
    Stage("confirmation", _starts("confirm the winner")),
    Stage("champion comparison", _starts("compare with champion"), has_champion=True),
    Stage("promotion: log model", Asks("PUT", r"/models/m-\w+/artifacts/artifacts/")),
    Stage("promotion: registered", Asks("POST", "model-versions/create", "after"), has_champion=True),
    Stage("promotion: smoke", Asks("GET", r"presigned/.*variant/model.onnx")),
    Stage("promotion: before the alias moves", Asks("POST", MOVES, body="champion-"), has_champion=True),
    Stage("promotion: after the alias moved", Asks("POST", MOVES, "after", body="champion-")),
    Stage("record candidates", Asks("POST", "runs/create", "after", body="candidate", times=2)),
    Stage("report", _starts("publish report")),
    Stage("close", Asks("PUT", "artifacts/report/report.html")),
)
VICTIMS: tuple[Victim, ...] = ("flow", "worker", "prefect", "mlflow", "s3")


@dataclass(frozen=True)
class Case:
    """A run that is struck: at which stages, and what is killed there; once, but for the case of the short test.

    `by_workers`: it hands what must run on the target to a worker of the target. `away_seconds`: what was killed comes back no
    sooner.
    """

    strikes: tuple[tuple[Stage, Victim], ...]
    by_workers: bool = False
    away_seconds: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether the store and the locks of the run are on S3."""
        return self.by_workers or any(victim in ("s3", "worker") for _, victim in self.strikes)

    @property
    def has_champion(self) -> bool:
        """Whether there is a champion before the run."""
        return any(stage.has_champion for stage, _ in self.strikes)

    @property
    def name(self) -> str:
        """For the run, its model and its state folder."""
        words = [f"{stage.name} {victim}" for stage, victim in self.strikes]
        words += ["by workers"] * self.by_workers + [f"for {self.away_seconds:.0f} s"] * (self.away_seconds > 0)
        return re.sub(r"\W+", "-", "-".join(words))

    @property
    def faults(self) -> str:
        """What is killed, for people."""
        killed = ", ".join(victim for _, victim in self.strikes)
        away = f", away for {self.away_seconds:.0f} s" if self.away_seconds else ""
        return f"{killed}{away}{' (work at a target worker)' if self.by_workers else ''}"


BY_NAME = {stage.name: stage for stage in STAGES}
ON_POSTGRES = ("open MLflow run", "measuring latency", "promotion: before the alias moves")
# Stages that show in the store or at MLflow, wherever the work is done.
AT_WORKERS: tuple[tuple[str, Victim], ...] = (
    ("making candidates", "target worker"),
    ("making candidates", "flow"),
    ("promotion: registered", "target worker"),
    ("promotion: before the alias moves", "flow"),
)
CASES = (
    *(Case(((stage, victim),)) for victim in VICTIMS for stage in STAGES),
    *(Case(((BY_NAME[stage], "postgres"),)) for stage in ON_POSTGRES),
    *(Case(((BY_NAME[stage], victim),), by_workers=True) for stage, victim in AT_WORKERS),
    # Longer than the automation for zombie runs waits for a sign of life.
    Case(((BY_NAME["baseline"], "prefect"),), away_seconds=150),
)
# One run through four deaths, with one retry for all of them.
MANY = Case(
    (
        (BY_NAME["baseline"], "s3"),
        (BY_NAME["promotion: log model"], "flow"),
        (BY_NAME["record candidates"], "mlflow"),
        (BY_NAME["report"], "prefect"),
    )
)


@dataclass
class Row:
    """What came of a case: the line of the table."""

    stage: str
    fault: str
    after_fault: str = ""
    retries: int = 0
    outcome: str = ""
    redone: int = 0
    aliases_wrong: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_case(plant: Plant, case: Case, reference: Reference) -> Row:
    """Strike a run, bring back what was killed, retry once where it does not go on by itself, and look at what is there."""
    name = case.name
    bring_back(plant)
    row = Row(", ".join(stage.name for stage, _ in case.strikes), case.faults)
    before = plant.give_champion(name) if case.has_champion else None
    aims = [Aim(plant, name, stage.sign) for stage, _ in case.strikes]
    aims[0].arm()
    if case.by_workers:
        plant.start_target_worker(name)
    flow_run = plant.submit(name, CANDIDATES, is_shared=case.is_shared, by_workers=case.by_workers)
    kept: dict[str, tuple[int, int]] = {}
    versions: set[str | None] = set()
    struck = 0.0
    for aim, (_, victim), following in zip(aims, case.strikes, [*aims[1:], None], strict=True):
        aim.wait()
        kept |= entries(plant.state(name))
        struck = struck or time.monotonic()
        strike(plant, victim, flow_run)
        plant.gate.release(answered=victim != "mlflow")
        if following:
            following.arm()
        time.sleep(case.away_seconds)
        restart(plant, victim, name)
        versions.add(plant.alias(name))
        if victim in ("flow", "worker"):
            row.after_fault = plant.wait_for_end(flow_run)
            if victim == "flow":
                aim.wait_until_worker_is_done()
            row.retries += 1
            plant.retry(flow_run)
    ended = plant.wait_for_end(flow_run)
    row.after_fault = row.after_fault or ended
    if ended != "Promoted" and not row.retries:
        versions.add(plant.alias(name))
        row.retries = 1
        plant.retry(flow_run)
        plant.wait_for_end(flow_run)
    row.seconds = round(time.monotonic() - struck, 1)
    ending = ending_of(plant, name, flow_run)
    row.outcome = ending.state
    after = entries(plant.state(name))
    row.redone = sum(after.get(path) != stamp for path, stamp in kept.items())
    row.aliases_wrong = len(versions - {before, ending.alias}) + (ending.alias not in ending.digests)
    row.problems = problems_of(ending, reference, versions_before=1 if before else 0)
    return row


class Aim:
    """The sign of a stage that a run on a model comes to."""

    def __init__(self, plant: Plant, name: str, sign: Says | Asks | Keeps) -> None:
        self._plant, self._name, self._sign, self._state = plant, name, sign, plant.state(name)
        self._mark = 0
        self._hold: Hold | None = None

    def arm(self) -> None:
        """Look from now on."""
        self._mark = len(self._plant.stack.said(WORKER))
        if isinstance(self._sign, Asks):
            self._hold = self._plant.gate.hold(_matching(self._sign), self._sign.moment)

    def wait(self) -> None:
        """Until the run is at the stage."""
        end = time.monotonic() + 300
        while not self._is_there():
            # Of this run: the log of the one before may still be on its way.
            ended = re.search(rf"Flow run .*models:/{re.escape(self._name)}/1 .*Finished in state", self._said())
            assert not ended and time.monotonic() < end, "the stage was missed"
            time.sleep(0.01)

    def wait_until_worker_is_done(self) -> None:
        """Until the worker has looked at a dead run for the second time, which would crash one that is retried."""
        wait_until(lambda: "prefect.flow_runs.worker - Check" in re.sub(r"\x1b\[[0-9;]*m", "", self._said()))

    def _is_there(self) -> bool:
        match self._sign:
            case Says(line, times):
                return self._said().count(line) >= times
            case Keeps(pattern):
                return next(self._state.glob(f"store*/{pattern}"), None) is not None
            case Asks():
                return self._hold is not None and self._hold.reached.is_set()

    def _said(self) -> str:
        return self._plant.stack.said(WORKER)[self._mark :]


def _matching(sign: Asks) -> Callable[[Request], bool]:
    left = sign.times

    def matches(request: Request) -> bool:
        nonlocal left
        if request.method != sign.method or not re.search(sign.path, request.path):
            return False
        if sign.body.encode() not in request.body:
            return False
        left -= 1
        return left <= 0

    return matches


def strike(plant: Plant, victim: Victim, flow_run: str) -> None:
    """SIGKILL for a process group; with the worker its run dies, which nobody is left to tell of."""
    pids = [plant.pid(flow_run)] if victim in ("flow", "worker") else []
    if victim == "target worker":
        pids = plant.pids_at_target()
    if victim != "flow":
        plant.stack.kill(victim)
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)


def restart(plant: Plant, victim: Victim, name: str = "") -> None:
    """Start again what was killed; a worker of the target works for the runs on one model."""
    starts: dict[str, Callable[[], Any]] = {
        "worker": plant.start_worker,
        "target worker": lambda: plant.start_target_worker(name),
        "prefect": plant.stack.start_prefect,
        "mlflow": plant.stack.start_mlflow,
        "s3": plant.stack.start_s3,
        "postgres": plant.stack.start_postgres,
    }
    if victim != "flow":
        starts[victim]()


def bring_back(plant: Plant) -> None:
    """Start what a case that failed left dead, and hold nothing."""
    plant.gate.release()
    if TARGET_WORKER in plant.stack.processes:
        plant.stack.kill(TARGET_WORKER)
    servers: tuple[Victim, ...] = ("postgres", "s3", "mlflow", "prefect", "worker")
    for server in servers:
        process = plant.stack.processes.get(server)
        if process is None or process.poll() is not None:
            restart(plant, server)


def make_holder(plant: Plant) -> None:
    """The champion that some cases start with."""
    holder = plant.submit("holder", [DYNAMIC])
    assert plant.wait_for_end(holder) == "Promoted", plant.stack.said(WORKER)[-3000:]


def reference_of(plant: Plant) -> Reference:
    """What an undisturbed run comes to."""
    flow_run = plant.submit("reference", CANDIDATES)
    assert plant.wait_for_end(flow_run) == "Promoted", plant.stack.said(WORKER)[-3000:]
    return Reference(ending_of(plant, "reference", flow_run))


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| stage | fault | after it | outcome | candidates redone | aliases wrong | seconds | problems |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        after = row.after_fault + (", one retry" if row.retries else "")
        cells = [row.stage, row.fault, after, row.outcome, row.redone, row.aliases_wrong, f"{row.seconds:.0f}"]
        lines.append("| " + " | ".join(str(cell) for cell in [*cells, "; ".join(row.problems) or "none"]) + " |")
    return "\n".join(lines)

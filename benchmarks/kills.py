"""Kill programs of the service at random moments of its runs, and compare what each run comes to with an undisturbed one.

    python benchmarks/kills.py --kills 1000

Real servers on PostgreSQL and S3, a worker, and small runs that promote. Up to eight times in a run SIGKILL ends something: the
process of the run, one of its children, the worker with its run, Prefect's or MLflow's server. Every second run shares the
processors with programs that compute. Each killed program is started again, and a run that ended otherwise is retried, as an
operator would. `benchmarks/results/kills.json` has a row a run; runs that are there already stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from figures import earlier, save
from processes import busy

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

from conftest import make_tiny
from fault_checks import Reference, champions_that_answer, ending_of, entries, problems_of
from fault_plant import ENDED, Plant
from faults import CANDIDATES, bring_back, reference_of, restart, strike
from stack import Stack

from tasks.storage.files import delete, find_leftovers

# Each victim by how often it is chosen; a worker's death costs 90 s of waiting.
VICTIMS = {"flow": 4, "child": 3, "prefect": 3, "mlflow": 3, "worker": 1}
MOST_KILLS, RETRIES = 8, 12
# Prefect looks at a dead process twice; its second look would crash a run that is retried before.
BEFORE_RETRY_SECONDS = 25.0


def kill(plant: Plant, victim: str, flow_run: str, rng: np.random.Generator) -> str:
    """Kill a victim, and return which it was: a run without a process, or without children, has none to kill."""
    if victim in ("prefect", "mlflow"):
        strike(plant, victim, flow_run)  # type: ignore[arg-type]  # a text that was just compared
        return victim
    with contextlib.suppress(ValueError, ProcessLookupError, psutil.NoSuchProcess):
        pid = plant.pid(flow_run)
        children = psutil.Process(pid).children(recursive=True)
        if victim == "child" and children:
            children[rng.integers(len(children))].kill()
            return victim
        if victim != "worker":
            os.killpg(pid, signal.SIGKILL)
            return "flow"
    if victim == "worker":
        plant.stack.kill("worker")
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.killpg(plant.pid(flow_run), signal.SIGKILL)
        return victim
    return ""


def settled(plant: Plant, flow_run: str, row: dict[str, Any], seconds: float) -> bool:
    """Wait for so long, and retry the run if it ended otherwise; return True once it is promoted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = plant.flow_run(flow_run)
        if found["state_name"] == "Promoted":
            return True
        if found["state_type"] in ENDED:
            if row["retries"] == RETRIES:
                return False
            row["retries"] += 1
            time.sleep(BEFORE_RETRY_SECONDS)
            if plant.flow_run(flow_run)["state_type"] in ENDED:
                plant.retry(flow_run)
        time.sleep(0.1)
    return False


def disturb(plant: Plant, reference: Reference, seed: int, usual_seconds: float) -> dict[str, Any]:
    """Start a run, kill at random, and return its row."""
    rng, name = np.random.default_rng(seed), f"killed-{seed}"
    row: dict[str, Any] = {"seed": seed, "loaded": seed % 2 == 1, "kills": [], "retries": 0}
    bring_back(plant)
    start = time.monotonic()
    with busy((os.cpu_count() or 1) if row["loaded"] else 0):
        flow_run = plant.submit(name, CANDIDATES, is_shared=True)
        kept: dict[str, tuple[int, int]] = {}
        versions: set[str | None] = set()
        for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
            victim = str(rng.choice([name for name, often in VICTIMS.items() for _ in range(often)]))
            if settled(plant, flow_run, row, rng.uniform(0, usual_seconds)):
                break
            state = plant.flow_run(flow_run)["state_name"]
            kept |= entries(plant.state(name))
            if killed := kill(plant, victim, flow_run, rng):
                row["kills"].append({"what": killed, "in": state, "after_s": round(time.monotonic() - start, 1)})
                if killed in ("prefect", "mlflow", "worker"):
                    time.sleep(rng.uniform(0, 5))
                    restart(plant, killed)  # type: ignore[arg-type]  # likewise
                versions.add(plant.alias(name))
        settled(plant, flow_run, row, 900.0)
    ending, after = ending_of(plant, name, flow_run), entries(plant.state(name))
    row["outcome"], row["seconds"] = ending.state, round(time.monotonic() - start, 1)
    row["redone"] = sum(after.get(path) != stamp for path, stamp in kept.items())
    row["aliases_wrong"] = len(versions - {None, ending.alias}) + (ending.alias not in ending.digests)
    row["problems"] = problems_of(ending, reference, versions_before=0)
    own = [path for path in find_leftovers(plant.state(name)) if path.is_relative_to(plant.state(name))]
    for path in own:
        delete(path)
    row["bundles"] = len(list(plant.state(name).glob("store*/evidence/*")))
    row["leftovers"], row["leftovers_after_clean"] = len(own), sum(path.exists() for path in own)
    row["answers"] = ending.state == "Promoted" and champions_that_answer(plant, [name]) == {name}
    return row


def main(
    kills: Annotated[int, typer.Option(help="Kills in all, of those in the file too.")] = 1000,
    minutes: Annotated[float, typer.Option(help="Start no run after so long.")] = 600.0,
) -> None:
    """Kill until there are so many rows, or so much time is over."""
    start, rows = time.monotonic(), earlier("kills").get("runs", [])
    with tempfile.TemporaryDirectory(prefix="quantgate-kills-") as folder:
        plant = Plant(Stack(Path(folder, "service"), on_postgres=True, on_s3=True), make_tiny(Path(folder)))
        try:
            plant.start()
            begin = time.monotonic()
            reference = reference_of(plant)
            usual_seconds = time.monotonic() - begin
            while sum(len(row["kills"]) for row in rows) < kills and time.monotonic() < start + 60 * minutes:
                seed = rows[-1]["seed"] + 1 if rows else 0
                rows.append(disturb(plant, reference, seed, usual_seconds))
                print(json.dumps(rows[-1]), flush=True)
                save("kills", {"usual_seconds": round(usual_seconds, 1), "runs": rows}, quiet=True)
        finally:
            plant.close()


if __name__ == "__main__":
    typer.run(main)

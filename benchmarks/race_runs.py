"""Runs of six real models with `search: race` and `search: all`, in turn: wall time, and what was chosen.

    python benchmarks/race_runs.py --state ~/quantgate-benchmark

Each run is one process of `quantgate run` that finds nothing in the store, but databases that stand; the default candidates of
`ort-cpu`. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from calibration_figures import save  # noqa: E402  # from the folder that the line above adds
from models.packages import MODELS  # noqa: E402  # from the folder that the line above adds

RESULTS = HERE / "results"
GATES = {"max_drop": 0.02, "min_speedup": 1.1}


def main(
    state: Annotated[Path, typer.Option(help="Folder of models, data and runs.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Models to run, beside figures kept of others.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Pairs of runs for each model.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = RESULTS,
) -> None:
    """Run each model both ways and write `race_runs.json`."""
    state = state.resolve()
    path = out / "race_runs.json"
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())["models"] if models and path.exists() else {}
    # The first run in a state folder makes its databases.
    _run(state, "warm-up", MODELS["embedding"](state) | {"candidates": ["fp32-fused@ort-cpu"], "search": "all"})
    for name in models or list(MODELS):
        fields = MODELS[name](state) | {"target": "ort-cpu", "gates": GATES}
        found[name] = [_pair(state, name, fields, number) for number in range(rounds)]
        ratios = [one["figures"]["ratio"] for runs in found.values() for one in runs]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        save(out, "race_runs", {"geometric_mean": round(mean, 3), "models": found})


def _pair(state: Path, name: str, fields: dict[str, Any], number: int) -> dict[str, Any]:
    """Two runs, the second of which never profits from the first; every other pair begins with the race."""
    order = ("all", "race") if number % 2 == 0 else ("race", "all")
    runs = {search: _run(state, name, fields | {"search": search}) for search in order}
    return {"figures": _compared(runs["all"], runs["race"]), **runs}


def _run(state: Path, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    runs = state / "race-runs"
    shutil.rmtree(runs / "state" / "store", ignore_errors=True)
    folder = runs / f"{name.replace(' ', '-')}-{fields['search']}"
    folder.mkdir(parents=True, exist_ok=True)
    places = {"MLFLOW_TRACKING_URI": f"sqlite:///{state / 'mlflow.db'}", "QUANTGATE_STATE": str(runs / "state")}
    (folder / "job.yaml").write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "flows.cli.app", "run", "job.yaml", "--result", "result.json"]
    started = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            [*command, "--no-promote"], cwd=folder, env=os.environ | places, stdout=log, stderr=log, check=False
        )
    wall = time.monotonic() - started
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        "wall": round(wall, 1),
        "exit": done.returncode,
        "outcome": result["outcome"],
        "chosen": result.get("chosen"),
        "seconds": result["seconds"],
        "candidates": {
            one["name"]: {
                "outcome": one["outcome"],
                "refusal": one["refusal"] and one["refusal"]["reason"],
                "speedup": one["speedup_p50"] and one["speedup_p50"]["value"],
                "drop": one["metric_drop"] and one["metric_drop"]["value"],
            }
            for one in result["candidates"]
        },
    }


def _compared(everything: dict[str, Any], race: dict[str, Any]) -> dict[str, Any]:
    """The ratio of wall times, and how much slower the race's choice is than the full search's, as the latter measured both."""
    best, chosen = (everything["candidates"].get(run["chosen"]) for run in (everything, race))
    loss = None
    if best and chosen and best["speedup"] and chosen["speedup"]:
        loss = round(best["speedup"] / chosen["speedup"] - 1, 4)
    return {
        "all": everything["wall"],
        "race": race["wall"],
        "ratio": round(race["wall"] / everything["wall"], 3),
        "chosen by all": everything["chosen"],
        "chosen by race": race["chosen"],
        "slower by": loss,
    }


if __name__ == "__main__":
    typer.run(main)

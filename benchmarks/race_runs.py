"""Runs of six real models with `search: race` and `search: all`, in turn: wall time, and what was chosen.

    python benchmarks/race_runs.py --state ~/quantgate-benchmark

Each run is one process of `quantgate run` that finds nothing in the store, but databases that stand; the default candidates of
`ort-cpu`. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from figures import earlier, save
from jobs import candidates_of, run_job, write_job
from models.packages import MODELS

from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant
from validators.job.read_job import parse_job
from validators.records.run import SessionSettings

# Launches of a comparison of the two choices: twice as many as a run makes.
LAUNCHES = 12
GATES = {"max_drop": 0.02, "min_speedup": 1.1}


def main(
    state: Annotated[Path, typer.Option(help="Folder of models, data and runs.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Models to run, beside figures kept of others.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Pairs of runs for each model.")] = 1,
) -> None:
    """Run each model both ways and write `race_runs.json`."""
    state = state.resolve()
    found: dict[str, list[dict[str, Any]]] = earlier("race_runs").get("models", {}) if models else {}
    # The first run in a state folder makes its databases.
    _run(state, "warm-up", MODELS["embedding"](state) | {"candidates": ["fp32-fused@ort-cpu"], "search": "all"})
    for name in models or list(MODELS):
        fields = MODELS[name](state) | {"target": "ort-cpu", "gates": GATES}
        found[name] = [_pair(state, name, fields, number) for number in range(rounds)]
        ratios = [one["figures"]["ratio"] for runs in found.values() for one in runs]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        save("race_runs", {"geometric_mean": round(mean, 3), "models": found})


def _pair(state: Path, name: str, fields: dict[str, Any], number: int) -> dict[str, Any]:
    """Two runs, the second of which never profits from the first; every other pair begins with the race."""
    order = ("all", "race") if number % 2 == 0 else ("race", "all")
    runs = {search: _run(state, name, fields | {"search": search}) for search in order}
    figures = {
        "all": runs["all"]["wall"],
        "race": runs["race"]["wall"],
        "ratio": round(runs["race"]["wall"] / runs["all"]["wall"], 3),
        "chosen by all": runs["all"]["chosen"],
        "chosen by race": runs["race"]["chosen"],
    }
    return {"figures": figures | _head_to_head(state, name, fields, runs), **runs}


def _folder_of(state: Path, name: str, search: str) -> Path:
    return state / "race-runs" / f"{name.replace(' ', '-')}-{search}"


def _run(state: Path, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    runs = state / "race-runs"
    shutil.rmtree(runs / "state" / "store", ignore_errors=True)
    folder = _folder_of(state, name, fields["search"])
    write_job(folder, fields)
    places = {"MLFLOW_TRACKING_URI": f"sqlite:///{state / 'mlflow.db'}", "QUANTGATE_STATE": str(runs / "state")}
    result, wall, code = run_job(folder, "--no-promote", **places)
    _keep_chosen(runs, folder, result.get("chosen"))
    return {
        "wall": round(wall, 1),
        "exit": code,
        "outcome": result["outcome"],
        "chosen": result.get("chosen"),
        "seconds": result["seconds"],
        "candidates": candidates_of(result),
    }


def _keep_chosen(runs: Path, folder: Path, chosen: str | None) -> None:
    """Copy the variant that a run chose from the store, which the next run finds empty."""
    shutil.rmtree(folder / "chosen", ignore_errors=True)
    for record in (runs / "state" / "store" / "variant").glob("*/record.json"):
        variant = json.loads(record.read_text(encoding="utf-8"))["variant"]
        if chosen is not None and variant and variant["candidate"] == chosen:
            shutil.copytree(record.parent, folder / "chosen")


def _head_to_head(state: Path, name: str, fields: dict[str, Any], runs: dict[str, Any]) -> dict[str, Any]:
    """How much slower the race's choice is than the full search's: both timed in turn, if they differ."""
    if runs["all"]["chosen"] == runs["race"]["chosen"]:
        return {"slower by": 0.0}
    if None in (runs["all"]["chosen"], runs["race"]["chosen"]):
        return {"slower by": None}
    sides = []
    for search in ("all", "race"):
        chosen = _folder_of(state, name, search) / "chosen"
        session = json.loads((chosen / "record.json").read_text(encoding="utf-8"))["variant"]["session"]
        settings = SessionSettings(session["provider"], session["threads"], session["optimization"], session["entries"])
        sides.append(Contestant(chosen / "model.onnx", settings))
    job = parse_job({"target": "ort-cpu"} | fields, base=state)
    point = job.measurement.points[0]
    with np.load(fields["data"]["evaluation"]) as data:
        taken = {key: data[key][: 64 * point.batch_size] for key in data.files}
    names = {one.name for one in onnx.load(sides[0].model, load_external_data=False).graph.input}
    limits = {"input_ids": point.dims.get("sequence"), "attention_mask": point.dims.get("sequence")}
    requests = [
        {key: array[row : row + 1, : limits.get(key)] for key, array in taken.items() if key in names}
        for row in range(64)
    ]
    measurement = job.measurement.model_copy(update={"launches": LAUNCHES})
    latency = compare_latency(
        sides[0], sides[1], requests, measurement, confidence=0.95, samples_path=state / "race-runs" / "samples.npz"
    )
    speedup = latency.speedup
    bounds = [None if end is None else round(1 / end - 1, 4) for end in (speedup.high, speedup.low)]
    return {"slower by": round(1 / speedup.value - 1, 4), "slower by, 95 % bounds": bounds}


if __name__ == "__main__":
    typer.run(main)

"""What orchestration costs: a run's wall time less its work, by the number of candidates, in one process and as a service.

No run finds anything in the store, so that all of its work is done. `process` times `quantgate run` from its start to its end,
`first` the same in a state folder that is not there yet, whose databases are made; `service` a run of the deployment from the
moment that it is asked for, on a server and a worker that stand already. `parts` says where the overhead of a command goes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "support")]

from conftest import tiny_model, tiny_samples, tiny_weights
from driving import environment, write_job
from figures import save
from jobs import BRIEFLY, QUANTGATE
from stack import Stack, wait_until

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
CANDIDATES = (
    "int8-static-minmax-pc@ort-cpu",
    "int8-dynamic-pc@ort-cpu",
    "int8-static-minmax-pt@ort-cpu",
    "int8-static-mse-pc@ort-cpu",
    "int8-dynamic-pt@ort-cpu",
    "int8-static-entropy-pc@ort-cpu",
    "int8-static-percentile-pc@ort-cpu",
    "fp32-fused@ort-cpu",
)
COUNTS = (1, 4, 8)
# Moments of `overhead_parts.py` in their order, each with what happens until then.
PARTS = {
    "python runs": "Python starts",
    "command is imported": "the command is imported",
    "flow is imported": "job file, flow and libraries are read; the server starts meanwhile",
    "server answers": "the server is waited for",
    "work begins": "Prefect starts the flow",
    "work ends": "between the steps: Prefect's states and logs",
    "flow has ended": "Prefect ends the flow",
    "exit handlers are done": "the answer is printed, the server ends",
    "process has ended": "Python ends",
}


@app.command()
def run(
    rounds: Annotated[int, typer.Option(help="Runs of each kind and number of candidates, in turn.")] = 3,
) -> None:
    """Time the runs and write `overhead.json`."""
    times: dict[str, list[dict[str, float]]] = defaultdict(list)
    parts: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        root = Path(folder)
        service = Stack(root / "service")
        _data(root)
        _by_command(root / "state", _job(root, 1, seed=rounds), root)
        try:
            _start(service)
            for number in range(rounds):
                for count in COUNTS:
                    job = _job(root, count, seed=number)
                    for kind, state in (("first", root / f"state-{number}-{count}"), ("process", root / "state")):
                        times[f"{kind}, {count}"].append(_by_command(state, job, root))
                    times[f"service, {count}"].append(_by_deployment(service, job))
                parts.append(_parts(root / "state", _job(root, COUNTS[1], seed=number), root))
        finally:
            service.close()
    figures = {kind: _figures(times, kind) for kind in ("first", "process", "service")}
    medians = {part: round(statistics.median(one[part] for one in parts), 2) for part in PARTS.values()}
    save("overhead", {"rounds": rounds, "candidates": list(COUNTS), **figures, "parts": medians, "runs": times})


def _data(root: Path) -> None:
    import onnx

    onnx.save(tiny_model(*tiny_weights()), root / "tiny.onnx")
    np.savez(root / "calibration.npz", **tiny_samples(128, 11))
    np.savez(root / "evaluation.npz", **tiny_samples(2000, 12))


def _job(root: Path, count: int, seed: int) -> Path:
    """A job on the tiny model; the seed makes its work its own."""
    job: dict[str, object] = {
        "source": str(root / "tiny.onnx"),
        "data": {"calibration": str(root / "calibration.npz"), "evaluation": str(root / "evaluation.npz")},
        "candidates": list(CANDIDATES[:count]),
        "search": "all",
        "gates": {"min_speedup": None},
        "budgets": {"recovery": 0},
        "measurement": BRIEFLY,
        "seed": seed,
    }
    return write_job(root / f"job-{count}-{seed}.yaml", job)


def _by_command(state: Path, job: Path, root: Path) -> dict[str, float]:
    """`quantgate run`, as a process from its start to its end."""
    result = root / "result.json"
    _forget(state)
    started = time.monotonic()
    command = [*QUANTGATE, "run", str(job), "--result", str(result)]
    subprocess.run(command, env=environment(state), check=True, capture_output=True)
    return _seconds(time.monotonic() - started, json.loads(result.read_text())["seconds"])


def _parts(state: Path, job: Path, root: Path) -> dict[str, float]:
    """The seconds of one more run that are nobody's work, by what happens meanwhile."""
    from tasks.run.clock import union_seconds

    _forget(state)
    script, found = HERE / "overhead_parts.py", root / "parts.json"
    command = [sys.executable, str(script), str(time.monotonic()), str(found), str(job)]
    subprocess.run(command, env=environment(state), check=True, capture_output=True)
    ended = time.monotonic()
    told = json.loads(found.read_text(encoding="utf-8"))
    work = [(start, end) for start, end in told["work"]]
    begins, ends = min(work)[0], max(end for _, end in work)
    moments = told["moments"] | {"work begins": begins, "work ends": ends, "process has ended": ended}
    times = [moments[name] for name in ("started", *PARTS)]
    parts = {part: end - start for part, start, end in zip(PARTS.values(), times, times[1:], strict=False)}
    return parts | {PARTS["work ends"]: ends - begins - union_seconds(work)}


def _forget(state: Path) -> None:
    shutil.rmtree(state / "store", ignore_errors=True)


def _start(service: Stack) -> None:
    service.root.mkdir()
    service.start_prefect()
    service.start_mlflow()
    subprocess.run([*QUANTGATE, "deploy"], env=service.settings(), check=True, capture_output=True)
    service.start_python("worker", "prefect", "worker", "start", "--pool", "quantgate", "--limit", "1")
    wait_until(lambda: "started!" in service.said("worker"), service.processes["worker"])


def _by_deployment(service: Stack, job: Path) -> dict[str, float]:
    """A run of the deployment, from being asked for to its end, as the server saw it."""
    from validators.job.read_job import read_job

    _forget(service.state)
    deployment = service.ask("/deployments/name/quantize/quantize-model", method="GET")["id"]
    parameters = {"job": read_job(job).model_dump(mode="json"), "promote": False}
    started = time.monotonic()
    found = service.ask(f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})
    path = f"/flow_runs/{found['id']}"

    def ended() -> bool:
        return bool(service.ask(path, method="GET")["state_type"] in ("COMPLETED", "FAILED", "CRASHED"))

    wait_until(ended, service.processes["worker"])
    total = time.monotonic() - started
    assert service.ask(path, method="GET")["state_type"] == "COMPLETED", service.said("worker")[-2000:]
    return _seconds(total, _recorded(service))


def _recorded(service: Stack) -> dict[str, Any]:
    """The seconds of the newest run, from its result document in MLflow."""
    os.environ["MLFLOW_TRACKING_URI"] = service.registry
    import mlflow

    runs = mlflow.search_runs(experiment_names=["quantgate"], filter_string="tags.`quantgate.kind` = 'run'")
    seconds: dict[str, Any] = mlflow.artifacts.load_dict(f"runs:/{runs.iloc[0].run_id}/result.json")["seconds"]
    return seconds


def _seconds(total: float, told: dict[str, Any]) -> dict[str, float]:
    """Wall time, the work in it (what ran at the same time once), and the rest."""
    work = told["total"] - told["overhead"]
    return {"total": round(total, 2), "work": round(work, 2), "overhead": round(total - work, 2)}


def _figures(times: dict[str, list[dict[str, float]]], kind: str) -> dict[str, Any]:
    """Medians by number of candidates; of the line through all runs, what a run costs and what a candidate adds."""
    points = [(count, one["overhead"]) for count in COUNTS for one in times[f"{kind}, {count}"]]
    slope, intercept = np.polyfit(*zip(*points, strict=True), 1)
    by_count = {}
    for count in COUNTS:
        found = times[f"{kind}, {count}"]
        overhead = statistics.median(one["overhead"] for one in found)
        total = statistics.median(one["total"] for one in found)
        by_count[str(count)] = {"total": total, "overhead": overhead, "share": round(overhead / total, 3)}
    return {"run_seconds": round(intercept, 2), "candidate_seconds": round(slope, 2), "by_candidates": by_count}


if __name__ == "__main__":
    app()

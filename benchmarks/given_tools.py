"""Files that other tools make of the two demos by their own defaults, in one job beside quantgate's candidates.

    python benchmarks/given_tools.py install --state ~/quantgate-benchmark    # an environment a tool: 6 GB, 15 minutes
    python benchmarks/given_tools.py run --state ~/quantgate-benchmark        # 30 minutes

Each tool makes its file in an environment of its own, by the adapter that `make: <tool>` names. The jobs promote nothing; then
NNCF's and Olive's file of the text demo are promoted alone, and a plain MLflow client loads the champions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from figures import save
from jobs import run_job, write_job
from models.packages import MODELS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
State = Annotated[Path, typer.Option(help="Folder of environments, models, data and runs.")]
# Engine that each tool makes its file for, and the packages of its environment.
TOOLS = {
    "nncf": ("openvino", ["nncf==3.4.0", "openvino==2026.4.1", "torch==2.13.0"]),
    "olive": ("ort-cpu", ["olive-ai==0.13.0", "onnxruntime==1.31.1", "torch==2.13.0", "requests"]),
    "optimum": ("ort-cpu", ["optimum-onnx==0.1.0", "onnxruntime==1.31.1", "torch==2.13.0"]),
    "modelopt": ("ort-cpu", ["nvidia-modelopt[onnx]==0.47.0", "onnxruntime==1.31.1", "torch==2.13.0"]),
    "neural-compressor": (
        "ort-cpu",
        ["onnx-neural-compressor==1.0", "onnxruntime==1.18.1", "numpy<2", "prettytable", "pyyaml", "requests", "scipy"],
    ),
}
GATES = {"max_drop": 0.02, "min_speedup": 1.1}
# Prints the accuracy of a version, and the modules of quantgate that this process has imported.
CONSUMER = """
import json, sys
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
data = np.load(sys.argv[3])
inputs = {name: data[name] for name in data.files if name != "label"}
answers = mlflow.pyfunc.load_model(sys.argv[2]).predict(inputs)
scores = answers if isinstance(answers, np.ndarray) else next(iter(answers.values()))
print(float((scores.argmax(axis=1) == data["label"]).mean()))
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("tasks", "validators", "flows")]))
"""


def python_of(state: Path, tool: str) -> Path:
    """Return the Python of a tool's environment."""
    return state.resolve() / "tools" / tool / "bin" / "python"


@app.command()
def install(state: State, tools: Annotated[list[str] | None, typer.Option("--tool")] = None) -> None:
    """Make an environment for each tool."""
    for tool in tools or TOOLS:
        folder = state / "tools" / tool
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run([python_of(state, tool), "-m", "pip", "install", "-q", *TOOLS[tool][1]], check=False)
        print(tool, "installed" if done.returncode == 0 else "could not be installed", flush=True)


@app.command()
def run(state: State) -> None:
    """Run both jobs and write `given_tools.json`."""
    state = state.resolve()
    jobs = {name: _figures(state, name, MODELS[name](state)) for name in ("text", "image")}
    consumers = {tool: _consumed(state, tool, MODELS["text"](state)) for tool in ("nncf", "olive")}
    versions = {tool: _version(state, tool) for tool in TOOLS}
    save("given_tools", {"tools": versions, "gates": GATES, "jobs": jobs, "consumers": consumers})


def _figures(state: Path, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    tools = [tool for tool in TOOLS if python_of(state, tool).exists()]
    job = fields | {"target": "cpu", "candidates": "default", "given": _given(state, tools), "gates": GATES}
    result = _run(state, name, job | {"search": "all"}, "--no-promote")
    return {
        "outcome": result["outcome"],
        "reason": result["reason"],
        "chosen": result["chosen"],
        "seconds": result["seconds"]["total"],
        "candidates": {one["name"]: _row(one) for one in result["candidates"]},
    }


def _consumed(state: Path, tool: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Promote a tool's file alone, load the champion by a plain MLflow client, and return both accuracies."""
    engine = TOOLS[tool][0]
    gates = {"max_drop": 0.3, "min_speedup": None, "min_coverage": 0.3}
    job = fields | {"target": engine, "candidates": [], "given": _given(state, [tool]), "gates": gates}
    result = _run(state, f"{tool}-alone", job, "--replace-device")
    found: dict[str, Any] = {"outcome": result["outcome"], "reason": result["reason"]}
    if result["champion"] is None:
        return found
    uri = f"models:/{result['champion']['name']}/{result['champion']['version']}"
    command = [sys.executable, "-I", "-c", CONSUMER, f"sqlite:///{state}/mlflow.db", uri, fields["data"]["evaluation"]]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    told = done.stdout.splitlines()
    winner = next(one for one in result["candidates"] if one["name"] == result["chosen"])
    return found | {
        "judged": [winner["metric_value"], winner["confirmed"]["metric_value"]],
        "consumed": float(told[-2]) if done.returncode == 0 else done.stderr[-500:],
        "modules of quantgate": json.loads(told[-1]) if done.returncode == 0 else None,
    }


def _given(state: Path, tools: list[str]) -> list[dict[str, str]]:
    return [
        {"name": tool, "make": tool, "engine": TOOLS[tool][0], "python": str(python_of(state, tool))} for tool in tools
    ]


def _run(state: Path, name: str, job: dict[str, Any], *options: str) -> dict[str, Any]:
    folder = state / "given-tools" / name
    write_job(folder, job)
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{state / 'mlflow.db'}",
        "QUANTGATE_STATE": str(state / "given-tools" / "state"),
        "QUANTGATE_ALLOWED_HOOKS": ",".join(f"python={python_of(state, tool)}" for tool in TOOLS),
    }
    return run_job(folder, *options, **places).result


def _row(candidate: dict[str, Any]) -> dict[str, Any]:
    against = {one["gate"]: one["reason"] for one in candidate["verdicts"] if one["outcome"] != "pass"}
    return {
        "outcome": candidate["outcome"],
        "refusal": candidate["refusal"] and candidate["refusal"]["reason"],
        "metric": candidate["metric_value"],
        "drop": candidate["metric_drop"],
        "speedup": candidate["speedup_p50"],
        "coverage": candidate["coverage_macs"],
        "size_bytes": candidate["size_bytes"],
        "against": against,
    }


def _version(state: Path, tool: str) -> str:
    """Return the version of a tool's package; empty if it is not installed."""
    package = TOOLS[tool][1][0].partition("==")[0].partition("[")[0]
    command = f"from importlib.metadata import version; print(version({package!r}))"
    python = python_of(state, tool)
    if not python.exists():
        return ""
    return subprocess.run([python, "-c", command], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    app()

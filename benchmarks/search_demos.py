"""Search on the demos: the best recipe with one form for all parts, beside what the search finds, by size and by latency.

    python benchmarks/search_demos.py --state ~/quantgate-benchmark                # 20 minutes, with the extra genai
    python benchmarks/search_demos.py --state ~/quantgate-benchmark --only text    # the figures of the others are kept

Each job lists recipes with one form for all parts, and may make six more with other forms (`budgets.recovery`). Nothing is
promoted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from figures import earlier, save
from jobs import run_job, write_job
from models.packages import MODELS

from flows.cli.demo import prepare_demo
from tasks.reporting.parts import tell_recovery
from validators.records.result import Result

INT8 = [
    f"int8-{recipe}@ort-cpu" for recipe in ("dynamic-pc", "static-mse-pc", "static-mse-pc-all", "static-minmax-pt-all")
]
OPENVINO = [f"int8-static-{recipe}@openvino" for recipe in ("mse-pc-all", "minmax-pt-all")]
INT4 = [f"int4-{recipe}@ort-cpu" for recipe in ("g128-rtn", "g128-gptq", "g32-gptq")]
DECODERS = [f"{recipe}@ort-genai" for recipe in ("int8-g32-rtn", "int8-g64-rtn", "int4-g64-gptq-asym-rot")]
BY_SIZE: dict[str, Any] = {"objective": "size", "gates": {"max_drop": 0.02, "min_speedup": None}}
BY_LATENCY: dict[str, Any] = {"gates": {"max_drop": 0.02}}
JOBS: dict[str, dict[str, Any]] = {
    "text by size": BY_SIZE | {"target": "cpu", "candidates": [*INT8, *INT4]},
    "text by latency": BY_LATENCY | {"target": "cpu", "candidates": [*INT8, *OPENVINO]},
    "image by size": BY_SIZE | {"target": "cpu", "candidates": [*INT8, *INT4]},
    "image by latency": BY_LATENCY | {"target": "cpu", "candidates": [*INT8, *OPENVINO]},
    "language by size": {"objective": "size", "candidates": DECODERS},
}


def main(
    state: Annotated[Path, typer.Option(help="Folder of models, data and runs.")],
    only: Annotated[str, typer.Option(help="Jobs whose names start so.")] = "",
) -> None:
    """Run the jobs and write `search_demos.json`."""
    state = state.resolve()
    found = earlier("search_demos").get("jobs", {})
    for name, changes in JOBS.items():
        if name.startswith(only):
            kind = name.split()[0]
            fields = _language(state) if kind == "language" else MODELS[kind](state)
            folder = state / "search" / name.replace(" ", "-")
            write_job(folder, fields | changes | {"budgets": {"recovery": 6}, "search": "all"})
            places = {
                "MLFLOW_TRACKING_URI": f"sqlite:///{state}/mlflow.db",
                "QUANTGATE_STATE": str(state / "search/state"),
            }
            found[name] = _row(run_job(folder, "--no-promote", **places).result)
            save("search_demos", {"jobs": found}, quiet=True)
            print(name, found[name]["told"], flush=True)


def _language(state: Path) -> dict[str, Any]:
    fields: dict[str, Any] = yaml.safe_load(prepare_demo(state, "llm").read_text(encoding="utf-8"))
    return fields


def _row(result: dict[str, Any]) -> dict[str, Any]:
    recovery = result["recovery"]
    candidates = {
        one["name"]: {
            "outcome": one["outcome"],
            "size_bytes": one["size_bytes"],
            "speedup": one["speedup_p50"],
            "drop": one["metric_drop"],
            "confirmed": one["confirmed"] and one["confirmed"]["metric_drop"],
        }
        for one in result["candidates"]
    }
    return {
        "outcome": result["outcome"],
        "chosen": result["chosen"],
        "told": tell_recovery(Result.model_validate(result)),
        "attempts": recovery and recovery["attempts"],
        "frontier": recovery and [[point["level_db"], point["noise"], point["cost"]] for point in recovery["frontier"]],
        "seconds": result["seconds"],
        "candidates": candidates,
    }


if __name__ == "__main__":
    typer.run(main)

"""What must be there when a struck run has ended: the same as after an undisturbed one, once, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fault_plant import ALIAS, Plant

# Kinds of entries that a run has the same number of, whoever was champion before; under another key, one would be made twice.
MADE_ONCE = ("source", "statistics", "variant", "coverage")

LOAD = """
import sys, mlflow, numpy as np
for name in sys.argv[3:]:
    answer = mlflow.pyfunc.load_model(f"models:/{name}-quantized@{sys.argv[1]}").predict({"x": np.load(sys.argv[2])["x"][:4]})
    assert np.isfinite(answer["logits"]).all() and answer["logits"].shape == (4, 4), name
    print(name)
"""


@dataclass(frozen=True)
class Ending:
    """Everything that a run left: in Prefect, in MLflow, in the registry."""

    state: str
    parents: list[dict[str, Any]]
    nested: list[dict[str, Any]]
    tables: dict[str, int]
    digests: dict[str, str]
    alias: str | None
    aliases: list[str]
    slots_taken: int
    made: dict[str, int]

    @property
    def champion_digest(self) -> str | None:
        """The digest of the variant that the alias points to."""
        return self.digests.get(self.alias) if self.alias else None


@dataclass(frozen=True)
class Reference:
    """The ending of an undisturbed run."""

    ending: Ending


def entries(state: Path) -> dict[str, tuple[int, int]]:
    """The finished entries of the store: inode and modification (ns) of each folder; its record is touched when it is read."""
    found = {}
    for path in state.glob("store*/*/[0-9a-f]*/record.json"):
        about = path.parent.stat()
        found[str(path.parent)] = (about.st_ino, about.st_mtime_ns)
    return found


def ending_of(plant: Plant, name: str, flow_run: str) -> Ending:
    """What is there after a run on a model."""
    parents = _runs(plant, f"params.source = 'models:/{name}/1'")
    nested = [run for parent in parents for run in _runs(plant, f"tags.mlflow.parentRunId = '{parent['id']}'")]
    tables = {f"candidates of {i}": _rows(plant, run, "candidates.json") for i, run in enumerate(parents)}
    tables |= {f"verdicts of {run['name']}": _rows(plant, run, "verdicts.json") for run in nested}
    variants = f"{name}-quantized"
    found = plant.ask_registry("GET", "model-versions/search", filter=f"name='{variants}'") or {}
    digests = {
        str(version["version"]): {tag["key"]: tag["value"] for tag in version.get("tags", [])}.get(
            "quantgate.variant_digest", ""
        )
        for version in found.get("model_versions", [])
    }
    model = plant.ask_registry("GET", "registered-models/get", name=variants)
    aliases = [one["alias"] for one in model["registered_model"].get("aliases", [])] if model else []
    limits = plant.stack.ask("/v2/concurrency_limits/filter")
    return Ending(
        state=str(plant.flow_run(flow_run)["state_name"]),
        parents=parents,
        nested=nested,
        tables=tables,
        digests=digests,
        alias=plant.alias(name),
        aliases=aliases,
        slots_taken=sum(int(limit["active_slots"]) for limit in limits),
        made={kind: len(list(plant.state(name).glob(f"store*/{kind}/[0-9a-f]*"))) for kind in MADE_ONCE},
    )


def problems_of(ending: Ending, reference: Reference, *, versions_before: int) -> list[str]:
    """How an ending differs from that of an undisturbed run."""
    expected = reference.ending
    chosen = [run["tags"].get("quantgate.chosen") for run in expected.parents]
    facts: dict[str, tuple[Any, Any]] = {
        "state": (ending.state, expected.state),
        "parent runs": (len(ending.parents), 1),
        "states of parent runs": ({run["status"] for run in ending.parents}, {"FINISHED"}),
        "chosen": ([run["tags"].get("quantgate.chosen") for run in ending.parents], chosen),
        "nested runs": (sorted(run["name"] for run in ending.nested), sorted(run["name"] for run in expected.nested)),
        "states of nested runs": ({run["status"] for run in ending.nested}, {"FINISHED"}),
        "rows of tables": (ending.tables, expected.tables),
        "versions": (len(ending.digests), 1 + versions_before),
        "digest of the champion": (ending.champion_digest, expected.champion_digest),
        "aliases": (ending.aliases, expected.aliases),
        "slots taken": (ending.slots_taken, 0),
        "entries of the store": (ending.made, expected.made),
    }
    return [f"{what}: {found}, expected {due}" for what, (found, due) in facts.items() if found != due]


def champions_that_answer(plant: Plant, names: list[str]) -> set[str]:
    """The models whose champion loads by its alias, in a process of a consumer's, and answers."""
    command = [sys.executable, "-c", LOAD, ALIAS, str(plant.tiny.evaluation), *names]
    settings = plant.stack.settings(MLFLOW_TRACKING_URI=plant.stack.registry)
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return set(done.stdout.split())


def _runs(plant: Plant, condition: str) -> list[dict[str, Any]]:
    experiment = plant.ask_registry("GET", "experiments/get-by-name", experiment_name="quantgate")
    if experiment is None:
        return []
    body = {"experiment_ids": [experiment["experiment"]["experiment_id"]], "filter": condition, "max_results": 100}
    return [
        {
            "id": run["info"]["run_id"],
            "name": run["info"]["run_name"],
            "status": run["info"]["status"],
            "tags": {tag["key"]: tag["value"] for tag in run["data"].get("tags", [])},
        }
        for run in plant.ask_registry("POST", "runs/search", body).get("runs", [])
    ]


def _rows(plant: Plant, run: dict[str, Any], artifact: str) -> int:
    """How many rows a table of a run has; none where there is no table."""
    url = f"{plant.stack.registry}/get-artifact?path={artifact}&run_uuid={run['id']}"
    answer = httpx.get(url, timeout=60)  # MLflow answers 500 for a file that is not there
    return len(answer.json()["data"]) if answer.is_success else 0

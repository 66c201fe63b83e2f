"""The whole service as a fault test drives it: every server real, a worker, the deployment, and models to run it on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from conftest import Tiny
from registry_gate import Gate
from stack import BUCKET, Stack, free_port, wait_until

WORKER, TARGET_WORKER, TARGET = "worker", "target worker", "ort-cpu"
STATIC, INT4, DYNAMIC = "int8-static-minmax-pc@ort-cpu", "int4-g32-rtn@ort-cpu", "int8-dynamic-pc@ort-cpu"
ALIAS = f"champion-{TARGET}"
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

LOG_MODEL = """
import sys, mlflow, numpy as np, onnx
from mlflow.models import infer_signature
model = onnx.load(sys.argv[1])
signature = infer_signature({"x": np.zeros((2, 64), np.float32)}, {"logits": np.zeros((2, 4), np.float32)})
mlflow.set_experiment("user")
with mlflow.start_run():
    info = mlflow.onnx.log_model(model, name="tiny", signature=signature, pip_requirements=[])
mlflow.register_model(info.model_uri, "tiny")
"""

# The deployed template lets no caller set variables; here each run has a state folder of its own.
_TEMPLATE = {
    "job_configuration": {"env": "{{ env }}"},
    "variables": {"type": "object", "properties": {"env": {"type": "object"}}},
}


@dataclass
class Plant:
    """A stack with the deployments of `quantgate deploy` and a worker; what runs ask MLflow goes through `gate`."""

    stack: Stack
    tiny: Tiny
    gate: Gate = field(init=False)
    deployment: str = field(init=False)

    def start(self) -> None:
        """Every server, all that is deployed, the worker."""
        self.start_servers()
        self.start_worker()

    def start_servers(self, **of_mlflow: str) -> None:
        """Every server, and all that is deployed; MLflow's gets these variables, too."""
        self.stack.start_postgres()
        self.stack.start_s3()
        self.stack.start_mlflow(**of_mlflow)
        self.stack.start_prefect()
        self.gate = Gate(free_port(), self.stack.port("mlflow"))
        self.log_model()
        self.stack.start_python("deploy", "flows.cli.app", "deploy", **self.settings())
        assert self.stack.processes.pop("deploy").wait(180) in (0, 1), self.stack.said("deploy")
        # A watch that comes by its schedule would work beside a case, and hold a slot at its end.
        self.stack.ask("/work_pools/quantgate", {"base_job_template": _TEMPLATE}, method="PATCH")
        for one in self.stack.ask("/deployments/filter"):
            self.stack.ask(f"/deployments/{one['id']}/pause_deployment")
        self.deployment = str(self.stack.ask("/deployments/name/quantize/quantize-model", method="GET")["id"])

    def start_worker(self) -> None:
        """A worker of the runs."""
        log = self.stack.root / f"{WORKER}.log"
        before = len(self.stack.said(WORKER)) if log.exists() else 0
        process = self.stack.start_python(WORKER, "flows.cli.app", "worker", **self.settings())
        wait_until(lambda: "started!" in self.stack.said(WORKER)[before:], process)

    def start_target_worker(self, name: str) -> None:
        """A worker of the target for the runs on a model, whose state folder and store it shares."""
        places = {"QUANTGATE_STATE": str(self.state(name)), "QUANTGATE_STORE": self.shared_store(name)}
        log = self.stack.root / f"{TARGET_WORKER}.log"
        before = len(self.stack.said(TARGET_WORKER)) if log.exists() else 0
        arguments = ("flows.cli.app", "worker", "--target", TARGET)
        process = self.stack.start_python(TARGET_WORKER, *arguments, **self.settings(), **places)
        wait_until(lambda: "started!" in self.stack.said(TARGET_WORKER)[before:], process)

    def settings(self) -> dict[str, str]:
        """The environment of the worker and its runs, whose logs tell from outside how far they are."""
        return {
            "MLFLOW_TRACKING_URI": self.gate.address,
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_LOGGING_LEVEL": "DEBUG",
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "DEBUG",
        }

    def log_model(self) -> None:
        """The tiny classifier as `tiny`."""
        command = [sys.executable, "-c", LOG_MODEL, str(self.tiny.model)]
        settings = self.stack.settings(MLFLOW_TRACKING_URI=self.stack.registry)
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    def submit(self, name: str, candidates: list[str], *, is_shared: bool = False, by_workers: bool = False) -> str:
        """A run of the deployment on a new name of `tiny`, with a state folder of its own; its id."""
        self.copy_version("tiny", name)
        job = self.tiny.job(source=f"models:/{name}/1", candidates=candidates, objective="size")
        places = {"QUANTGATE_STATE": str(self.state(name))}
        if is_shared:
            places["QUANTGATE_STORE"] = self.shared_store(name)
        if by_workers:
            places["QUANTGATE_DISPATCH"] = "pools"
        variables = {"env": places}
        body = {"parameters": {"job": job, "promote": True}, "job_variables": variables, "name": name}
        path = f"/deployments/{self.deployment}/create_flow_run"
        return str(self.stack.ask(path, body | {"state": {"type": "SCHEDULED"}})["id"])

    def shared_store(self, name: str) -> str:
        """The store on S3 of the runs on a model."""
        return f"s3://{BUCKET}/{name}"

    def state(self, name: str) -> Path:
        """The state folder of the runs on a model."""
        return self.stack.root / "states" / name

    def retry(self, flow_run: str) -> None:
        """What `prefect flow-run retry` does."""
        body = {"state": {"type": "SCHEDULED", "message": "retried"}, "force": True}
        self.stack.ask(f"/flow_runs/{flow_run}/set_state", body)

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        """What the server knows of a run."""
        found: dict[str, Any] = self.stack.ask(f"/flow_runs/{flow_run}", method="GET")
        return found

    def wait_for_end(self, flow_run: str, seconds: float = 300.0) -> str:
        """The name of the state that a run ends in."""
        wait_until(lambda: self.flow_run(flow_run)["state_type"] in ENDED, seconds=seconds)
        return str(self.flow_run(flow_run)["state_name"])

    def pid(self, flow_run: str) -> int:
        """The process of a run, which leads a group."""
        return int(str(self.flow_run(flow_run)["infrastructure_pid"]).rpartition(":")[2])

    def pids_at_target(self) -> list[int]:
        """The processes in which the worker of the target works, each of which leads a group."""
        body = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}}
        at_work = [one for one in self.stack.ask("/flow_runs/filter", body) if "order" in one["parameters"]]
        pids = [one["infrastructure_pid"] for one in at_work if one["infrastructure_pid"]]
        return [int(str(pid).rpartition(":")[2]) for pid in pids]

    def give_champion(self, name: str) -> str:
        """Make the champion of the model `holder` that of another one, too; its version there."""
        version = self.copy_version("holder-quantized", f"{name}-quantized")
        body = {"name": f"{name}-quantized", "alias": ALIAS, "version": version}
        self.ask_registry("POST", "registered-models/alias", body)
        return version

    def copy_version(self, model: str, copy: str) -> str:
        """Register what version 1 of a model is under another name; its version there."""
        found = self.ask_registry("GET", "model-versions/get", name=model, version="1")["model_version"]
        self.ask_registry("POST", "registered-models/create", {"name": copy})
        body = {"name": copy, "source": found["source"], "model_id": found["source"].removeprefix("models:/")}
        made = self.ask_registry("POST", "model-versions/create", body | {"tags": found.get("tags", [])})
        return str(made["model_version"]["version"])

    def ask_registry(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        """What MLflow's own API answers; None for what is not there."""
        url = f"{self.stack.registry}/api/2.0/mlflow/{path}"
        answer = httpx.request(method, url, params=query, json=body, timeout=60)
        # So it says of an alias that a model does not have.
        if answer.status_code == 404 or (answer.is_error and "not found" in answer.text):
            return None
        assert answer.is_success, answer.text
        return answer.json()

    def alias(self, name: str) -> str | None:
        """The version that the champion of a model's variants is."""
        found = self.ask_registry("GET", "registered-models/alias", name=f"{name}-quantized", alias=ALIAS)
        return str(found["model_version"]["version"]) if found else None

    def close(self) -> None:
        """End everything."""
        if hasattr(self, "gate"):
            self.gate.close()
        self.stack.close()

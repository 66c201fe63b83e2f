"""The service as people meet it: servers, the deployments of `quantgate deploy`, a worker for runs, and a registered model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from stack import Stack, wait_until

ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
_REGISTER = """
import sys, mlflow, numpy as np, onnx
from mlflow.models import infer_signature
signature = infer_signature({"x": np.zeros((2, 64), np.float32)}, {"logits": np.zeros((2, 4), np.float32)})
mlflow.set_experiment("user")
with mlflow.start_run():
    info = mlflow.onnx.log_model(onnx.load(sys.argv[1]), name="tiny", signature=signature, pip_requirements=[])
for name in sys.argv[2:]:
    mlflow.register_model(info.model_uri, name)
"""


@dataclass
class Service:
    """A stack with all that is deployed."""

    stack: Stack

    def start_all(self, model: Path, *names: str) -> None:
        """The servers, the model in the registry under these names, the deployments, the worker."""
        self.stack.start_mlflow()
        self.stack.start_prefect()
        self.run_python("-c", _REGISTER, str(model), *names)
        # The deployments are made, whatever else the command may have to complain of.
        self.command("deploy")
        worker = self.stack.start_python("worker", "flows.cli.app", "worker")
        wait_until(lambda: "started!" in self.stack.said("worker"), worker)

    @property
    def site(self) -> str:
        """Where people see Prefect's pages."""
        return self.stack.api.removesuffix("/api")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of quantgate's."""
        command = [sys.executable, "-m", "flows.cli.app", *arguments]
        return subprocess.run(command, env=self.stack.settings(), capture_output=True, text=True, check=False)

    def run_python(self, *arguments: str) -> None:
        """A program of this interpreter's, to its end."""
        done = subprocess.run(
            [sys.executable, *arguments], env=self.stack.settings(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def deployment(self, name: str) -> str:
        """The id of a deployment."""
        return str(self.stack.ask(f"/deployments/name/{name}", method="GET")["id"])

    def start(self, name: str, parameters: dict[str, Any]) -> str:
        """Start a deployment, as whoever uses the API does; the id of the flow run."""
        path = f"/deployments/{self.deployment(name)}/create_flow_run"
        return str(self.stack.ask(path, {"parameters": parameters})["id"])

    def runs(self) -> list[str]:
        """The ids of the quantize flow's runs."""
        return [
            str(found["id"])
            for found in self.stack.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["quantize"]}}})
        ]

    def state(self, run: str) -> dict[str, Any]:
        """The state of a flow run."""
        found: dict[str, Any] = self.stack.ask(f"/flow_runs/{run}", method="GET")["state"]
        return found

    def wait_for(self, run: str, *wanted: str) -> dict[str, Any]:
        """The flow run's state once it is one of these types; another end is a failure."""
        wait_until(lambda: self.state(run)["type"] in {*wanted, *ENDED}, self.stack.processes["worker"])
        found = self.state(run)
        assert found["type"] in wanted, (found["type"], found["message"], self.stack.said("worker")[-3000:])
        return found

    def registry(self, place: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        """What MLflow answers."""
        method = "GET" if body is None else "POST"
        answer = httpx.request(method, f"{self.stack.registry}/{place}", params=query, json=body, timeout=60)
        return answer.raise_for_status().json()

    def record(self, run: str) -> dict[str, Any]:
        """The parent run in MLflow of a flow run: its info, and its tags by name."""
        told = f"tags.`quantgate.flow_run` = '{run}' and tags.`quantgate.kind` = 'run'"
        known = self.registry("api/2.0/mlflow/experiments/get-by-name", experiment_name="quantgate")["experiment"]
        asked = {"experiment_ids": [known["experiment_id"]], "filter": told}
        (found,) = self.registry("api/2.0/mlflow/runs/search", asked)["runs"]
        return {"info": found["info"], "tags": {tag["key"]: tag["value"] for tag in found["data"]["tags"]}}

    def result(self, run: str) -> dict[str, Any]:
        """The result document that a flow run left in MLflow."""
        found = self.registry("get-artifact", path="result.json", run_uuid=self.record(run)["info"]["run_id"])
        assert isinstance(found, dict)
        return found

    def tags(self, name: str, version: str = "1") -> dict[str, str]:
        """The tags of a model version."""
        found = self.registry("api/2.0/mlflow/model-versions/get", name=name, version=version)["model_version"]
        return {tag["key"]: tag["value"] for tag in found.get("tags", [])}

    def champion(self, name: str) -> str | None:
        """The version that the alias of a source's champion on ort-cpu names."""
        try:
            found = self.registry("api/2.0/mlflow/registered-models/get", name=f"{name}-quantized")["registered_model"]
        except httpx.HTTPStatusError:
            return None
        aliases = {alias["alias"]: str(alias["version"]) for alias in found.get("aliases", [])}
        return aliases.get("champion-ort-cpu")

    def report_of(self, run: str) -> str:
        """The address that the link on a run's page leads to."""
        asked = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["report"]}}}
        (artifact,) = self.stack.ask("/artifacts/filter", asked)
        return str(artifact["data"]).partition("](")[2].rstrip(")")

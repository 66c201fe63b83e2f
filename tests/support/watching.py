"""Steps of a test of the watch in one process: `python tests/support/watching.py STEPS.json ANSWERS.json`.

A step is {"name", "look": JOB or null} for a look, or {"name", "call", "arguments", "with"} for a function of this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.run.settings import prepare_environment, state_folder, tracking_uri

# Before MLflow and Prefect are imported, which read it then.
prepare_environment(state_folder())

import mlflow  # noqa: E402  # after what must come first
import numpy as np  # noqa: E402  # after what must come first
import onnx  # noqa: E402  # after what must come first
import yaml  # noqa: E402  # after what must come first
from conftest import tiny_samples  # noqa: E402  # after what must come first

CONSUMER = Path(__file__).parents[2] / "tasks" / "champion" / "consumer" / "consumer.py"


def look(job: str | None) -> dict[str, Any]:
    """What the flow came to: the state's name and message, and each look."""
    from flows.watch import watch

    state = watch(job, return_state=True)
    found = state.result(raise_on_failure=False)
    looks = [asdict(one) for one in found] if isinstance(found, tuple) else []
    return {"state": state.name, "message": state.message, "looks": looks}


def write_traffic(path: str, seed: int, n: int, plant: str = "") -> None:
    """Requests of the tiny model: like its calibration data, scaled, of one cluster alone, or bytes that are no archive."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if plant == "unreadable":
        place.write_bytes(b"PK\x03\x04 and then nothing")
        return
    samples = tiny_samples(n * 8 if plant == "one cluster" else n, seed)
    x = samples["x"]
    if plant == "one cluster":
        x = x[samples["label"] == 1][:n]
    np.savez(place, x=x * np.float32(1.6 if plant == "scaled" else 1.0))


def set_watch(job: str, **section: Any) -> None:
    """Change the `watch` section of a job file."""
    path = Path(job)
    content = yaml.safe_load(path.read_text())
    content["watch"] |= section
    path.write_text(yaml.safe_dump(content))


def damage_champion() -> str:
    """Promote, past all gates, a copy of the champion that never answers class 2; its version."""
    from tasks.registry.champion_slot import MANIFEST_DIGEST, VARIANT_DIGEST
    from validators.digests import digest_file, digest_text
    from validators.records.journal import JOURNAL, Journal, tag_of

    uri = tracking_uri(state_folder())
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient(uri, uri)
    champion = client.get_model_version_by_alias("tiny-quantized", "champion-ort-cpu")
    with tempfile.TemporaryDirectory() as folder:
        got = Path(mlflow.artifacts.download_artifacts(f"models:/tiny-quantized/{champion.version}", dst_path=folder))
        file, manifest = next(got.rglob("variant/model.onnx")), next(got.rglob("manifest.json"))
        model = onnx.load(file)
        (weights,) = (one for one in model.graph.initializer if list(one.dims) == [128, 4])
        values = onnx.numpy_helper.to_array(weights).copy()
        values[:, 2] = -np.clip(values[:, 2], -127, 127)
        weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
        onnx.save(model, file)
        told = json.loads(manifest.read_text())
        told["files"]["model.onnx"] = digest_file(file)
        manifest.write_text(json.dumps(told, indent=1))
        with mlflow.start_run(run_id=champion.run_id):
            logged = mlflow.pyfunc.log_model(
                name="variant",
                python_model=str(CONSUMER),
                code_paths=[str(next(got.rglob("quantgate_runtimes")))],
                artifacts={"variant": str(file.parent), "manifest": str(manifest)},
                signature=mlflow.models.get_model_info(champion.source).signature,
                pip_requirements=[],
            )
        tags = champion.tags | {VARIANT_DIGEST: digest_file(file), MANIFEST_DIGEST: digest_text(manifest.read_text())}
    tags |= {JOURNAL: tag_of(Journal("done", previous=str(champion.version)))}
    made = mlflow.register_model(logged.model_uri, "tiny-quantized", tags=tags)
    client.set_registered_model_alias("tiny-quantized", "champion-ort-cpu", made.version)
    return str(made.version)


def champion() -> str:
    """The version that consumers get."""
    client = mlflow.MlflowClient(*[tracking_uri(state_folder())] * 2)
    return str(client.get_model_version_by_alias("tiny-quantized", "champion-ort-cpu").version)


def deploy() -> None:
    """The deployment that the watch starts, without a worker."""
    from flows.quantize import quantize

    quantize.to_deployment(name="quantize-model").apply()


def started() -> list[dict[str, Any]]:
    """The runs of that deployment."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    return [
        {"source": run.parameters["job"]["source"], "key": run.idempotency_key} for run in runs if run.deployment_id
    ]


def main(steps: Path, answers: Path) -> None:
    """Do the steps in turn."""
    given: dict[str, Any] = {}
    for one in json.loads(steps.read_text()):
        if "look" in one:
            given[one["name"]] = look(one["look"])
        else:
            given[one["name"]] = globals()[one["call"]](*one.get("arguments", ()), **one.get("with", {}))
        answers.write_text(json.dumps(given, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

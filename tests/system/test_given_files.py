"""Files that another tool made, good ones and hostile ones: each ends as it should, and a good one becomes the champion."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model, tiny_weights
from driving import environment, register_models, run_jobs, write_job
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from tasks.engines.openvino import session as openvino
from validators.digests import digest_file

# Prints the share of right answers of each version; neither quantgate nor this folder can be imported.
CONSUMER = """
import sys
import mlflow, numpy as np
data = np.load(sys.argv[1])
for uri in sys.argv[2:]:
    answers = mlflow.pyfunc.load_model(uri).predict({"x": data["x"]})["logits"]
    print((answers.argmax(axis=1) == data["label"]).mean())
print([name for name in sys.modules if name.split(".")[0] in ("tasks", "validators", "flows")])
"""
# Registers a quantized file as another team may have: as it is.
REGISTER = """
import sys
import mlflow
from tasks.run.settings import artifact_location, state_folder, tracking_uri
where = tracking_uri(state_folder())
mlflow.set_tracking_uri(where)
mlflow.set_experiment(experiment_id=mlflow.create_experiment("theirs", artifact_location(where)))
with mlflow.start_run() as run:
    mlflow.log_artifact(sys.argv[1], "theirs")
client = mlflow.MlflowClient()
client.create_registered_model("tiny-int8")
client.create_model_version("tiny-int8", f"{run.info.artifact_uri}/theirs", run_id=run.info.run_id)
print(run.info.run_id)
"""
HERE = openvino.why_missing() is None


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Calibration samples, eight at a time."""

    def __init__(self, file: Path) -> None:
        samples = np.load(file)["x"]
        self.batches = iter([{"x": samples[start : start + 8]} for start in range(0, len(samples), 8)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def folded_away(tiny: Tiny) -> onnx.ModelProto:
    """Float weights behind Q/DQ pairs: the file looks quantized, and every kernel that runs is float."""
    model = tiny_model(*tiny.weights)
    scales = {"scale": np.float32(0.01), "zero": np.int8(0)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in scales.items())
    for place, weight in enumerate(("first", "second")):
        ends = [f"{weight}_codes", f"{weight}_again"]
        model.graph.node.insert(
            0, helper.make_node("DequantizeLinear", [ends[0], "scale", "zero"], [ends[1]], name=ends[1])
        )
        model.graph.node.insert(
            0, helper.make_node("QuantizeLinear", [weight, "scale", "zero"], [ends[0]], name=ends[0])
        )
        next(node for node in model.graph.node if node.name == ("first_matmul", "second_matmul")[place]).input[1] = (
            ends[1]
        )
    return model


@pytest.fixture(scope="module")
def files(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    quantize_static(tiny.model, folder / "ort.onnx", Reader(tiny.calibration))
    onnx.save(folded_away(tiny), folder / "fake.onnx")
    onnx.save(tiny_model(*tiny_weights(9)), folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "other.onnx", Reader(tiny.calibration))
    (folder / "truncated.onnx").write_bytes((folder / "ort.onnx").read_bytes()[:3000])
    (folder / "pickle.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    if HERE:
        import openvino as ov

        ov.save_model(ov.convert_model(folder / "ort.onnx"), folder / "ir.xml", compress_to_fp16=False)
    return folder


@pytest.fixture(scope="module")
def world(tiny: Tiny, files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The state folder, and the results of a job with all files, raced, and of one with OpenVINO's own alone."""
    root = tmp_path_factory.mktemp("given")
    register_models(root / "state", tiny.model.parent)
    command = [sys.executable, "-W", "ignore", "-c", REGISTER, str(files / "ort.onnx")]
    done = subprocess.run(command, env=environment(root / "state"), check=True, capture_output=True, text=True)
    logged = done.stdout.split()[-1]

    def given(name: str, engine: str = "ort-cpu") -> dict[str, str]:
        return {"name": name.partition(".")[0], "file": str(files / name), "engine": engine}

    theirs = [given(name) for name in ("ort.onnx", "fake.onnx", "other.onnx", "truncated.onnx", "pickle.pkl")]
    registered = [
        {"name": "registered", "source": "models:/tiny-int8/1", "engine": "ort-cpu"},
        {"name": "logged", "source": f"runs:/{logged}/theirs/ort.onnx", "engine": "ort-cpu"},
        {"name": "folder", "source": f"runs:/{logged}/theirs", "engine": "ort-cpu"},
        {"name": "nowhere", "source": f"runs:/{logged}/ours/ort.onnx", "engine": "ort-cpu"},
    ]
    jobs = {
        "onnx": tiny.job(
            source="models:/tiny/1", candidates=[*theirs, *registered, "fp8-amax-pc@ort-cpu"], search="race"
        )
    }
    if HERE:
        ir = [given("ir.xml", "openvino")]
        jobs["ir"] = tiny.job(source="models:/tiny/1", target="openvino", candidates=ir)
        # Compared with that champion, whose file is fetched from the registry.
        jobs["after"] = jobs["ir"] | {"candidates": ["int8-static-minmax-pc@openvino"]}
    calls = [{"name": name, "job": str(write_job(root / f"{name}.yaml", job))} for name, job in jobs.items()]
    answers = run_jobs(root / "state", root / "runs", calls)
    for name, answer in answers.items():
        assert answer.code in ((0, 3) if name == "after" else (0,)) and answer.result is not None, answer.said
    return root / "state", {name: answer.result or {} for name, answer in answers.items()}


def test_each_file_ends_as_it_should(world: Any) -> None:
    result = world[1]["onnx"]
    by_name = {one["name"].partition("@")[0].rpartition("-")[2]: one for one in result["candidates"]}
    assert result["chosen"] == "int8-given-ort@ort-cpu" and result["outcome"] == "promoted"
    fake = [one["gate"] for one in by_name["fake"]["verdicts"] if one["outcome"] == "fail"]
    # The race stops it as soon as it cannot pass any more.
    other = by_name["other"]["refusal"]
    assert "coverage" in fake and other["kind"] == "stopped" and "accuracy is worse by at least" in other["reason"], (
        other
    )
    for name in ("registered", "logged", "folder"):
        copy = by_name[name]["refusal"]
        assert copy["kind"] == "copy" and "int8-given-ort@ort-cpu" in copy["reason"]
    nowhere = by_name["nowhere"]["refusal"]
    assert nowhere["kind"] == "invalid" and "ours/ort.onnx" in nowhere["reason"], nowhere
    reasons = {name: by_name[name]["refusal"]["reason"] for name in ("truncated", "pickle")}
    assert "truncated" in reasons["truncated"] and "pickle.pkl for ort-cpu" in reasons["pickle"]


@pytest.mark.parametrize("run", ["onnx", "ir"] if HERE else ["onnx"])
def test_the_champion_is_the_file_and_says_so(run: str, world: Any, files: Path) -> None:
    """Byte for byte; its page names the file with its digest."""
    state, results = world
    name, candidate = ("ir.xml", "int8-given-ir@openvino") if run == "ir" else ("ort.onnx", "int8-given-ort@ort-cpu")
    assert results[run]["chosen"] == candidate
    versions = (state / "mlartifacts").rglob("manifest.json")
    (manifest,) = (path for path in versions if json.loads(path.read_text())["candidate"] == candidate)
    assert digest_file(files / name) in json.loads(manifest.read_text())["files"].values()
    readme = (manifest.parent / "README.md").read_text()
    assert ("/model.xml" in readme) == (run == "ir")
    assert name in readme and digest_file(files / name)[:12] in readme


def test_a_consumer_without_quantgate_loads_it(world: Any, tiny: Tiny, tmp_path: Path) -> None:
    state, results = world
    uris = [
        f"models:/tiny-quantized@champion-{target}"
        for target in ("ort-cpu", *(["openvino"] if "ir" in results else []))
    ]
    command = [sys.executable, "-I", "-W", "ignore", "-c", CONSUMER, str(tiny.evaluation), *uris]
    env = environment(state, MLFLOW_TRACKING_URI=f"sqlite:///{state / 'mlflow.db'}")
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *right, imported = done.stdout.splitlines()[-len(uris) - 1 :]
    assert all(float(share) > 0.7 for share in right) and imported == "[]"


@pytest.mark.skipif(not HERE, reason="OpenVINO is not installed")
def test_openvinos_own_file_is_fetched_and_exported_as_champion(world: Any, tmp_path: Path) -> None:
    """The next run measures it beside its winner; servers that read it get it, and Triton's backend is refused by name."""
    state, results = world
    gates = [one["gate"] for candidate in results["after"]["candidates"] for one in candidate["verdicts"]]
    assert any("champion" in gate for gate in gates), gates
    export = [sys.executable, "-m", "flows.cli.app", "export", "tiny", "--target", "openvino"]
    done = {
        form: subprocess.run(
            [*export, form, str(tmp_path / form.strip("-"))],
            env=environment(state),
            capture_output=True,
            text=True,
            check=False,
        )
        for form in ("--ovms", "--triton")
    }
    if results["after"]["outcome"] != "promoted":
        assert done["--ovms"].returncode == 0 and list(tmp_path.rglob("model.xml")), done["--ovms"].stderr
        assert done["--triton"].returncode == 2 and "--ovms" in done["--triton"].stderr

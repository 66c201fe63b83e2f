"""Models with the interfaces that ordinary models have, from the registry to a consumer of the champion."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from driving import Answer, environment, run_jobs, write_job
from interfaces import WORKING

REGISTER = """
import sys, mlflow, onnx
from pathlib import Path
from tasks.run.settings import artifact_location, state_folder, tracking_uri
mlflow.set_tracking_uri(tracking_uri(state_folder()))
mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", artifact_location(tracking_uri(state_folder()))))
for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    with mlflow.start_run():
        info = mlflow.onnx.log_model(onnx.load(path), name=path.stem, pip_requirements=["onnxruntime"])
        mlflow.register_model(info.model_uri, path.stem)
"""
# As a consumer would: every input of the source, as the source has it.
CONSUME = """
import json, sys, mlflow, numpy as np
from pathlib import Path
from tasks.run.settings import state_folder, tracking_uri
mlflow.set_tracking_uri(tracking_uri(state_folder()))
told = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    with np.load(folder / "request.npz") as request:
        model = mlflow.pyfunc.load_model(f"models:/{folder.name}-quantized@champion-ort-cpu")
        answer = model.predict(dict(request))
    logits = next(value for name, value in answer.items() if np.ndim(value) == 2 and value.shape[1] == 4)
    told[folder.name] = [sorted(answer), np.asarray(logits).argmax(axis=1).tolist()]
print(json.dumps(told))
"""
# Each has its scores, of four classes, among its outputs, and inputs that are drawn. The integration test has each type, output
# and constant alone.
NAMES = [
    "every type",
    "side outputs",
    "scalars",
    "bfloat16",
    "zipmap judged",
    "sequence judged",
    "text input",
    "state carried",
    "state[2, N, 64]",
    "state[2, 1, 64]",
    "state from call to call",
    "boxes after NMS",
    "speech with lengths",
    "one id an input",
    "fixed batch 3",
    "NHWC",
]
SIDE_OUTPUTS = {
    "side outputs": {"label", "rows", "by_class", "maybe"},
    "boxes after NMS": {"selected"},
    "speech with lengths": {"speech"},
}

# One process makes all runs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[dict[str, Answer], dict[str, Any]]:
    """What the runs said, and the champions' outputs and classes for a request."""
    from databases import lend_both

    root = tmp_path_factory.mktemp("interfaces")
    lend_both(root / "state")
    (root / "models").mkdir()
    calls: list[dict[str, object]] = []
    for name in NAMES:
        case, folder = WORKING[name], root / "data" / plain(name)
        folder.mkdir(parents=True)
        onnx.save(case.model, root / "models" / f"{plain(name)}.onnx")
        # Bounds of mean average precision are wider than those of shares.
        samples = 1998 if name == "boxes after NMS" else 999
        for role, n, seed in (("calibration", 129, 11), ("evaluation", samples, 12)):
            np.savez(folder / f"{role}.npz", **case.data(n, seed))
        data = {role: str(folder / f"{role}.npz") for role in ("calibration", "evaluation")}
        job = tiny.job() | case.job | {"source": f"models:/{plain(name)}/1", "data": data, "code": str(root)}
        calls.append({"name": name, "job": str(write_job(folder / "job.yaml", job))})
    env = environment(root / "state", PYTHONWARNINGS="ignore")
    subprocess.run([sys.executable, "-c", REGISTER, str(root / "models")], env=env, check=True, capture_output=True)
    found = run_jobs(root / "state", root / "runs", calls, plain=True)
    for name in NAMES:
        folder = root / "requests" / plain(name)
        folder.mkdir(parents=True)
        np.savez(folder / "request.npz", **request_of(name))
    command = [sys.executable, "-c", CONSUME, str(root / "requests")]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return found, json.loads(done.stdout.splitlines()[-1])


def request_of(name: str) -> dict[str, Any]:
    """One request as a consumer of the source writes it, of 3 samples, or of the fixed batch."""
    case = WORKING[name]
    settings: Any = case.job.get("inputs", {})
    measurement: Any = case.job.get("measurement", {})
    rows = measurement.get("batch_sizes", [3])[0]
    arrays = case.data(rows, 13)
    states = [key for key, setting in settings.items() if "state_from" in setting]
    if states:
        # The first call of each sequence, with the state that a consumer begins with.
        arrays = {key: array[:, 0] for key, array in arrays.items()}
        arrays |= {key: np.zeros((rows, 2, 64), np.float32) for key in states}
    request = {}
    for value in case.model.graph.input:
        setting = settings.get(value.name, {})
        array = arrays.get(value.name)
        if "constant" in setting:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            array = np.array(setting["constant"], dtype)
            if [dim.dim_param for dim in value.type.tensor_type.shape.dim] == ["batch"]:
                array = np.full(rows, array)
        elif "batch_axis" in setting:
            array = np.moveaxis(array, 0, setting["batch_axis"])
        request[value.name] = array
    return request


@pytest.mark.parametrize("name", NAMES)
def test_a_version_with_this_interface_is_promoted_and_consumed(
    name: str, answers: tuple[dict[str, Answer], dict[str, Any]]
) -> None:
    found, consumed = answers
    answer = found[name]
    assert answer.result is not None and answer.result["outcome"] == "promoted", answer.said[-3000:]
    outputs, classes = consumed[plain(name)]
    case = WORKING[name]
    assert any(output in outputs for output in (case.job.get("output"), case.model.graph.output[0].name))
    # The size of some depends on values, and is the champion's own.
    assert SIDE_OUTPUTS.get(name, set()) <= set(outputs)
    labels = case.data(len(classes), 13)["label"]
    assert classes == labels.reshape(len(classes), -1)[:, 0].tolist()

"""A version that was really promoted, as each who may run it does: by MLflow and by ONNX Runtime alone, without quantgate, in a
fresh environment; and as it is exported."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import other_processor
import pytest
from conftest import Tiny
from driving import environment, register_models, run_jobs, write_job
from other_processor import why_not
from processors import HERE
from triton_proto import read_config

from tasks.serving.card import MOST_BYTES
from validators.digests import digest_file

ROOT = Path(__file__).parents[2]
CANDIDATE = "int8-static-minmax-pc@ort-cpu"
URI = "models:/tiny-quantized@champion-ort-cpu"
ROWS = 7

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """A state folder in which a run promoted a variant."""
    root = tmp_path_factory.mktemp("served")
    register_models(root / "state", tiny.model.parent)
    measurement: Any = tiny.job()["measurement"]
    job = tiny.job(source="models:/tiny/1", candidates=[CANDIDATE], measurement=measurement | {"batch_sizes": [1, 8]})
    call: dict[str, object] = {"name": "run", "job": str(write_job(root / "job.yaml", job))}
    answer = run_jobs(root / "state", root / "runs", [call], plain=True)["run"]
    assert answer.result is not None and answer.result["outcome"] == "promoted", answer.said
    return root / "state"


@pytest.fixture(scope="module")
def model(state: Path) -> Path:
    """The folder that MLflow has of the version."""
    (manifest,) = (state / "mlartifacts").rglob("manifest.json")
    return manifest.parents[1]


@pytest.fixture(scope="module")
def python(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with what the version's own requirements say, in the versions of the lock."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    uv, lock = str(Path(sys.executable).with_name("uv")), ROOT / "requirements" / "dev.txt"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "-c", str(lock)]
    subprocess.run([*install, "-r", str(model / "requirements.txt")], check=True)
    return venv / "bin" / "python"


@pytest.fixture(scope="module")
def batch(tiny: Tiny) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(tiny.evaluation)["x"][:ROWS]
    return array


def run(python: Path, script: str, folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A script in a folder, by an interpreter that has nothing else on its path."""
    command = [str(python), "-I", "-c", script, *arguments]
    env = environment(folder, **extra)
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder, check=False)


def expected(model: Path, batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the file answers under the manifest's settings, opened by this test."""
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = manifest["session"]["threads"]
    for key, value in manifest["session"]["entries"].items():
        options.add_session_config_entry(key, value)
    path = model / "artifacts" / "variant" / "model.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    answer: np.ndarray[Any, Any] = session.run(None, {"x": batch})[0]
    return answer


CONSUMER = """
import importlib.util, json, sys, warnings
import mlflow, numpy as np, onnxruntime as ort
for name in ("flows", "tasks", "validators", "prefect", "onnx", "torch"):
    assert importlib.util.find_spec(name) is None, name
mlflow.set_tracking_uri(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = mlflow.pyfunc.load_model(sys.argv[2])
ours = [str(one.message) for one in caught if "the variant was approved" in str(one.message)]
options = model.unwrap_python_model().session.get_session_options()
entries = {key: options.get_session_config_entry(key) for key in json.loads(sys.argv[3])}
np.save("answer.npy", model.predict({"x": np.load("x.npy")})["logits"])
np.save("array.npy", model.predict(np.load("x.npy"))["logits"])
print(json.dumps([ours, options.intra_op_num_threads, options.graph_optimization_level.name, entries]))
"""


def test_by_mlflow_in_a_fresh_environment(
    state: Path, model: Path, python: Path, batch: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """It answers as the artifact does, under the session that was approved, without a word about versions or the device."""
    np.save(tmp_path / "x.npy", batch)
    settings = json.loads((model / "artifacts" / "manifest.json").read_text())["session"]
    entries = settings["entries"]
    assert entries, "else nothing is proven of them"
    uri = f"sqlite:///{state / 'mlflow.db'}"
    done = run(python, CONSUMER, tmp_path, uri, URI, json.dumps(list(entries)), QUANTGATE_MISMATCH="refuse")
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == [[], settings["threads"], "ORT_ENABLE_ALL", entries]
    for name in ("answer.npy", "array.npy"):
        np.testing.assert_allclose(np.load(tmp_path / name), expected(model, batch), atol=1e-5)


def test_another_device_is_warned_of_or_refused_there_too(
    state: Path, model: Path, python: Path, batch: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """Of a copy that says it was approved elsewhere."""
    np.save(tmp_path / "x.npy", batch)
    copy = tmp_path / "model"
    subprocess.run(["cp", "-r", str(model), str(copy)], check=True)
    path = copy / "artifacts" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["hardware"]["processor"], manifest["runtime_version"] = "Z80", "1.2.3"
    path.write_text(json.dumps(manifest))
    arguments = (f"sqlite:///{state / 'mlflow.db'}", str(copy), "[]")
    done = run(python, CONSUMER, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    runtime, processor = json.loads(done.stdout.splitlines()[-1])[0]
    assert "found onnxruntime" in runtime and "1.2.3" in runtime and "Z80" in processor
    np.testing.assert_allclose(np.load(tmp_path / "answer.npy"), expected(model, batch), atol=1e-5)
    done = run(python, CONSUMER, tmp_path, *arguments, QUANTGATE_MISMATCH="refuse")
    assert done.returncode != 0 and "RuntimeError: found onnxruntime" in done.stderr
    assert "set QUANTGATE_MISMATCH=warn" in done.stderr


def program_of(model: Path) -> str:
    """The program in the version's README that needs ONNX Runtime alone."""
    readme = (model / "artifacts" / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (program,) = [text for text in programs if "import onnxruntime" in text]
    return str(program)


def test_by_onnx_runtime_alone_as_the_readme_has_it(
    model: Path, python: Path, batch: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """The example, word for word, in the folder of the README; then its session on real samples, as by MLflow."""
    np.save(tmp_path / "x.npy", batch)
    script = (
        f"{program_of(model)}\nimport sys\nassert 'mlflow' not in sys.modules\n"
        "np.save(sys.argv[1], session.run(names, {'x': np.load(sys.argv[2])})[0])\n"
    )
    answer = tmp_path / "answer.npy"
    done = run(python, script, model / "artifacts", str(answer), str(tmp_path / "x.npy"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["logits float32 (1, 4)"]
    np.testing.assert_array_equal(np.load(answer), expected(model, batch))


def test_where_its_sums_saturate_it_is_refused(
    state: Path, model: Path, python: Path, batch: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """By MLflow and by the README's program; a version with weights of 7 bits, approved without VNNI, is loaded there."""
    if why := why_not("avx2"):
        pytest.skip(why)
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    np.save(tmp_path / "x.npy", batch)
    without = other_processor.environment("avx2")
    done = run(python, CONSUMER, tmp_path, f"sqlite:///{state / 'mlflow.db'}", URI, "[]", **without)
    if HERE.adds_pairs_in_16_bits:
        assert manifest["saturates_without"] == [] and done.returncode == 0, done.stderr[-3000:]
        return
    assert done.returncode != 0 and "sums of the version's INT8 products saturate" in done.stderr
    done = run(python, program_of(model), model / "artifacts", **without)
    assert done.returncode != 0 and "AssertionError: a processor on which" in done.stderr


def test_the_readme_and_the_manifest_say_what_is_there(model: Path) -> None:
    readme = (model / "artifacts" / "README.md").read_text(encoding="utf-8")
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    digest = digest_file(model / "artifacts" / "variant" / "model.onnx")
    assert manifest["format"] == 2 and manifest["files"] == {"model.onnx": digest} and manifest["batch_sizes"] == [1, 8]
    assert f"| `variant/`model.onnx | `{digest}` |" in readme
    assert f"onnxruntime {onnxruntime.__version__}" in readme and manifest["hardware"]["processor"] in readme
    assert "| input | x | float32 | \\[batch, 64\\] |" in readme
    assert f'load_model("{URI}")' in readme


def test_the_registry_has_the_card(state: Path) -> None:
    """In MLflow's own table, within its column."""
    with sqlite3.connect(state / "mlflow.db") as database:
        ((card, run_id),) = database.execute(
            "SELECT description, run_id FROM model_versions WHERE name = 'tiny-quantized'"
        )
        ((digest,),) = database.execute("SELECT value FROM model_version_tags WHERE key = 'quantgate.source_digest'")
    assert len(card.encode()) <= MOST_BYTES and "Left out" not in card
    assert CANDIDATE in card and digest in card and run_id in card and URI in card
    for heading in ("Approved for", "Verdicts", "Beside the source", "Data", "Limits", "Load it"):
        assert f"\n### {heading}\n" in card


def exported(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli.app", "export", "tiny", "--target", "ort-cpu", *arguments]
    return subprocess.run(command, env=environment(state), capture_output=True, text=True, cwd=ROOT, check=False)


def test_as_a_model_of_triton(state: Path, model: Path, tmp_path: Path) -> None:
    """What its own schema reads is what the session of the file says; and refused over what somebody changed."""
    repository = tmp_path / "new" / "repository"
    done = exported(state, "--triton", str(repository))
    assert done.returncode == 0, done.stderr
    folder = repository / "tiny-quantized"
    assert [path.name for path in repository.parent.iterdir()] == ["repository"] and list(repository.iterdir()) == [
        folder
    ]
    config = read_config((folder / "config.pbtxt").read_text())
    file = folder / "1" / "model.onnx"
    assert file.read_bytes() == (model / "artifacts" / "variant" / "model.onnx").read_bytes()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for side, tensors in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [(one.name, list(one.dims)) for one in side] == [(one.name, one.shape[1:]) for one in tensors]
    assert (config.name, config.backend, config.max_batch_size) == (folder.name, "onnxruntime", 8)
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    assert config.parameters["intra_op_thread_count"].string_value == str(manifest["session"]["threads"])
    for key, value in manifest["session"]["entries"].items():
        assert f"not carried over: the entry {key}={value} of the session" in done.stdout
    assert "(models:/tiny-quantized/1) to " in done.stdout and "config.pbtxt" in done.stdout
    (folder / "config.pbtxt").write_text("mine")
    done = exported(state, "--triton", str(repository))
    assert done.returncode == 2 and "has config.pbtxt changed since quantgate wrote it" in done.stderr
    assert (folder / "config.pbtxt").read_text() == "mine"


def test_as_a_folder_that_mlflow_loads(state: Path, model: Path, python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "version"
    done = exported(state, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    names = {str(path.relative_to(model)) for path in model.rglob("*") if path.is_file()}
    assert names <= {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    script = (
        "import mlflow, sys, numpy as np\n"
        "print(mlflow.pyfunc.load_model(sys.argv[1]).predict(np.zeros((2, 64), np.float32))['logits'].shape)\n"
    )
    done = run(python, script, tmp_path, str(folder))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "(2, 4)", done.stderr[-3000:]


def test_a_version_that_is_not_there_is_said(state: Path) -> None:
    done = exported(state, "--triton", "a", "--version", "9")
    assert done.returncode == 2 and "version 9 of tiny-quantized is not a variant for ort-cpu" in done.stderr
    assert "expected: one of 1" in done.stderr

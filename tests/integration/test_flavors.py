"""Models of other MLflow flavors, from a registry of files to the ONNX file of a run, with parity."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from flows.cli.init import job_skeleton
from tasks.evidence.model_facts import describe_model
from tasks.evidence.resolve_source import resolve_source
from tasks.registry.mlflow_registry import connect
from tasks.run.context import start_run
from validators.errors import SourceError
from validators.graph.interfaces import spec_of
from validators.job.read_job import parse_job
from validators.records.run import Source

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
# The extras of these flavors, and the slow start of their libraries.
pytestmark = pytest.mark.slow
for library in ("transformers", "sentence_transformers", "skl2onnx", "skops"):
    pytest.importorskip(library, reason="the libraries of flavors are not installed")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A registry with a version of each flavor, made by a process of its own; the folder and the address."""
    folder = tmp_path_factory.mktemp("registry")
    script = Path(__file__).parents[1] / "support" / "log_flavors.py"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        env=os.environ | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, f"sqlite:///{folder}/mlflow.db"


def resolve(
    folder: Path, registry: tuple[Path, str], name: str, monkeypatch: pytest.MonkeyPatch, version: int = 1
) -> Source:
    monkeypatch.setenv("QUANTGATE_STATE", str(folder / "state"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry[1])
    rng = np.random.default_rng(0)
    for role, n in (("calibration", 99), ("evaluation", 200)):
        if name.startswith("sk"):
            arrays: dict[str, Any] = {"X": rng.normal(size=(n, 8)).astype(np.float32)}
        elif name == "keras-image":
            arrays = {"image": rng.normal(size=(n, 16, 16, 3)).astype(np.float32)}
        elif name == "keras-two":
            arrays = {"tokens": rng.integers(0, 100, (n, 12), np.int32)}
            arrays["extra"] = rng.normal(size=(n, 4)).astype(np.float32)
        elif name.startswith(("pickled", "keras")):
            arrays = {"input": rng.normal(size=(n, 64)).astype(np.float32)}
        elif name == "dictionary":
            arrays = {item: rng.normal(size=(n, 64)).astype(np.float32) for item in ("x", "shift")}
        else:
            arrays = {item: np.ones((n, 12), np.int64) for item in TOKENS}
            arrays["input_ids"] = rng.integers(5, 100, (n, 12))
            arrays["token_type_ids"][:] = 0
        np.savez(folder / f"{role}.npz", label=rng.integers(0, 2, n), **arrays)
    data = {role: str(folder / f"{role}.npz") for role in ("calibration", "evaluation")}
    run = start_run(parse_job({"source": f"models:/{name}/{version}", "target": "ort-cpu", "data": data}, base=folder))
    return resolve_source.fn(run)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("bert", TOKENS, ["logits"]),
        ("sentences", TOKENS, ["sentence_embedding"]),
        ("sk-mlp", ("X",), ["label", "probabilities"]),
        ("keras-two", ("extra", "tokens"), ["kind", "size"]),
        ("keras-image", ("image",), ["scores"]),
        ("dictionary", ("x", "shift"), ["logits", "states.0", "states.1"]),
        ("model_output", TOKENS, ["last_hidden_state", "pooler_output"]),
    ],
)
def test_a_version_becomes_onnx_and_agrees_with_the_original(
    name: str,
    inputs: tuple[str, ...],
    outputs: list[str],
    registry: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = resolve(tmp_path, registry, name, monkeypatch)
    graph = onnx.load(source.onnx_path).graph
    assert [value.name for value in graph.input] == list(inputs)
    assert [value.name for value in graph.output] == outputs
    assert "ai.onnx.ml" not in {node.domain for node in graph.node}, "OpenVINO knows none of them"
    assert source.parity_max_abs is not None and source.parity_max_abs < 1e-5
    if name == "keras-image":
        assert spec_of(graph.input[0]).shape == ("batch", 16, 16, 3)


@pytest.mark.parametrize(
    ("name", "words", "advice"),
    [
        ("gpt", "generates, GPT2LMHeadModel", "mlflow.onnx.log_model"),
        ("sk-linear", "consists of", "leave this model as it is"),
        ("sk-trees", "an ensemble of trees (sklearn.ensemble._forest", "leave this model as it is"),
        ("keras-code", "model.keras cannot be exported", "log it with mlflow.onnx"),
        ("sk-pickled", "a pickled scikit-learn model", "mlflow.sklearn.load_model('models:/sk-pickled/1')"),
        ("pickled", "a pickled PyTorch model", "mlflow.pytorch.load_model('models:/pickled/1')"),
    ],
)
def test_a_version_is_refused_by_name(
    name: str, words: str, advice: str, registry: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError) as caught:
        resolve(tmp_path, registry, name, monkeypatch)
    assert words in caught.value.found and advice in caught.value.fix


@pytest.mark.parametrize("name", ["pickled", "sk-pickled"])
def test_the_advised_line_logs_a_version_that_is_accepted(
    name: str, registry: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError) as caught:
        resolve(tmp_path, registry, name, monkeypatch)
    line = caught.value.fix.partition('python -c "')[2].partition('"')[0]
    environment = os.environ | {"MLFLOW_TRACKING_URI": registry[1]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", line],
        env=environment,
        cwd=registry[0],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    source = resolve(tmp_path, registry, name, monkeypatch, 2)
    assert source.parity_max_abs is not None and source.parity_max_abs < 1e-5


@pytest.mark.parametrize("name", ["bert", "dictionary"])
def test_init_names_the_inputs_and_outputs_that_a_run_finds(
    name: str, registry: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(registry[1]) as client:
        facts = describe_model(client, f"models:/{name}/1")
    graph = onnx.load(resolve(tmp_path, registry, name, monkeypatch).onnx_path).graph
    assert [spec.name for spec in facts.inputs] == [value.name for value in graph.input]
    assert [spec.name for spec in facts.outputs] == [value.name for value in graph.output]
    assert f"models:/{name}/1" in job_skeleton(facts, "ort-cpu", "job.yaml")

"""The language demo: registered once as a decoder, with data that fit the job of its example."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli.app import app
from flows.cli.demo import EXAMPLES, prepare_demo
from tasks.demo import language
from validators.job.candidate_name import decode
from validators.job.read_job import read_job


@pytest.mark.parametrize("missing", ["gguf", "onnxruntime_genai", "transformers"])
def test_without_its_libraries_the_demo_says_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Before anything is fetched, with the exit code of bad input."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("tasks.evidence.flavors.find_spec", lambda name: None if name == missing else name)
    done = CliRunner().invoke(app, ["demo", "--llm", "--json"])
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == 2 and error["found"].startswith(f"the language demo needs {missing.replace('_', '-')}")
    assert error["fix"] == "pip install 'quantgate[genai]'"
    assert not list(tmp_path.rglob("*.whl"))


def test_two_demos_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    done = CliRunner().invoke(app, ["demo", "--llm", "--image", "--json"])
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == 2 and error["found"] == "--image with --llm"


@pytest.mark.slow
def test_the_language_demo_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "onnxruntime_genai", "gguf"):
        pytest.importorskip(name, reason="the extra `genai`")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    path = prepare_demo(tmp_path, "llm")
    job = read_job(path)
    assert job.source == f"models:/{language.NAME}/1" and job.target == "ort-genai" and job.metric == "perplexity"
    built = language.build(tmp_path)
    windows, articles = [], []
    for file, count in ((built.calibration_path, 64), (built.evaluation_path, 64)):
        with np.load(file) as arrays:
            assert arrays["input_ids"].shape == (count, 128) and arrays["input_ids"].dtype == np.int64
            owners, sizes = np.unique(arrays["article"], return_counts=True)
            # Of 40 and 60 articles those with a window, no two far apart in their number.
            assert len(owners) >= 39 and sizes.max() <= 2
            articles.append(set(owners.tolist()))
            windows.append({row.tobytes() for row in arrays["input_ids"]})
    assert not windows[0] & windows[1] and not articles[0] & articles[1]
    assert prepare_demo(tmp_path, "llm").read_text() == path.read_text(), "registered once"


def test_the_job_of_the_example_is_that_of_the_target() -> None:
    job = yaml.safe_load((EXAMPLES / "llm.yaml").read_text(encoding="utf-8"))
    assert job["gates"]["max_drop"] == 0.05
    assert {decode(name).target for name in job["candidates"]} == {job["target"]}
    assert job["measurement"]["dims"]["new_tokens"][-1] == 1

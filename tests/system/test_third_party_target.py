"""A target of another package, installed as its users would, in real runs: nothing of quantgate is changed for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Tiny
from docs_pages import ROOT
from driving import Answer, environment, register_models, run_jobs, write_job

STATIC, INT4 = "int8-static-minmax-pc@acme-npu", "int4-g32-rtn@acme-npu"
CHAMPION = "models:/tiny-quantized@champion-acme-npu"
LOAD = f"""
import warnings
warnings.simplefilter("ignore")
import mlflow, numpy as np
model = mlflow.pyfunc.load_model("{CHAMPION}")
print(model.predict({{"x": np.zeros((3, 64), np.float32)}})["logits"].shape)
"""


@dataclass(frozen=True)
class World:
    """A state folder, what was answered with the package, and what without it."""

    state: Path
    answers: dict[str, Answer]
    without: dict[str, Answer]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that examples/target is installed into, without a network."""
    root = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "examples" / "target", root / "source")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    command = [*pip, "--target", str(root / "site"), str(root / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "site"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, package: Path, tiny: Tiny) -> World:
    """Runs and commands with the package, then some without it."""
    root = tmp_path_factory.mktemp("third-party")
    state = root / "state"
    register_models(state, tiny.model.parent)

    def call(name: str, **changes: object) -> dict[str, object]:
        job = tiny.job(**({"source": "models:/tiny/1", "target": "acme-npu", "candidates": "default"} | changes))
        return {"name": name, "job": str(write_job(root / f"{name}.yaml", job))}

    run = call("run", candidates=[STATIC, INT4])
    calls = [
        run,
        call("misspelt", target="acme-nqu"),
        {"name": "doctor", "arguments": ["doctor"]},
        {"name": "candidates", "arguments": ["candidates", str(call("default")["job"])]},
        {"name": "lint", "arguments": ["lint", str(tiny.model), "--target", "acme-npu"]},
    ]
    answers = run_jobs(state, root / "with", calls, plain=True, PYTHONPATH=str(package))
    back = {"name": "back", "command": "rollback", "model": "tiny", "target": "acme-npu"}
    return World(state, answers, run_jobs(state, root / "without", [run, back], plain=True))


def test_a_run_on_it_promotes(world: World) -> None:
    result = world.answers["run"].result
    assert result is not None and result["outcome"] == "promoted", world.answers["run"].said
    made, refused = result["candidates"]
    assert (made["name"], made["outcome"]) == (STATIC, "passed")
    assert refused["name"] == INT4 and "acme-npu has no kernels for it" in refused["refusal"]["reason"]


def test_its_version_is_part_of_the_device(world: World) -> None:
    """An approval on another version of the package is for another device."""
    result = world.answers["run"].result
    assert result is not None and result["inventory"]["runtimes"]["acme-npu"] == "1.2.0"


def test_a_consumer_loads_the_champion_without_the_package(world: World) -> None:
    uri = f"sqlite:///{world.state / 'mlflow.db'}"
    env = environment(world.state, MLFLOW_TRACKING_URI=uri)
    done = subprocess.run([sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "(3, 4)"


def test_commands_know_it(world: World) -> None:
    answers = world.answers
    assert "acme-npu" in answers["doctor"].out and answers["candidates"].out.count("@acme-npu") == 3
    assert answers["lint"].code == 0, answers["lint"].said


def test_a_misspelt_target_is_answered_with_it(world: World) -> None:
    answer = world.answers["misspelt"]
    assert answer.code == 2 and "unknown value 'acme-nqu'; did you mean 'acme-npu'?" in answer.said


def test_without_the_package_its_jobs_are_refused(world: World) -> None:
    """And the error lists what is here."""
    without = world.without
    assert without["run"].code == 2
    assert "unknown value 'acme-npu' (known: ort-cpu, cpu, openvino" in without["run"].said
    assert without["back"].code == 2

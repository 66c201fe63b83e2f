"""A model with operators of a library, from the registry to the consumer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_extensions
import pytest
from conftest import Tiny, tiny_model
from driving import Answer, environment, register_models, run_jobs, write_job
from onnx import helper

from validators.digests import digest_file

STATIC, DYNAMIC, INT4 = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"
# Without smaller forms of what passes.
BY_SIZE = {"objective": "size", "budgets": {"recovery": 0}}
BUILT = Path(onnxruntime_extensions.get_library_path())
LISTED = "nodes left in float: custom operator ai.onnx.contrib:NegPos"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """The tiny classifier with NegPos, which is Relu in its second output, in place of Relu; runs on it in turn."""
    root = tmp_path_factory.mktemp("custom")
    state = root / "state"
    model = tiny_model(*tiny.weights)
    relu = model.graph.node[2]
    relu.CopyFrom(helper.make_node("NegPos", ["sum"], ["low", "hidden"], domain="ai.onnx.contrib", name="relu"))
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    onnx.save(model, root / "tiny.onnx")
    register_models(state, root)
    shutil.copy(BUILT, root / "ours.so")
    # What the loader does not read; to who goes by the content it is another library.
    (root / "other.so").write_bytes(BUILT.read_bytes() + b"\0")

    def job(name: str, *libraries: dict[str, str], **changes: object) -> str:
        wanted = {"source": "models:/tiny/1", "operator_libraries": list(libraries)} | changes
        return str(write_job(root / f"{name}.yaml", tiny.job(**wanted)))

    package, file = {"package": "onnxruntime_extensions"}, {"file": "ours.so"}
    calls: list[dict[str, object]] = [
        {"name": "without", "job": job("without")},
        {"name": "gone", "job": job("gone", {"file": "gone.so"})},
        {"name": "package", "job": job("package", package, candidates=[STATIC])},
        {"name": "file", "job": job("file", file, candidates=[INT4], **BY_SIZE)},
        {"name": "weaker", "job": job("weaker", package, candidates=[STATIC], objective="size")},
        {"name": "other", "job": job("other", {"file": "other.so"}, candidates=[DYNAMIC], objective="size")},
    ]
    allowed = [f"sha256:{digest_file(root / name)}" for name in ("ours.so", "other.so")] + ["onnxruntime_extensions"]
    listed = ",".join(f"library={one}" for one in allowed)
    return state, run_jobs(state, root / "runs", calls, plain=True, QUANTGATE_ALLOWED_HOOKS=listed)


def test_outcomes(world: tuple[Path, dict[str, Answer]]) -> None:
    """Without the library the source is refused, and what to add is said; each champion is held against the next one."""
    answers = world[1]
    assert answers["without"].code == answers["gone"].code == 2
    assert "ai.onnx.contrib::NegPos" in answers["without"].said and "operator_libraries" in answers["without"].said
    assert "gone.so: no such file" in answers["gone"].said
    outcomes = {name: result(world, name)["outcome"] for name in ("package", "file", "weaker")}
    assert outcomes == {"package": "promoted", "file": "promoted", "weaker": "no_variant"}, answers["file"].said
    assert not any("no longer runs here" in answers[name].said for name in outcomes)
    (weaker,) = result(world, "weaker")["candidates"]
    assert [one["gate"] for one in weaker["verdicts"] if one["outcome"] == "fail"] == ["beats_champion"]


def test_a_library_that_the_job_does_not_name_is_not_loaded(world: tuple[Path, dict[str, Answer]]) -> None:
    """Though the champion in the registry asks for it: nobody knows how fast that is, and it stays."""
    answer = world[1]["other"]
    assert "operator library ours.so, sha256" in answer.said and "which the job does not name" in answer.said
    assert result(world, "other")["outcome"] == "no_variant"
    (candidate,) = result(world, "other")["candidates"]
    verdicts = {one["gate"]: one["outcome"] for one in candidate["verdicts"]}
    assert verdicts["beats_champion"] == "inconclusive", verdicts
    assert result(world, "other")["source"]["digest"] != result(world, "file")["source"]["digest"]


@pytest.mark.parametrize("name", ["package", "file"])
def test_the_operator_is_listed_as_left_in_float(world: tuple[Path, dict[str, Answer]], name: str) -> None:
    (candidate,) = result(world, name)["candidates"]
    assert candidate["changes"][LISTED] == 1 and candidate["coverage_macs"] == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "version"), [("package", 1), ("file", 2)])
def test_a_consumer_loads_what_was_promoted(
    world: tuple[Path, dict[str, Answer]], tiny: Tiny, tmp_path: Path, name: str, version: int
) -> None:
    """It answers as a session of the artifact with the library does."""
    state, _ = world
    out = tmp_path / "answer.npy"
    script = (
        "import sys, mlflow, numpy as np\n"
        f"mlflow.set_tracking_uri('sqlite:///{state / 'mlflow.db'}')\n"
        f"model = mlflow.pyfunc.load_model('models:/tiny-quantized/{version}')\n"
        f"np.save(sys.argv[1], model.predict({{'x': np.load({str(tiny.evaluation)!r})['x'][:7]}})['logits'])\n"
    )
    done = consume(script, state, tmp_path, str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(BUILT))
    artifact = artifact_of(state, result(world, name)["chosen"])
    session = onnxruntime.InferenceSession(artifact / "variant" / "model.onnx", options)
    expected = session.run(None, {"x": np.load(tiny.evaluation)["x"][:7]})[0]
    np.testing.assert_allclose(np.load(out), expected, atol=1e-5)


def test_manifest_names_the_library_and_its_file_is_shipped(world: tuple[Path, dict[str, Answer]]) -> None:
    """A package is a requirement of the version; a file is checked with the others."""
    state = world[0]
    package, file = (artifact_of(state, candidate) for candidate in (STATIC, INT4))
    ((named,), (beside,)) = (manifest(folder)["libraries"] for folder in (package, file))
    assert (named["package"], named["version"]) == ("onnxruntime_extensions", onnxruntime_extensions.__version__)
    requirements = [(folder.parent / "requirements.txt").read_text() for folder in (package, file)]
    needed = [[line for line in text.split() if "extensions" in line] for text in requirements]
    assert needed == [[f"{named['distribution']}=={onnxruntime_extensions.__version__}"], []]
    assert beside["file"] == "ours.so" and (file / "variant" / "ours.so").read_bytes() == BUILT.read_bytes()
    assert manifest(file)["files"]["ours.so"] == beside["sha256"]
    assert sorted(path.name for path in (package / "variant").iterdir()) == ["model.onnx"]


def test_a_consumer_loads_no_library_that_was_changed(world: tuple[Path, dict[str, Answer]], tmp_path: Path) -> None:
    """It is code: its digest is checked before it is loaded."""
    state = world[0]
    shutil.copytree(artifact_of(state, INT4).parent, tmp_path / "model")
    with (tmp_path / "model" / "artifacts" / "variant" / "ours.so").open("ab") as stream:
        stream.write(b"\0")
    done = consume(f"import mlflow\nmlflow.pyfunc.load_model({str(tmp_path / 'model')!r})\n", state, tmp_path)
    assert done.returncode != 0 and "found ours.so with sha256" in done.stderr


def test_a_consumer_without_the_package_is_told_what_to_install(
    world: tuple[Path, dict[str, Answer]], tmp_path: Path
) -> None:
    state = world[0]
    folder = artifact_of(state, STATIC).parent
    script = (
        f"import sys, mlflow\nsys.modules['onnxruntime_extensions'] = None\nmlflow.pyfunc.load_model({str(folder)!r})\n"
    )
    done = consume(script, state, tmp_path)
    assert done.returncode != 0
    assert "found no package onnxruntime_extensions" in done.stderr
    assert f"=={onnxruntime_extensions.__version__}, which has custom operators" in done.stderr


def result(world: tuple[Path, dict[str, Answer]], name: str) -> dict[str, Any]:
    found = world[1][name].result
    assert found is not None, world[1][name].said
    return found


def artifact_of(state: Path, candidate: str) -> Path:
    """The folder of the promoted artifact of a candidate, of which there is one."""
    (found,) = [
        path.parent
        for path in (state / "mlartifacts").rglob("manifest.json")
        if manifest(path.parent)["candidate"] == candidate
    ]
    return found


def manifest(artifacts: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((artifacts / "manifest.json").read_text())
    return content


def consume(script: str, state: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a consumer would, elsewhere."""
    command = [sys.executable, "-I", "-c", script, *arguments]
    return subprocess.run(command, env=environment(state), capture_output=True, text=True, cwd=folder, check=False)

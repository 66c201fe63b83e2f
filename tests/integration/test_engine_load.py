"""A version's engine as a consumer opens it, on the stand-ins of `test_engine_run.py`: loaded, built again, or refused."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Fakes, faked

from tasks.engines.tensorrt.shipped import model as load
from tasks.engines.tensorrt.shipped.build import NodeError, Plan
from validators.digests import digest_file, digest_model
from validators.records.engines import BuildSettings, EngineManifest, ShapeRange

ROOT = Path(__file__).parents[2]
GPU = {"gpu": "NVIDIA H200", "uuid": "GPU-1", "compute_capability": "9.0", "driver": "580.95.05"}
VALUES = {"n": ShapeRange((1,), (2,), (3,))}
BUILD = BuildSettings({"x": ShapeRange((0, 3), (2, 3), (4, 3))}, workspace_mb=512, tf32=False, values=VALUES)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_version(folder: Path, *, external: bool = False) -> dict[str, Any]:
    """The files of a version, whose engine is `static` of the stand-ins, and its manifest as it comes out of JSON."""
    contents = {"model.onnx": b"graph", "engine.plan": b"static", "timing.cache": b"times"}
    if external:
        contents["model.onnx.data"] = b"weights"
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    engine = EngineManifest(
        runtime="tensorrt",
        runtime_version="11.4.0.106",
        gpu=GPU["gpu"],
        compute_capability=GPU["compute_capability"],
        driver=GPU["driver"],
        build=BUILD,
        onnx_digest=digest_model(folder / "model.onnx"),
        engine_digest=digest_file(folder / "engine.plan"),
        timing_cache_digest=digest_file(folder / "timing.cache"),
    )
    manifest = {
        "files": {name: digest_file(folder / name) for name in contents},
        "engine": asdict(engine),
        "loader": "quantgate_tensorrt.model",
        "runtime": "tensorrt",
        "runtime_version": engine.runtime_version,
        "session": {},
        "inputs": {"x": "float32"},
    }
    read: dict[str, Any] = json.loads(json.dumps(manifest))
    return read


class Builder:
    """In the place of `build_plan`: keeps what it is asked for, and gives the engine `rows`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.engine: bytes | None = b"rows"

    def __call__(self, onnx: str, **settings: Any) -> Plan:
        self.asked.append({"onnx": onnx} | settings)
        errors = () if self.engine else (NodeError(3, "n", "Gemm", "UNSUPPORTED_NODE", "no such Gemm"),)
        return Plan("11.5.0.1", self.engine, None, (), errors)


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    with faked() as both:
        yield both


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    one = Builder()
    monkeypatch.setattr(load, "build_plan", one)
    monkeypatch.setattr(load, "gpu_here", lambda: GPU)
    monkeypatch.delenv(load.POLICY, raising=False)
    monkeypatch.delenv(load.FORMER, raising=False)
    return one


@pytest.mark.parametrize("external", [False, True])
def test_the_approved_engine_is_loaded_where_it_was_approved(
    tmp_path: Path, fakes: Fakes, builder: Builder, external: bool
) -> None:
    """Without a word."""
    engine = load.open_version(tmp_path, write_version(tmp_path, external=external))
    (y,) = engine.run({"x": X}, ["y"])
    np.testing.assert_array_equal(y, X * 2 + 1)
    assert builder.asked == [] and engine.inputs[0].shape == (2, 3)


@pytest.mark.parametrize(("key", "same_times"), [("driver", True), ("gpu", False), ("compute_capability", False)])
def test_on_another_machine_it_is_built_again(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch, key: str, same_times: bool
) -> None:
    """As it was approved, with its times where they were taken; and the warning says what differs."""
    manifest = write_version(tmp_path)
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {key: "other"})
    with pytest.warns(UserWarning, match=rf"stale: .* other, built with {GPU[key]}; it is rebuilt from model.onnx"):
        engine = load.open_version(tmp_path, manifest)
    assert engine.inputs[0].shape == (-1, 3), "that which was built"
    assert builder.asked == [
        {
            "onnx": str(tmp_path / "model.onnx"),
            "profile": {"x": ((0, 3), (2, 3), (4, 3))},
            "values": {"n": ((1,), (2,), (3,))},
            "workspace_mb": 512,
            "tf32": False,
            "timing_cache": b"times" if same_times else None,
        }
    ]


def test_another_version_of_tensorrt_makes_it_stale(tmp_path: Path, fakes: Fakes, builder: Builder) -> None:
    fakes.api.__version__ = "11.5.0.1"
    with pytest.warns(UserWarning, match="version 11.5.0.1, built with 11.4.0.106"):
        load.open_version(tmp_path, write_version(tmp_path))
    assert builder.asked[0]["timing_cache"] is None


def test_a_stale_engine_is_refused_if_told_so(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"driver": "1"})
    monkeypatch.setenv(load.POLICY, "refuse")
    with pytest.raises(RuntimeError, match=r"found a stale engine: driver 1, built with 580\.95\.05"):
        load.open_version(tmp_path, write_version(tmp_path))
    monkeypatch.setenv(load.POLICY, "yes")
    with pytest.raises(RuntimeError, match="found QUANTGATE_MISMATCH=yes; expected warn, refuse or allow"):
        load.open_version(tmp_path, write_version(tmp_path))
    monkeypatch.delenv(load.POLICY)
    monkeypatch.setenv(load.FORMER, "refuse")
    with pytest.raises(RuntimeError, match="found QUANTGATE_STALE_ENGINE; expected QUANTGATE_MISMATCH"):
        load.open_version(tmp_path, write_version(tmp_path))
    assert builder.asked == []


@pytest.mark.parametrize("name", ["model.onnx", "engine.plan", "timing.cache", "model.onnx.data"])
def test_a_damaged_file_is_an_error(tmp_path: Path, fakes: Fakes, builder: Builder, name: str) -> None:
    """No reason to build: what would it be built from?"""
    manifest = write_version(tmp_path, external=True)
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(RuntimeError, match=f"found {name} with sha256 .*; download the version again"):
        load.open_version(tmp_path, manifest)
    (tmp_path / name).unlink()
    with pytest.raises(RuntimeError, match=f"found no file {name}, which the manifest names"):
        load.open_version(tmp_path, manifest)
    assert builder.asked == []


def another_graph(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "model.onnx").write_bytes(b"another graph")
    manifest["files"]["model.onnx"] = digest_file(folder / "model.onnx")


def more_weights(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "model.onnx.data").write_bytes(b"weights that the engine's manifest does not know")
    manifest["files"]["model.onnx.data"] = digest_file(folder / "model.onnx.data")


@pytest.mark.parametrize("spoil", [another_graph, more_weights])
def test_an_onnx_file_that_was_not_approved_is_an_error(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None]
) -> None:
    """Put together from two versions: nothing is built from it, wherever it is."""
    manifest = write_version(tmp_path)
    spoil(tmp_path, manifest)
    for gpu in (GPU, GPU | {"driver": "other"}):
        monkeypatch.setattr(load, "gpu_here", lambda gpu=gpu: gpu)
        with pytest.raises(RuntimeError, match=r"found model\.onnx with digest .* which was approved"):
            load.open_version(tmp_path, manifest)
    assert builder.asked == []


def test_an_engine_that_was_not_approved_is_built_again(tmp_path: Path, fakes: Fakes, builder: Builder) -> None:
    """One that the files of the version have, and its engine's manifest has not."""
    manifest = write_version(tmp_path)
    (tmp_path / "engine.plan").write_bytes(b"mixed")
    manifest["files"]["engine.plan"] = digest_file(tmp_path / "engine.plan")
    with pytest.warns(UserWarning, match="stale: engine file"):
        assert load.open_version(tmp_path, manifest).inputs[0].shape == (-1, 3)


def test_without_a_timing_cache_it_is_built_without_one(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_version(tmp_path)
    del manifest["files"]["timing.cache"]
    (tmp_path / "timing.cache").unlink()
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"driver": "other"})
    with pytest.warns(UserWarning, match="stale: driver"):
        load.open_version(tmp_path, manifest)
    assert builder.asked[0]["timing_cache"] is None


def test_an_engine_that_was_rebuilt_is_kept_for_the_next_start(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For this machine and these settings alone; a damaged file is built again."""
    cache, version = tmp_path / "cache", tmp_path / "version"
    version.mkdir()
    manifest = write_version(version)
    monkeypatch.setenv(load.CACHE, str(cache))
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"driver": "581"})
    with pytest.warns(UserWarning, match=r"stale: driver 581, .*; it is rebuilt from model.onnx"):
        load.open_version(version, manifest)
    with pytest.warns(UserWarning, match=f"stale: driver 581, .*; one that was built here before is in {load.CACHE}"):
        engine = load.open_version(version, manifest)
    assert len(builder.asked) == 1 and engine.inputs[0].shape == (-1, 3)
    (file,) = cache.iterdir()
    for change in ({"driver": "582"}, {"gpu": "NVIDIA H100"}):
        monkeypatch.setattr(load, "gpu_here", lambda change=change: GPU | {"driver": "581"} | change)
        with pytest.warns(UserWarning, match="it is rebuilt"):
            load.open_version(version, manifest)
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"driver": "581"})
    other = manifest | {"engine": manifest["engine"] | {"build": manifest["engine"]["build"] | {"tf32": True}}}
    with pytest.warns(UserWarning, match="it is rebuilt"):
        load.open_version(version, other)
    assert len(builder.asked) == 4
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="it is rebuilt"):
        load.open_version(version, manifest)
    assert len(builder.asked) == 5


def test_an_engine_that_cannot_be_kept_is_used(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "version"
    version.mkdir()
    manifest = write_version(version)
    (tmp_path / "file").touch()
    monkeypatch.setenv(load.CACHE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"driver": "581"})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine = load.open_version(version, manifest)
    assert engine.inputs[0].shape == (-1, 3)
    assert [str(one.message).partition(":")[0] for one in said] == [
        "the engine is stale",
        "the rebuilt engine is not kept",
    ]
    monkeypatch.delenv(load.CACHE)
    with pytest.warns(UserWarning, match=f"at each start, unless {load.CACHE} names a folder"):
        load.open_version(version, manifest)


def test_what_cannot_be_built_says_why(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "gpu_here", lambda: GPU | {"gpu": "other"})
    builder.engine = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(RuntimeError, match=r"11\.5\.0\.1 does not build model\.onnx: no such Gemm.*11\.4\.0\.106"):
            load.open_version(tmp_path, write_version(tmp_path))


def test_without_a_gpu_nothing_is_tried(
    tmp_path: Path, fakes: Fakes, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "gpu_here", lambda: None)
    with pytest.raises(RuntimeError, match="found no NVIDIA GPU"):
        load.open_version(tmp_path, write_version(tmp_path))
    assert fakes.cuda.calls == [] and builder.asked == []


CONSUMER = """
import json, shutil, sys, warnings
from importlib.util import module_from_spec, spec_from_file_location
warnings.simplefilter("ignore")
import mlflow, mlflow.pyfunc
import numpy as np
tests, tasks, folder, *drivers = sys.argv[1:]
shutil.copytree(f"{tasks}/engines/tensorrt/shipped", "quantgate_tensorrt")
mlflow.pyfunc.save_model(
    "model",
    python_model=f"{tasks}/champion/consumer/consumer.py",
    code_paths=["quantgate_tensorrt"],
    artifacts={"variant": folder, "manifest": f"{folder}.json"},
    pip_requirements=["numpy"],
)
sys.path.insert(0, tests)
from engines import faked
spec = spec_from_file_location("consumer", "model/consumer.py")
consumer = module_from_spec(spec)
spec.loader.exec_module(consumer)
with faked():
    build, load = (consumer._shipped(f"quantgate_tensorrt.{name}") for name in ("build", "model"))
    load.build_plan = lambda *a, **k: build.Plan("11.4.0.106", b"rows", None, ())
    for driver in drivers:
        load.gpu_here = lambda: {"gpu": "NVIDIA H200", "compute_capability": "9.0", "driver": driver}
        champion = mlflow.pyfunc.load_model("model")
        x = np.arange(6).reshape(2, 3)
        answers = [champion.predict(given)["y"].tolist() for given in ({"x": x}, {"x": x.tolist()}, x)]
        print(json.dumps([answers, champion.unwrap_python_model().session.inputs[0].shape]))
    print(json.dumps(["tasks" in sys.modules or "validators" in sys.modules, "model/code" in load.__file__]))
"""


def test_a_consumer_has_the_file_and_the_folder_alone(tmp_path: Path) -> None:
    """Saved and loaded by MLflow, in a process that has nothing of ours; dicts, lists and one array are taken.

    Under the approved driver it is the approved engine, of one shape, that answers, and under another the one that is built.
    """
    folder = tmp_path / "variant"
    folder.mkdir()
    (tmp_path / "variant.json").write_text(json.dumps(write_version(folder)), encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        CONSUMER,
        str(ROOT / "tests" / "support"),
        str(ROOT / "tasks"),
        str(folder),
        GPU["driver"],
        "other",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": "", "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [(X * 2 + 1).tolist()] * 3
    found = [json.loads(line) for line in done.stdout.splitlines()[-3:]]
    assert found == [[expected, [2, 3]], [expected, [-1, 3]], [False, True]]

"""Building engines: ahead of time by real builds, on a GPU by a stand-in for the library, and all the ways to fail."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_models import PROFILE, WEIGHT, int8_product, save
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_rules import op

from tasks.engines.tensorrt import build as engines
from tasks.engines.tensorrt import build_process as engine_process
from tasks.engines.tensorrt.build import available, build_engine, profile_of
from tasks.engines.tensorrt.build_process_child import _share
from tasks.engines.tensorrt.shipped.api import load_api
from validators.digests import digest_file, digest_model
from validators.errors import CandidateRefused, JobError
from validators.job.job_engines import AxisRange, Engines
from validators.job.job_measurement import OperatingPoint
from validators.records.engines import BuildSettings, EngineLayer, ShapeRange
from validators.records.run import Gpu
from validators.samples.datasets import TensorSpec

HERE = Path(__file__).parents[3] / "support"
GPU = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.1", 10**11)
RANGES = {name: ShapeRange(*shapes) for name, shapes in PROFILE.items()}
AHEAD = BuildSettings(RANGES, compute_capabilities=("8.9", "12.0"))
aot = pytest.mark.skipif("tensorrt_rtx" not in available(), reason="the extra tensorrt-aot is not installed")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a module of this name and text before those that are installed, for child processes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(name: str, text: str) -> None:
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(engines, "available", lambda: {name: "11.4"})

    return write


@pytest.fixture
def library(module: Callable[[str, str], None]) -> None:
    """The stand-in for `tensorrt`."""
    module("tensorrt", (HERE / "fake_tensorrt.py").read_text())


# Ahead of time


@aot
def test_an_engine_is_built_ahead_of_time(tmp_path: Path) -> None:
    model = int8_product(tmp_path / "model.onnx")
    engine = build_engine(model, AHEAD, tmp_path / "engine", gpu=None, timing_caches=tmp_path / "caches")
    manifest = engine.manifest
    assert engine.path == tmp_path / "engine" / "engine.plan" and engine.path.stat().st_size > 1000
    assert (manifest.runtime, manifest.runtime_version) == ("tensorrt_rtx", available()["tensorrt_rtx"])
    assert (manifest.gpu, manifest.driver, manifest.compute_capability) == (None, None, "8.9,12.0")
    assert manifest.build == AHEAD and manifest.onnx_digest == digest_model(model)
    assert manifest.engine_digest == digest_file(engine.path)
    assert engine.timing_cache is None and not (tmp_path / "caches").exists()  # it times nothing
    assert "[VERBOSE] Layers:" in engine.log.read_text()
    assert [layer.kind for layer in engine.layers if "o" in layer.nodes] == ["gemm", "kgen"]


@aot
def test_external_data_is_read_from_beside_the_file(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(int8_product(tmp_path / "model.onnx"))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    engine = build_engine(tmp_path / "model.onnx", AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert engine.manifest.onnx_digest == digest_model(tmp_path / "model.onnx") != digest_file(tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(CandidateRefused, match="external data is missing beside the file") as caught:
        build_engine(tmp_path / "model.onnx", AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert caught.value.kind == "invalid"
    # Nothing of the first build is left to be taken for one of the second.
    assert not (tmp_path / "engine" / "engine.plan").exists() and (tmp_path / "engine" / "build.log").exists()


@aot
def test_a_file_that_the_parser_refuses_names_its_node(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", [op("MatMul", "x w", "o")], {"w": WEIGHT})
    with pytest.raises(CandidateRefused, match=r"TensorRT at o \(MatMul\)") as caught:
        build_engine(model, AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert caught.value.kind == "invalid"


# What is installed, and what is not


@pytest.mark.parametrize(
    ("runtimes", "gpu", "build", "extra"),
    [
        ({}, None, AHEAD, "tensorrt-aot"),
        ({"tensorrt": "11.4"}, GPU, AHEAD, "tensorrt-aot"),
        ({}, GPU, BuildSettings(RANGES), "tensorrt"),
        ({"tensorrt_rtx": "1.7"}, None, BuildSettings(RANGES), "tensorrt"),
    ],
)
def test_what_is_not_installed_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runtimes: dict[str, str],
    gpu: Gpu | None,
    build: BuildSettings,
    extra: str,
) -> None:
    monkeypatch.setattr(engines, "available", lambda: runtimes)
    with pytest.raises(CandidateRefused) as caught:
        build_engine(tmp_path / "model.onnx", build, tmp_path, gpu=gpu, timing_caches=None)
    assert caught.value.kind == "unsupported" and f"install the extra `{extra}`" in caught.value.fix


def test_versions_that_are_too_old_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_installed_version", {"tensorrt": "10.16.1.11", "tensorrt_rtx": None}.get)
    assert available() == {}
    monkeypatch.setattr(engines, "_installed_version", {"tensorrt": "11.4.0.106", "tensorrt_rtx": "1.7.1"}.get)
    assert available() == {"tensorrt": "11.4.0.106", "tensorrt_rtx": "1.7.1"}


def test_what_imports_without_its_libraries_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings without libraries fail with OSError, an old version imports; the message tells of both."""
    (tmp_path / "tensorrt.py").write_text("__version__ = '10.16.1'")
    (tmp_path / "tensorrt_rtx.py").write_text("raise OSError('libtensorrt_rtx.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        ImportError, match=r"tensorrt: version 10\.16\.1, expected 11 or later; tensorrt_rtx: libtensor"
    ):
        load_api()
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)


# A builder that does not come to its end


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "SIGKILL ended the builder, possibly because the machine ran out of memory",
        ),
        ("raise MemoryError('no 8 GB')", "MemoryError: no 8 GB"),
    ],
)
def test_a_builder_that_dies_is_a_refusal(
    tmp_path: Path, module: Callable[[str, str], None], text: str, words: str
) -> None:
    module("tensorrt_rtx", text)
    with pytest.raises(CandidateRefused, match=words) as caught:
        build_engine(tmp_path / "model.onnx", AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert caught.value.kind == "infrastructure"


def test_the_last_words_of_a_builder_are_kept(tmp_path: Path, module: Callable[[str, str], None]) -> None:
    """What it said before it crashed is in the log, and in the refusal."""
    fake = (HERE / "fake_tensorrt.py").read_text()
    crash = 'self.logger.log(SimpleNamespace(name="INFO"), "tactic 7\\nof 9"); __import__("os").abort()'
    module("tensorrt", fake.replace("cache = config.get_timing_cache()", crash))
    with pytest.raises(CandidateRefused, match="SIGABRT ended the builder; its last message: tactic 7\n  of 9"):
        build_engine(tmp_path / "model.onnx", BuildSettings(RANGES), tmp_path / "engine", gpu=GPU, timing_caches=None)
    assert engine_process.read_log(tmp_path / "engine" / "build.log")[-1] == ("INFO", "tactic 7\nof 9")


def test_a_builder_that_hangs_is_ended(
    tmp_path: Path, module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("tensorrt_rtx", "import time; time.sleep(60)")
    monkeypatch.setattr(engine_process, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(CandidateRefused, match="no engine after") as caught:
        build_engine(tmp_path / "model.onnx", AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert caught.value.kind == "infrastructure"


def test_a_library_that_does_not_load_names_the_extra(tmp_path: Path, module: Callable[[str, str], None]) -> None:
    module("tensorrt_rtx", "raise OSError('libtensorrt_rtx.so.1: no such file')")
    with pytest.raises(CandidateRefused, match=r"libtensorrt_rtx\.so\.1") as caught:
        build_engine(tmp_path / "model.onnx", AHEAD, tmp_path / "engine", gpu=None, timing_caches=None)
    assert caught.value.kind == "unsupported" and "`tensorrt-aot`" in caught.value.fix


# On a GPU, by the stand-in


@pytest.mark.usefixtures("library")
def test_an_engine_for_a_gpu_is_bound_to_it(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", [op("MatMul", "x w", "o")], {"w": WEIGHT})
    build = BuildSettings(RANGES, workspace_mb=3, tf32=False)
    engine = build_engine(model, build, tmp_path / "engine", gpu=GPU, timing_caches=tmp_path / "caches")
    manifest = engine.manifest
    assert (manifest.gpu, manifest.compute_capability, manifest.driver) == ("NVIDIA H200", "9.0", "580.1")
    assert (manifest.runtime, manifest.runtime_version) == ("tensorrt", "11.4.0.106")
    assert engine.layers == (EngineLayer("model.onnx", "gemm", ("int8",), ("int8",), ("int8",), "", ("o",)),)
    told = json.loads(engine.log.read_text().removeprefix("[INFO] built with "))
    assert told == [["workspace", 3 * 2**20], "tf32", {"x": [[1, 32], [4, 32], [8, 32]]}]
    assert engine.timing_cache is not None and manifest.timing_cache_digest == digest_file(engine.timing_cache)


@pytest.mark.usefixtures("library")
def test_builds_share_what_they_timed_by_gpu_driver_and_version(tmp_path: Path) -> None:
    caches = tmp_path / "caches"

    def build(name: str, gpu: Gpu = GPU) -> list[str]:
        engine = build_engine(
            tmp_path / name, BuildSettings(RANGES), tmp_path / f"engine {name}", gpu=gpu, timing_caches=caches
        )
        assert engine.timing_cache is not None
        timed: list[str] = json.loads(engine.timing_cache.read_bytes())
        return timed

    for name in ("a.onnx", "b.onnx", "c.onnx"):
        shutil.copy(int8_product(tmp_path / "m.onnx"), tmp_path / name)
    assert build("a.onnx") == ["a.onnx"] and build("b.onnx") == ["a.onnx", "b.onnx"]
    assert build("c.onnx", Gpu("NVIDIA H200", "GPU-2", "9.0", "581.0", 10**11)) == ["c.onnx"]
    assert {path.name: path.read_text() for path in caches.glob("*.cache")} == {
        "NVIDIA-H200-580.1-tensorrt-11.4.cache": '["a.onnx", "b.onnx"]',
        "NVIDIA-H200-581.0-tensorrt-11.4.cache": '["c.onnx"]',
    }


@pytest.mark.usefixtures("library")
def test_a_shared_cache_that_was_cut_off_is_timed_anew(tmp_path: Path) -> None:
    (tmp_path / "NVIDIA-H200-580.1-tensorrt-11.4.cache").write_bytes(b"garbage")
    engine = build_engine(
        int8_product(tmp_path / "a.onnx"), BuildSettings(RANGES), tmp_path / "e", gpu=GPU, timing_caches=tmp_path
    )
    assert engine.timing_cache is not None and engine.timing_cache.read_text() == '["a.onnx"]'
    assert (tmp_path / "NVIDIA-H200-580.1-tensorrt-11.4.cache").read_text() == '["a.onnx"]'


def test_what_another_build_put_there_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "gpu.cache"
    monkeypatch.setattr(
        "tasks.engines.tensorrt.build_process_child.merge_timing_caches", lambda first, second: first + second
    )
    _share(b"mine", None, shared)
    assert shared.read_bytes() == b"mine"
    _share(b"mine and more", b"mine", shared)
    assert shared.read_bytes() == b"mine and more"
    _share(b" theirs", b"mine", shared)
    assert shared.read_bytes() == b"mine and more theirs"

    def fails(first: bytes, second: bytes) -> bytes:
        raise RuntimeError("timing caches were not merged")

    monkeypatch.setattr("tasks.engines.tensorrt.build_process_child.merge_timing_caches", fails)
    _share(b"anew", b"mine", shared)
    assert shared.read_bytes() == b"anew"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.cache", "gpu.lock"]


# The profile

TEXT = (TensorSpec("ids", "int64", ("n", "length")), TensorSpec("mask", "int64", ("n", "length")))
IMAGE = (TensorSpec("image", "float32", ("n", 3, "height", None)),)
SEEN = {"ids": [(1000, 48), (200, 40)], "mask": [(1000, 48), (200, 40)]}


def points(*sizes: tuple[int, dict[str, int]]) -> tuple[OperatingPoint, ...]:
    return tuple(OperatingPoint(batch, dims, 1) for batch, dims in sizes)


def test_a_profile_takes_what_data_and_measurement_have() -> None:
    found = profile_of(TEXT, Engines(), points((4, {}), (64, {"length": 16})), SEEN, accuracy_batch=32)
    assert found == {name: ShapeRange((1, 16), (4, 48), (64, 48)) for name in ("ids", "mask")}
    found = profile_of(IMAGE, Engines(), points((2, {"height": 8})), {"image": [(9, 3, 10, 12)]}, accuracy_batch=32)
    assert found == {"image": ShapeRange((1, 3, 8, 12), (2, 3, 8, 12), (32, 3, 10, 12))}


def test_a_profile_takes_the_jobs_ranges() -> None:
    axes = {
        "batch": AxisRange(minimum=1, optimum=8, maximum=16),
        "length": AxisRange(minimum=1, optimum=20, maximum=512),
    }
    found = profile_of(TEXT, Engines(axes=axes), points((4, {})), SEEN, accuracy_batch=32)
    assert found["ids"] == ShapeRange((1, 1), (8, 20), (32, 512))


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"n": AxisRange(minimum=1, optimum=1, maximum=9)}, r"\['batch', 'length'\]"),
        ({"length": AxisRange(minimum=41, optimum=48, maximum=64)}, r"\[40, 48\]"),
        ({"batch": AxisRange(minimum=1, optimum=1, maximum=3)}, r"\[4\]"),
    ],
)
def test_a_range_that_does_not_fit_is_an_error_of_the_job(axes: dict[str, AxisRange], words: str) -> None:
    with pytest.raises(JobError, match=words):
        profile_of(TEXT, Engines(axes=axes), points((4, {})), SEEN, accuracy_batch=32)


def test_an_input_without_dynamic_axes_has_one_shape() -> None:
    fixed = (TensorSpec("x", "float32", (4, 32)), TensorSpec("scale", "float32", ()))
    found = profile_of(fixed, Engines(), points((4, {})), {"x": [(8, 32)], "scale": [()]}, accuracy_batch=32)
    assert found == {"x": ShapeRange((4, 32), (4, 32), (4, 32)), "scale": ShapeRange((), (), ())}
    assert all(shape.is_static for shape in found.values())


@given(
    batches=st.lists(st.integers(1, 100), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=4),
    asked=st.lists(st.none() | st.integers(1, 600), min_size=1, max_size=4),
)
def test_every_request_lies_within_the_profile(batches: list[int], lengths: list[int], asked: list[int | None]) -> None:
    of = points(*((batch, {} if size is None else {"length": size}) for batch in batches for size in asked))
    seen = {name: [(50, length) for length in lengths] for name in ("ids", "mask")}
    found = profile_of(TEXT, Engines(), of, seen, accuracy_batch=32)["ids"]
    shapes = [(point.batch_size, point.dims.get("length", lengths[0])) for point in of]
    assert found.optimum == shapes[0]
    for shape in [*shapes, *((count, length) for count in (1, 32) for length in lengths)]:
        assert all(low <= size <= high for low, size, high in zip(found.minimum, shape, found.maximum, strict=True))

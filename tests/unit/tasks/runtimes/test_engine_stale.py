"""Whether an engine may be loaded: a table of what must be equal, and everything else refused. And which GPU this is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.tensorrt.shipped.cuda import gpu_here
from tasks.engines.tensorrt.shipped.stale import digest_file, digest_onnx, same_machine, why_stale
from validators import digests

HERE = {
    "runtime": "tensorrt",
    "runtime_version": "11.4.0.106",
    "gpu": "NVIDIA H200",
    "compute_capability": "9.0",
    "driver": "580.95.05",
}
DIGESTS = {"onnx_digest": "a" * 64, "engine_digest": "b" * 64}
BUILD = {"profile": {}, "workspace_mb": None, "tf32": True, "compute_capabilities": ()}
MANIFEST: dict[str, Any] = {**HERE, **DIGESTS, "build": BUILD, "timing_cache_digest": None}
AHEAD = MANIFEST | {
    "runtime": "tensorrt_rtx",
    "gpu": None,
    "driver": None,
    "compute_capability": "8.9",
    "build": BUILD | {"compute_capabilities": ["8.9", "12.0"]},
}


def test_an_engine_is_loaded_where_it_was_built() -> None:
    assert why_stale(MANIFEST, HERE | {"uuid": "GPU-1"}, DIGESTS) is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("runtime", "tensorrt_rtx", "runtime tensorrt_rtx, built with tensorrt"),
        ("runtime_version", "11.4.0.107", "version 11.4.0.107, built with 11.4.0.106"),
        ("gpu", "NVIDIA H100", "GPU NVIDIA H100, built with NVIDIA H200"),
        ("compute_capability", "10.0", "compute capability 10.0, built with 9.0"),
        ("driver", "580.95.06", "driver 580.95.06, built with 580.95.05"),
    ],
)
def test_whatever_differs_is_named(key: str, value: str, words: str) -> None:
    assert why_stale(MANIFEST, HERE | {key: value}, DIGESTS) == words


@pytest.mark.parametrize("key", DIGESTS)
def test_another_file_is_not_the_approved_one(key: str) -> None:
    what = {"onnx_digest": "ONNX file", "engine_digest": "engine file"}[key]
    assert why_stale(MANIFEST, HERE, DIGESTS | {key: "c" * 64}) == f"{what} {'c' * 64}, built with {DIGESTS[key]}"


def test_all_differences_are_told() -> None:
    text = why_stale(MANIFEST, HERE | {"gpu": "other", "driver": "1"}, DIGESTS)
    assert text == "GPU other, built with NVIDIA H200; driver 1, built with 580.95.05"


@pytest.mark.parametrize("key", [*HERE, *DIGESTS])
def test_what_is_not_known_is_not_taken_for_equal(key: str) -> None:
    here, files = dict(HERE), dict(DIGESTS)
    (here if key in here else files).pop(key)
    with pytest.raises(KeyError):
        why_stale(MANIFEST, here, files)
    with pytest.raises(KeyError):
        why_stale({name: value for name, value in MANIFEST.items() if name != key}, HERE, DIGESTS)


@given(
    changed=st.fixed_dictionaries({key: st.sampled_from([value, "other"]) for key, value in (HERE | DIGESTS).items()})
)
def test_only_equal_ones_are_loaded(changed: dict[str, str]) -> None:
    """Of every mixture."""
    here = {key: changed[key] for key in HERE}
    files = {key: changed[key] for key in DIGESTS}
    assert (why_stale(MANIFEST, here, files) is None) == (changed == HERE | DIGESTS)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ({"compute_capability": "8.9"}, None),
        ({"compute_capability": "12.0", "gpu": "NVIDIA RTX 5090", "driver": "600.1"}, None),
        ({"compute_capability": "9.0"}, "compute capability 9.0, built for 8.9, 12.0"),
        ({"compute_capability": "8.9", "runtime_version": "1.8.0"}, "version 1.8.0, built with 11.4.0.106"),
        ({"compute_capability": "8.9", "runtime": "tensorrt"}, "runtime tensorrt, built with tensorrt_rtx"),
    ],
)
def test_ahead_of_time_the_compute_capability_counts(here: dict[str, str], expected: str | None) -> None:
    """No GPU and no driver went into it."""
    assert why_stale(AHEAD, HERE | {"runtime": "tensorrt_rtx"} | here, DIGESTS) == expected


def test_a_timing_cache_is_of_a_gpu_and_a_version() -> None:
    assert same_machine(MANIFEST, HERE | {"driver": "581"})
    assert not any(same_machine(MANIFEST, HERE | {key: "other"}) for key in HERE if key != "driver")


@pytest.mark.parametrize("beside", [None, b"weights"])
def test_digests_are_those_of_the_platform(tmp_path: Path, beside: bytes | None) -> None:
    """The package computes them anew, since it has nothing of quantgate."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"graph")
    if beside:
        (tmp_path / "model.onnx.data").write_bytes(beside)
    assert digest_onnx(model) == digests.digest_model(model)
    assert digest_file(model) == digests.digest_file(model)


class NVMLError(Exception):
    """As the library's."""


def nvml(names: list[Any]) -> ModuleType:
    """A library with GPUs of these names; a handle is the index."""
    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid[-1]),
        nvmlDeviceGetName=lambda handle: names[handle],
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 9),
        nvmlSystemGetDriverVersion=lambda: b"580.95.05",
    )
    return module


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [(None, "GPU-0"), ("1,0", "GPU-1"), ("GPU-1", "GPU-1"), (" 0", "GPU-0"), ("", None), ("-1", None), ("7", None)],
)
def test_the_gpu_is_cudas_first(clean: pytest.MonkeyPatch, visible: str | None, uuid: str | None) -> None:
    clean.setitem(sys.modules, "pynvml", nvml([b"NVIDIA L4", "NVIDIA L4"]))
    if visible is not None:
        clean.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpu_here()
    if uuid is None:
        assert found is None
    else:
        assert found == {"gpu": "NVIDIA L4", "uuid": uuid, "compute_capability": "8.9", "driver": "580.95.05"}


def test_which_of_several_kinds_is_not_guessed(clean: pytest.MonkeyPatch) -> None:
    """CUDA counts the fastest first, NVML by the bus."""
    clean.setitem(sys.modules, "pynvml", nvml(["NVIDIA L4", "NVIDIA H200"]))
    with pytest.raises(RuntimeError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpu_here()
    clean.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    clean.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_here() == {"gpu": "NVIDIA H200", "uuid": "GPU-1", "compute_capability": "8.9", "driver": "580.95.05"}


def test_no_driver_no_gpu(clean: pytest.MonkeyPatch) -> None:
    library = nvml([])

    def fail() -> None:
        raise NVMLError

    vars(library)["nvmlInit"] = fail
    clean.setitem(sys.modules, "pynvml", library)
    assert gpu_here() is None


def test_an_absent_library_is_named(clean: pytest.MonkeyPatch) -> None:
    clean.setitem(sys.modules, "pynvml", None)
    with pytest.raises(RuntimeError, match="install nvidia-ml-py>=13"):
        gpu_here()

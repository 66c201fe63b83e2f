"""The inventory: what it says of this machine is what other sources say; approvals are tied to what changes speed."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from importlib import metadata

import onnxruntime as ort
import psutil
import pytest

from tasks.measure import inventory as inventory_module
from tasks.measure.inventory import ISA_FLAGS, take_inventory, usable_cores, usable_providers
from validators.records.run import Gpu, Inventory
from validators.targets import BUILT_IN


def test_the_inventory_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores, memory, platform, runtimes and providers against psutil, platform and the runtime itself."""
    monkeypatch.setattr(inventory_module, "quota_cores", lambda: None)
    inventory = take_inventory("ort-cpu")
    process = psutil.Process()
    assert inventory.target == "ort-cpu"
    assert inventory.cores == len(process.cpu_affinity() or [])
    assert inventory.memory_bytes == psutil.virtual_memory().total
    assert inventory.platform == f"{platform.system()} {platform.release()} {platform.machine()}"
    assert inventory.python == platform.python_version()
    assert inventory.runtimes == {"onnxruntime": ort.__version__, "onnx": metadata.version("onnx")}
    assert inventory.providers == tuple(ort.get_available_providers())
    assert inventory.cpu and set(inventory.isa) <= set(ISA_FLAGS)
    assert inventory.load_average >= 0


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is bound to one core has one, whatever the machine has."""
    monkeypatch.setattr(inventory_module, "quota_cores", lambda: None)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == take_inventory("ort-cpu").cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() == len(allowed)


def test_processors_beyond_the_quota_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of 10 on 16 processors takes nothing of a quota of 4; one of 13.5 takes 1.5 of it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(inventory_module, "quota_cores", lambda: 4.0)
    for load, competing in ((10.0, 0.0), (13.5, 1.5)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        found = take_inventory("ort-cpu")
        assert (found.cores, found.cpu_quota, found.load_average) == (4, 4.0, competing)


GPU = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95.05", 150_000_000_000)


def test_a_target_on_a_gpu_has_its_gpu_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed of them, and of the GPU what the driver tells; a target on a processor has neither."""
    versions = {"tensorrt-cu13": "11.4.0.106", "tensorrt-rtx": "1.7.1.116", "nvidia-cudnn-cu13": "9.15.1"}
    real = metadata.version

    def version(name: str) -> str:
        if name in versions or name not in {
            one for facts in BUILT_IN.values() for names in facts.libraries.values() for one in names
        }:
            return versions.get(name) or real(name)
        raise metadata.PackageNotFoundError(name)

    asked: list[int] = []
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(inventory_module, "find_gpu", lambda device: asked.append(device) or GPU)
    found = {target: take_inventory(target, 1) for target in BUILT_IN}
    plain = found["ort-cpu"].runtimes
    added = {target: one.runtimes.items() - plain.items() for target, one in found.items()}
    cudnn, tensorrt = ("cudnn", "9.15.1"), ("tensorrt", "11.4.0.106")
    assert added == {
        "ort-cpu": set(),
        "cpu": set(),
        "openvino": set(),
        "torch-inductor": set(),
        "ort-genai": set(),
        "openvino-decoder": set(),
        "cpu-decoder": set(),
        "ort-cuda": {cudnn},
        "torch-cuda": set(),
        "cuda": {cudnn, tensorrt, ("tensorrt_rtx", "1.7.1.116")},
        "tensorrt": {tensorrt, ("tensorrt_rtx", "1.7.1.116")},
    }
    assert {target for target, one in found.items() if one.gpu} == {"ort-cuda", "tensorrt", "torch-cuda", "cuda"}
    assert asked == [1] * 4
    assert "NVIDIA H200 cc9.0 driver 580.95.05" in found["ort-cuda"].device_key


def test_what_a_runtime_was_built_with_is_no_gpu() -> None:
    """Without one its providers are of no use; TensorRT itself needs both the GPU and its library."""
    built = ("CUDAExecutionProvider", "CPUExecutionProvider")
    there = replace(INVENTORY, providers=built)
    assert usable_providers(there) == ("CPUExecutionProvider",)
    assert usable_providers(replace(there, gpu=GPU)) == built
    engines = replace(there, gpu=GPU, runtimes={"tensorrt": "11.4.0.106"})
    assert usable_providers(engines) == (*built, "TensorRT")
    assert usable_providers(replace(engines, gpu=None)) == ("CPUExecutionProvider",)
    with_torch = replace(there, gpu=GPU, runtimes={"torch": "2.13.0"})
    assert usable_providers(with_torch) == (*built, "TorchInductorCUDA")
    assert usable_providers(replace(with_torch, gpu=None)) == ("CPUExecutionProvider",)


INVENTORY = Inventory(
    target="ort-cpu",
    cpu="Some CPU",
    isa=("avx2", "avx512_vnni"),
    cores=2,
    memory_bytes=8_000_000_000,
    platform="Linux 6 x86_64",
    python="3.11.7",
    runtimes={"onnxruntime": "1.31.1", "onnx": "1.23.2"},
    providers=("CPUExecutionProvider",),
    load_average=0.5,
)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Another CPU"},
        {"isa": ("avx2",)},
        {"cores": 4},
        {"runtimes": {"onnxruntime": "1.32.0", "onnx": "1.23.2"}},
    ],
)
def test_another_device_has_another_key(change: dict[str, object]) -> None:
    """Processor, instruction sets, cores and runtime: what kernels and speed depend on."""
    assert replace(INVENTORY, **change).device_key != INVENTORY.device_key


@pytest.mark.parametrize(
    "change", [{"load_average": 9.0}, {"memory_bytes": 1}, {"runtimes": {"onnx": "1.23.2", "onnxruntime": "1.31.1"}}]
)
def test_the_same_device_keeps_its_key(change: dict[str, object]) -> None:
    """What is busy, or listed in another order, is still the same device."""
    assert replace(INVENTORY, **change).device_key == INVENTORY.device_key

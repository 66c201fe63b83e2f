"""The inventory: what it says of this machine is what other sources say; approvals are tied to what changes speed."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from importlib import metadata

import onnxruntime as ort
import psutil
import pytest

from tasks.measure.inventory import ISA_FLAGS, take_inventory, usable_cores
from validators.records import Inventory


def test_the_inventory_is_that_of_this_machine() -> None:
    """Cores, memory, platform, runtimes and providers against psutil, platform and the runtime itself."""
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


def test_cores_are_those_that_the_process_may_use() -> None:
    """A process that is bound to one core has one, whatever the machine has."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == take_inventory("ort-cpu").cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() == len(allowed)


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

"""The GPU's own account, with a stand-in for the library: no machine of the suite needs a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tasks.measure.inventory import find_gpu
from tasks.measure.latency.nvml import GpuState, NvmlGpu, open_gpu
from validators.errors import InfrastructureError
from validators.records import run as records


class NVMLError(Exception):
    """As the library's."""


def stand_in(**answers: object) -> ModuleType:
    """A library with one GPU that answers every question, in the library's units; an answer that is an error is raised."""
    given: dict[str, object] = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlSystemGetDriverVersion": "580.95.05",
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x04 | 0x40,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1_500_000_000, total=150_000_000_000),
        "nvmlDeviceGetTotalEnergyConsumption": 9_876_543,
        "nvmlDeviceGetComputeRunningProcesses": [
            SimpleNamespace(pid=1, usedGpuMemory=700_000_000),
            SimpleNamespace(pid=2, usedGpuMemory=None),
        ],
    } | answers
    library = ModuleType("pynvml")
    vars(library)["NVMLError"] = NVMLError

    def answering(answer: object) -> object:
        def call(*arguments: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer[arguments[-1]] if isinstance(answer, dict) else answer

        return call

    vars(library).update({name: answering(answer) for name, answer in given.items()})
    return library


def test_a_reading_is_in_our_units() -> None:
    """Millijoules and bytes become joules and megabytes; a power cap alone is no slowdown."""
    assert NvmlGpu(stand_in(), "handle").read() == GpuState(("hardware thermal slowdown",), 9876.543, 2, {1: 700.0})


def test_what_a_gpu_does_not_tell_is_absent() -> None:
    silent = stand_in(
        nvmlDeviceGetTotalEnergyConsumption=NVMLError("not supported"),
        nvmlDeviceGetCurrentClocksThrottleReasons=NVMLError("not supported"),
    )
    assert NvmlGpu(silent, "handle").read() == GpuState((), None, 2, {1: 700.0})


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetHandleByIndex", None])
def test_a_library_without_driver_or_gpu_gives_none(fails: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {fails: NVMLError("no driver")} if fails else {}
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(**answers))
    gpu = open_gpu()
    assert (gpu is None) == (fails is not None)
    assert gpu is None or gpu.read().processes == 2


UUIDS = {0: "GPU-aa11", 1: "GPU-ab22", 2: "GPU-cc33"}


def several(monkeypatch: pytest.MonkeyPatch, names: tuple[str, str, str], **environment: str) -> None:
    """Three GPUs, whose handles are their places on the bus, under an environment."""
    answers: dict[str, object] = {"nvmlDeviceGetCount": 3, "nvmlDeviceGetHandleByIndex": {0: 0, 1: 1, 2: 2}}
    answers |= {"nvmlDeviceGetUUID": UUIDS, "nvmlDeviceGetName": dict(enumerate(names))}
    answers |= {"nvmlDeviceGetHandleByUUID": {"MIG-7": 7}}
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(**answers))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


EQUAL, MIXED = ("H200", "H200", "H200"), ("T4", "H200", "T4")


@pytest.mark.parametrize(
    ("visible", "index", "place"),
    [
        (None, 0, 0),
        (None, 2, 2),
        (None, 3, None),
        ("2,0", 0, 2),
        ("2, 0", 1, 0),
        ("2,0", 2, None),
        ("GPU-ab22", 0, 1),
        ("GPU-c", 0, 2),  # the beginning is enough
        ("GPU-a", 0, None),  # of two
        ("MIG-7", 0, 7),
        ("", 0, None),
        ("-1", 0, None),
        ("1,9,0", 1, None),  # what comes behind an entry that names none is not seen
    ],
)
def test_the_gpu_is_the_one_that_cuda_calls_so(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int, place: int | None
) -> None:
    """CUDA C++ Programming Guide, on CUDA_VISIBLE_DEVICES."""
    several(monkeypatch, EQUAL, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    gpu = open_gpu(index)
    assert (gpu and vars(gpu)["_handle"]) == place


def test_gpus_of_several_kinds_have_no_order_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would put the fastest first: a reading of another one would be taken for the one that computes."""
    for visible in ({}, {"CUDA_VISIBLE_DEVICES": "1"}):
        several(monkeypatch, MIXED, **visible)
        with pytest.raises(InfrastructureError, match="T4, H200, T4") as caught:
            open_gpu()
        assert "CUDA_VISIBLE_DEVICES" in caught.value.fix
    several(monkeypatch, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert vars(open_gpu(1))["_handle"] == 1
    several(monkeypatch, MIXED, CUDA_VISIBLE_DEVICES="GPU-ab22")
    assert vars(open_gpu())["_handle"] == 1


def test_the_record_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    assert find_gpu() == records.Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95.05", 150_000_000_000)
    assert find_gpu(1) is None


def test_no_library_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu() is None

"""The GPU's own account, with a stand-in for the library: no machine of the suite needs a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tasks.measure.nvml import Gpu, GpuState, open_gpu


class NVMLError(Exception):
    """As the library's."""


def stand_in(**answers: object) -> ModuleType:
    """A library with one GPU that answers every question, in the library's units; an answer that is an error is raised."""
    given: dict[str, object] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetClockInfo": {1: 1980, 2: 3201},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x04 | 0x40,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1_500_000_000),
        "nvmlDeviceGetPowerUsage": 312_500,
        "nvmlDeviceGetTotalEnergyConsumption": 9_876_543,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)],
    } | answers
    library = ModuleType("pynvml")
    vars(library)["NVMLError"] = NVMLError

    def answering(answer: object) -> object:
        def call(*arguments: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer[arguments[1]] if isinstance(answer, dict) else answer

        return call

    vars(library).update({name: answering(answer) for name, answer in given.items()})
    return library


def test_a_reading_is_in_our_units() -> None:
    """Milliwatts, millijoules and bytes become watts, joules and megabytes; a power cap alone is no slowdown."""
    assert Gpu(stand_in(), "handle").read() == GpuState(
        1980, 3201, ("hardware thermal slowdown",), 97, 1500.0, 312.5, 9876.543, 2
    )


def test_what_a_gpu_does_not_tell_is_absent() -> None:
    silent = stand_in(
        nvmlDeviceGetTotalEnergyConsumption=NVMLError("not supported"),
        nvmlDeviceGetCurrentClocksThrottleReasons=NVMLError("not supported"),
        nvmlDeviceGetMemoryInfo=NVMLError("not supported"),
    )
    state = Gpu(silent, "handle").read()
    assert (state.energy_j, state.slowdowns, state.memory_used_mb, state.power_w) == (None, (), None, 312.5)


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetHandleByIndex", None])
def test_a_library_without_driver_or_gpu_gives_none(fails: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {fails: NVMLError("no driver")} if fails else {}
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(**answers))
    gpu = open_gpu()
    assert (gpu is None) == (fails is not None)
    assert gpu is None or gpu.read().sm_clock_mhz == 1980


def test_no_library_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu() is None

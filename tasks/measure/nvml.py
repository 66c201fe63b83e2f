"""What an NVIDIA GPU does, as its management library tells: clocks, throttling, load, memory, power, energy.

The library is optional (`nvidia-ml-py`, module `pynvml`). Without it, or without a GPU, there is nothing to read: None.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# nvml.h, "Clocks event reasons": the GPU runs slower than it was asked to.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# ONNX Runtime's providers that compute on such a GPU.
PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
# nvml.h, nvmlClockType_t.
_SM, _MEMORY = 1, 2


@dataclass(frozen=True)
class GpuState:
    """One reading; what the GPU does not tell is None.

    `slowdowns` are the reasons of the moment for which it is throttled; `processes` is how many compute on it, ours among
    them; `energy_j` counts since the driver was loaded.
    """

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    slowdowns: tuple[str, ...]
    utilisation_percent: int | None
    memory_used_mb: float | None
    power_w: float | None
    energy_j: float | None
    processes: int | None


class Gpu:
    """One GPU through the management library."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def read(self) -> GpuState:
        """The state of this moment."""
        nvml, handle = self._library, self._handle
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        energy_mj = self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        used = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        return GpuState(
            sm_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM)),
            memory_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY)),
            slowdowns=tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
            utilisation_percent=self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            memory_used_mb=None if used is None else used / 1e6,
            power_w=None if power_mw is None else power_mw / 1e3,
            energy_j=None if energy_mj is None else energy_mj / 1e3,
            processes=self._ask(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._library.NVMLError:  # older GPUs and slices of one do not answer every question
            return None


def open_gpu(index: int = 0) -> Gpu | None:
    """The GPU of this index; None without the library, a driver, or that GPU."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        return Gpu(library, library.nvmlDeviceGetHandleByIndex(index))
    except library.NVMLError:
        return None

"""What a check runs on: processor, GPU with its state of the moment, and the versions of all that computes."""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.engines.inductor.session import why_no_gpu
from tasks.measure.inventory import processor_name, take_inventory, usable_cores
from tasks.measure.latency.nvml import open_gpu
from validators.errors import InfrastructureError

DISTRIBUTIONS = (
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt-cu13",
    "tensorrt-rtx",
    "cuda-bindings",
    "nvidia-ml-py",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime",
    "torch",
    "triton",
    "numpy",
)


def describe_machine(*, rehearsal: bool) -> dict[str, Any]:
    """The inventory as the JSON has it; `device` is what figures of one file must share.

    Raises:
        InfrastructureError: there is no GPU, and this is no rehearsal; or no ONNX Runtime, or two.
    """
    if not rehearsal:
        refuse_without_gpu()
    inventory = take_inventory("ort-cpu" if rehearsal else "ort-cuda")
    gpu = inventory.gpu
    device = _device(gpu.name, gpu.compute_capability) if gpu else inventory.cpu
    return asdict(inventory) | {"device": device, "versions": versions()}


def describe_by_torch(*, rehearsal: bool) -> dict[str, Any]:
    """The machine as `describe_machine` has it, by PyTorch and the driver's files alone.

    Raises:
        InfrastructureError: PyTorch computes on no GPU, and this is no rehearsal.
    """
    import torch

    shared = {"cpu": processor_name(), "cores": usable_cores(), "versions": versions()}
    if rehearsal:
        return shared | {"gpu": None, "device": shared["cpu"]}
    if missing := why_no_gpu():
        raise InfrastructureError(found=missing.found, expected=missing.expected, fix=missing.fix)
    about = torch.cuda.get_device_properties(0)
    gpu = {"name": about.name, "compute_capability": f"{about.major}.{about.minor}"}
    return shared | {"gpu": gpu, "device": _device(**gpu)}


def driver_version() -> str | None:
    """The version of the GPU's driver, from its management library or the kernel's files; None if neither is there."""
    if gpu := open_gpu():
        return gpu.describe().driver
    file = Path("/proc/driver/nvidia/version")
    told = file.read_text(encoding="utf-8") if file.exists() else ""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", told)
    return found.group(1) if found else None


def _device(name: str, compute_capability: str) -> str:
    # Without the driver, which a machine may hide, and which differs between machines that are lent: each part has its own.
    return f"{name} cc{compute_capability}"


def refuse_without_gpu() -> None:
    """Refuse a machine where no figure of a GPU could come from.

    Raises:
        InfrastructureError: the management library is missing, or tells of no GPU.
    """
    if open_gpu() is not None:
        return
    told = "nvidia-ml-py" in versions()
    raise InfrastructureError(
        found="no NVIDIA GPU" if told else "no distribution nvidia-ml-py, through which a GPU is found",
        expected="a machine with an NVIDIA GPU and its driver, and nvidia-ml-py",
        fix="run it there; `--provider cpu` goes through the same steps without one, and measures nothing of a GPU"
        if told
        else "run infra/gpu_full.sh runtimes, which installs what is missing",
    )


def gpu_state() -> dict[str, Any] | None:
    """Clocks, load, memory, power and processes on the GPU at this moment; None without one."""
    gpu = open_gpu()
    return asdict(gpu.read()) if gpu else None


def versions() -> dict[str, str]:
    """The versions of the distributions that are installed, of those that matter."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found

"""What a check runs on: processor, GPU with its state of the moment, and the versions of all that computes."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata
from typing import Any

from tasks.measure.inventory import take_inventory
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
    device = f"{gpu.name} cc{gpu.compute_capability} driver {gpu.driver}" if gpu else inventory.cpu
    return asdict(inventory) | {"device": device, "versions": versions()}


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
        else "run infra/gpu_check.sh, which installs what is missing",
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

"""What `quantgate candidates` and `quantgate doctor` print."""

from __future__ import annotations

from importlib import metadata

from tasks.measure.inventory import find_gpu, take_inventory, usable_providers
from tasks.ptq.make import refuse_other_targets
from tasks.ptq.sessions import session_settings
from tasks.runtimes import openvino
from tasks.runtimes.ort_gpu import probe, why_missing
from validators.errors import CandidateRefused
from validators.job import Job
from validators.providers import CUDA_PROVIDER, ORT_TENSORRT_PROVIDER
from validators.recipe import GPU_TARGETS, TARGETS, Target, decode
from validators.recipe_words import describe
from validators.records import Inventory

Rows = list[tuple[str, ...]]
NO_GPU = openvino.Missing(
    "no NVIDIA GPU that its driver tells of",
    "one, with its driver",
    "run on such a machine, with `nvidia-ml-py` (in the extra `gpu`)",
)
INSTALL_TENSORRT = "on a machine with an NVIDIA GPU, install the extra `tensorrt`"


def candidate_rows(job: Job) -> Rows:
    """One row a candidate of the job: its name, what it is, and whether this version can make it."""
    rows: Rows = [("Candidate", "What it is", "Here")]
    inventories: dict[Target, Inventory] = {}
    for name in job.candidate_names:
        candidate = decode(name)
        target = candidate.target
        try:
            refuse_other_targets(candidate)
            if target == "ort-openvino":
                openvino.find_device()
            here = "numerics only: never promoted" if candidate.is_simulated else "yes"
            if target in GPU_TARGETS:
                inventories[target] = inventories.get(target) or take_inventory(target)
                if session_settings(candidate, 1).provider not in usable_providers(inventories[target]):
                    here = "made and checked, not measured: `quantgate doctor` says what is missing"
        except CandidateRefused as error:
            here = f"refused: {error.found}; {error.fix}"
        rows.append((name, describe(candidate), here))
    return rows


def target_rows() -> tuple[list[str], Rows]:
    """Facts about this machine, and one row a target: whether it can run here, and why not.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two that overwrite each other.
    """
    inventory = take_inventory("ort-cpu")
    facts = [
        f"processor  {inventory.cpu}, {inventory.cores} cores, {' '.join(inventory.isa) or 'no integer extensions'}",
        f"memory     {inventory.memory_bytes / 1e9:.1f} GB",
        f"platform   {inventory.platform}, Python {inventory.python}",
        "runtimes   " + ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items()),
        "packages   "
        + ", ".join(
            f"{name} {metadata.version(name)}" for name in ("prefect", "mlflow", "great-expectations", "torch")
        ),
        "",
    ]
    rows: Rows = [("Target", "Here", "Why, and what to do")]
    for target in TARGETS:
        rows.append((target, *_target_state(target, inventory.providers)))
    return facts, rows


def _target_state(target: str, providers: tuple[str, ...]) -> tuple[str, str]:
    if target == "ort-cpu":
        return "yes", "ONNX Runtime's CPU provider"
    if target == "ort-openvino":
        missing = openvino.why_missing()
        if missing:
            return "no", _told(missing)
        return "yes", f"the OpenVINO provider, {openvino.DISTRIBUTION} {openvino.installed_version()}"
    if target == "tensorrt":
        return _tensorrt_state()
    provider = ORT_TENSORRT_PROVIDER if target == "ort-tensorrt" else CUDA_PROVIDER
    gpu = find_gpu()
    missing = why_missing(provider, providers) or (NO_GPU if gpu is None else probe(provider))
    if missing or gpu is None:
        return "no", _told(missing or NO_GPU)
    return "yes", f"{provider} on {gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}"


def _tensorrt_state() -> tuple[str, str]:
    installed = take_inventory("tensorrt").runtimes
    gpu = find_gpu()
    if "tensorrt" in installed and gpu is not None:
        return "yes", f"TensorRT {installed['tensorrt']} on {gpu.name}, compute capability {gpu.compute_capability}"
    if "tensorrt_rtx" in installed:
        there = f"{gpu.name} is here, and no TensorRT" if gpu else NO_GPU.found
        built = f"engines are built ahead of time by TensorRT-RTX {installed['tensorrt_rtx']} and looked at, never run"
        return "no", f"{there}; {built}; {INSTALL_TENSORRT}"
    found = "no TensorRT is installed" if gpu else f"{NO_GPU.found}, and no TensorRT is installed"
    ahead = "; the extra `tensorrt-aot` builds engines without a GPU, to be looked at"
    return "no", f"{found}; expected both; {INSTALL_TENSORRT}{'' if gpu else ahead}"


def _told(missing: openvino.Missing) -> str:
    return f"{missing.found}; expected {missing.expected}; {missing.fix}"

"""What candidates are, and what targets this machine can run, in words."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata, util

from packaging.requirements import Requirement

from tasks.measure.inventory import find_gpu, take_inventory, usable_providers
from tasks.ptq.build_variant import refuse_other_targets
from tasks.ptq.sessions import session_settings
from tasks.runtimes import openvino
from tasks.runtimes.ort_gpu import probe, why_missing
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.job.recipe_words import describe
from validators.providers import CUDA_PROVIDER, ORT_TENSORRT_PROVIDER
from validators.records.run import Gpu, Inventory
from validators.targets import is_on_gpu, target_names

Rows = list[tuple[str, ...]]
NO_GPU = openvino.Missing(
    "no NVIDIA GPU that its driver tells of",
    "one, with its driver",
    "run on such a machine, with `nvidia-ml-py` (in the extra `gpu`)",
)


def candidate_rows(job: Job) -> Rows:
    """One row a candidate of the job: its name, what it is, and whether this version can make it."""
    rows: Rows = [("Candidate", "What it is", "Here")]
    inventories: dict[str, Inventory] = {}
    for name in job.candidate_names:
        candidate = decode(name)
        target = candidate.target
        try:
            refuse_other_targets(candidate)
            if target == "ort-openvino":
                openvino.find_device()
            here = "numerics only: never promoted" if candidate.is_simulated else "yes"
            if is_on_gpu(target):
                inventories[target] = inventories.get(target) or take_inventory(target)
                if session_settings(candidate, 1).provider not in usable_providers(inventories[target]):
                    here = "made and checked, not measured: `quantgate doctor` says what is missing"
        except CandidateRefused as error:
            here = f"refused: {error.found}; {error.fix}"
        rows.append((name, describe(candidate), here))
    return rows


def target_rows() -> Rows:
    """One row a target: whether it can run here, why (not), and what would mend it, a command where one would.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two that overwrite each other.
    """
    inventory = take_inventory("ort-cpu")
    rows: Rows = [("Target", "Here", "Why", "To mend it")]
    for target in target_names():
        rows.append((target, *_target_state(target, inventory.providers)))
    return rows


def install(extra: str, *, instead_of: str | None = None) -> str:
    """The command that installs what an extra of ours holds into this environment, in place of a package if need be.

    By its packages: quantgate itself stays as it was installed.
    """
    wanted = [Requirement(text) for text in metadata.requires("quantgate") or ()]
    packages = [f"{one.name}{one.specifier}" for one in wanted if one.marker and one.marker.evaluate({"extra": extra})]
    if not packages:
        return f"nothing here: the extra `{extra}` has no packages for this platform"
    # Environments that uv makes have no pip.
    pip = ["-m", "pip"] if util.find_spec("pip") else []
    tool = [sys.executable, *pip] if pip else ["uv", "pip"]
    here = [] if pip else ["--python", sys.executable]
    remove = [*tool, "uninstall", *(["-y"] if pip else []), *here, instead_of] if instead_of else []
    add = shlex.join([*tool, "install", *here, *packages])
    return f"{shlex.join(remove)} && {add}" if remove else add


def _target_state(target: str, providers: tuple[str, ...]) -> tuple[str, str, str]:
    if target == "ort-cpu":
        return "yes", "ONNX Runtime's CPU provider", ""
    if target == "ort-openvino":
        missing = openvino.why_missing()
        if missing:
            return "no", _told(missing), _mend_openvino(missing)
        return "yes", f"the OpenVINO provider, {openvino.DISTRIBUTION} {openvino.installed_version()}", ""
    if target == "tensorrt":
        return _tensorrt_state()
    provider = ORT_TENSORRT_PROVIDER if target == "ort-tensorrt" else CUDA_PROVIDER
    gpu = find_gpu()
    missing = why_missing(provider, providers) or (NO_GPU if gpu is None else probe(provider))
    if missing or gpu is None:
        return "no", _told(missing or NO_GPU), _mend_gpu(target, gpu)
    return "yes", f"{provider} on {gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}", ""


def _tensorrt_state() -> tuple[str, str, str]:
    installed = take_inventory("tensorrt").runtimes
    gpu = find_gpu()
    if "tensorrt" in installed and gpu is not None:
        return "yes", f"TensorRT {installed['tensorrt']} on {gpu.name}, compute capability {gpu.compute_capability}", ""
    mend = _mend_gpu("tensorrt", gpu)
    if "tensorrt_rtx" in installed:
        there = f"{gpu.name} is here, and no TensorRT" if gpu else NO_GPU.found
        built = f"engines are built ahead of time by TensorRT-RTX {installed['tensorrt_rtx']} and looked at, never run"
        return "no", f"{there}; {built}", mend
    found = "no TensorRT is installed" if gpu else f"{NO_GPU.found}, and no TensorRT is installed"
    ahead = "" if gpu else f"; to build engines without a GPU, and look at them: {install('tensorrt-aot')}"
    return "no", f"{found}; expected both", mend + ahead


def _mend_openvino(missing: openvino.Missing) -> str:
    return missing.fix if openvino.installed_version() else install("openvino")


def _mend_gpu(target: str, gpu: Gpu | None) -> str:
    """What gives a target on a GPU what it lacks; without the GPU it is for another machine."""
    commands = {
        "tensorrt": [install("tensorrt")],
        "ort-cuda": [install("gpu", instead_of="onnxruntime")],
        "ort-tensorrt": [install("gpu", instead_of="onnxruntime"), install("ort-tensorrt")],
    }[target]
    where = "" if gpu else "on a machine with an NVIDIA GPU and its driver: "
    return where + " && ".join(commands)


def _told(missing: openvino.Missing) -> str:
    return f"{missing.found}; expected {missing.expected}"

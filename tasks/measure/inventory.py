"""Inventory of the target, read from the machine."""

from __future__ import annotations

import math
import os
import platform
from importlib import metadata
from pathlib import Path

from tasks.measure.latency.cgroup import quota_cores
from tasks.measure.latency.nvml import open_gpu
from tasks.runtimes.ort import installed_runtime
from validators.processors import ISA_FLAGS, Processor
from validators.records.run import Gpu, Inventory
from validators.targets import BUILT_IN, engines_of, facts_of, facts_of_provider, installed_targets, is_on_gpu


def usable_cores() -> int:
    """Return the number of cores that this process may use: the affinity mask, or the whole cores of a smaller CPU quota.

    It is at least 1, since a quota of half a core still runs one thread.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = quota_cores()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def competing_load() -> float:
    """Return the machine's load average (1 minute), minus the processors that a CPU quota leaves to others."""
    return max(0.0, os.getloadavg()[0] - (len(os.sched_getaffinity(0)) - usable_cores()))


def this_processor() -> Processor:
    """Return the processor of this machine."""
    cpu = _cpu_info()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return Processor(tuple(flag for flag in ISA_FLAGS if flag in flags))


def processor_name() -> str:
    """Return the name of the processor."""
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def take_inventory(target: str, device: int = 0) -> Inventory:
    """Return the inventory of this machine for a target. For a GPU target, `device` is the CUDA index of the GPU.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two that overwrite each other; or the GPU is ambiguous.
    """
    import onnxruntime as ort

    name, version = installed_runtime()
    on_gpu = is_on_gpu(target)
    return Inventory(
        target=target,
        cpu=processor_name(),
        isa=this_processor().isa,
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        runtimes={
            name: version,
            "onnx": metadata.version("onnx"),
            **_target_libraries(target),
        },
        providers=tuple(ort.get_available_providers()),
        load_average=competing_load(),
        gpu=find_gpu(device) if on_gpu else None,
        cpu_quota=quota_cores(),
    )


def find_gpu(device: int = 0) -> Gpu | None:
    """Return the GPU with this CUDA index in this process; None without a GPU, its driver, or `nvidia-ml-py`.

    Raises:
        InfrastructureError: there are GPUs of several kinds, and the environment does not fix their order.
    """
    found = open_gpu(device)
    return found.describe() if found else None


def usable_providers(inventory: Inventory) -> tuple[str, ...]:
    """Return the providers that can run on this machine. The runtime lists GPU providers even without a GPU."""
    # Of several libraries, the first one runs the engine's models.
    opens_itself = [facts for facts in BUILT_IN.values() if facts.on_gpu and facts.session]
    by_library = {next(iter(facts.libraries)): facts.provider for facts in opens_itself}
    engines = tuple(name for library, name in by_library.items() if inventory.gpu and library in inventory.runtimes)
    return tuple(name for name in inventory.providers if inventory.gpu or not facts_of_provider(name).on_gpu) + engines


def _target_libraries(target: str) -> dict[str, str]:
    """Return the versions of its engines' installed libraries, and of the package that brings the target, by name."""
    found = {}
    libraries = [entry for engine in engines_of(target) for entry in facts_of(engine).libraries.items()]
    for name, distributions in libraries:
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    entry = installed_targets().get(target)
    return found | ({entry.dist.name: entry.dist.version} if entry and entry.dist else {})


def _cpu_info() -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}

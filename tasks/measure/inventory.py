"""What the target consists of, read from the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from tasks.runtimes import openvino
from tasks.runtimes.ort import installed_runtime
from validators.recipe import Target
from validators.records import Inventory

# The instruction sets that decide which integer kernels run, in the spelling of /proc/cpuinfo.
ISA_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "sve",
)


def usable_cores() -> int:
    """The cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def adds_pairs_in_16_bits(inventory: Inventory) -> bool:
    """Whether INT8 products are added by vpmaddubsw, which saturates: on x86 without VNNI or AMX.

    ONNX Runtime documentation, "Quantize ONNX models", on U8S8 with AVX2 and AVX512.
    """
    isa = set(inventory.isa)
    return "avx2" in isa and not isa & {"avx512_vnni", "avx_vnni", "amx_int8"}


def take_inventory(target: Target) -> Inventory:
    """The inventory of this machine for a target.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two that overwrite each other.
    """
    import onnxruntime as ort

    name, version = installed_runtime()
    # Where no session can be opened with it the plugin changes nothing, installed or not.
    plugin = {} if openvino.why_missing() else {openvino.DISTRIBUTION: openvino.installed_version() or ""}
    cpu = _cpu_info()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return Inventory(
        target=target,
        cpu=cpu.get("model name") or platform.processor() or platform.machine(),
        isa=tuple(flag for flag in ISA_FLAGS if flag in flags),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        runtimes={name: version, "onnx": metadata.version("onnx"), **plugin},
        providers=tuple(ort.get_available_providers()),
        load_average=os.getloadavg()[0],
    )


def _cpu_info() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}

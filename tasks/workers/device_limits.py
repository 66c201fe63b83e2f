"""Concurrency limits on the Prefect server that a worker's steps hold.

One step at a time uses a GPU, and one at a time measures latency on a host.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from validators.errors import InfrastructureError
from validators.records.run import Inventory
from validators.targets import is_on_gpu

# A live holder renews its lease; the device is freed this long after its holder died.
LEASE_SECONDS = 60
# random(4).
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def limit_of(inventory: Inventory) -> str:
    """Return the name of the limit for the device that latency is measured on: a GPU's UUID, or the CPU's running kernel.

    Raises:
        InfrastructureError: the target needs a GPU, and the inventory has none.
    """
    if not is_on_gpu(inventory.target):
        return f"cpu-{running_kernel()}"
    if inventory.gpu is None:
        raise InfrastructureError(
            found=f"no GPU for the target {inventory.target}",
            expected="an NVIDIA GPU that NVML lists",
            fix="run `quantgate doctor` to see what is missing",
        )
    return f"gpu-{inventory.gpu.uuid.removeprefix('GPU-')}"


def running_kernel() -> str:
    """Return the boot id, which all containers of one running kernel share, or the host name where it cannot be read.

    Rejected: the host name, which differs per container; /etc/machine-id, which images lack or share with all containers made
    from them, on any host. A reboot changes the boot id: workers create the new limit when they start.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def device_phase(inventory: Inventory) -> AbstractContextManager[None]:
    """Hold the GPU during a block: no other worker's step uses it meanwhile. On a CPU, hold nothing.

    Raises:
        ConcurrencySlotAcquisitionError: the limit does not exist: no worker made it.
    """
    return _held(inventory) if is_on_gpu(inventory.target) else nullcontext()


def timing_phase(inventory: Inventory) -> AbstractContextManager[None]:
    """Hold the CPU's limit during a block: no other step on this host is timed meanwhile. A GPU is held already.

    Raises:
        ConcurrencySlotAcquisitionError: the limit does not exist: no worker made it.
    """
    return nullcontext() if is_on_gpu(inventory.target) else _held(inventory)


def _held(inventory: Inventory) -> AbstractContextManager[None]:
    from prefect.concurrency.sync import concurrency

    # Strict: without it a missing limit would not limit, and two steps would disturb each other's latency.
    return concurrency(limit_of(inventory), occupy=1, lease_duration=LEASE_SECONDS, strict=True)

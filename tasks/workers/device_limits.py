"""One run a GPU, and one measurement of latency a host: limits of the Prefect server that a worker's steps hold."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from validators.errors import InfrastructureError
from validators.records.run import Inventory
from validators.targets import is_on_gpu

# A holder that died frees the device after so long; one that lives renews its lease.
LEASE_SECONDS = 60
# random(4).
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def limit_of(inventory: Inventory) -> str:
    """Return the name of the limit of the device that latency is measured on: a GPU by its UUID, processors by their kernel.

    Raises:
        InfrastructureError: the target needs a GPU, and the inventory has none.
    """
    if not is_on_gpu(inventory.target):
        return f"cpu-{running_kernel()}"
    if inventory.gpu is None:
        raise InfrastructureError(
            found=f"no GPU for the target {inventory.target}",
            expected="an NVIDIA GPU that NVML lists",
            fix="`quantgate doctor` says what is missing",
        )
    return f"gpu-{inventory.gpu.uuid.removeprefix('GPU-')}"


def running_kernel() -> str:
    """Return the boot id, which all containers of one running kernel share, or the host name where it cannot be read.

    Rejected: the host name, which each container has its own of; /etc/machine-id, which images lack, or share with every other
    container made from them, on whatever host. A reboot changes the boot id: workers make the new limit when they start.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


@contextmanager
def device_phase(inventory: Inventory) -> Iterator[None]:
    """Everything that a step does on a GPU: no other worker's step uses it meanwhile. On a processor nothing is held.

    Raises:
        ConcurrencySlotAcquisitionError: the limit does not exist: no worker made it.
    """
    with _held(inventory) if is_on_gpu(inventory.target) else nullcontext():
        yield


@contextmanager
def timing_phase(inventory: Inventory) -> Iterator[None]:
    """What is timed on a processor: no other worker's step on this host is timed meanwhile. A GPU is held for longer already.

    Raises:
        ConcurrencySlotAcquisitionError: the limit does not exist: no worker made it.
    """
    with nullcontext() if is_on_gpu(inventory.target) else _held(inventory):
        yield


def _held(inventory: Inventory) -> AbstractContextManager[None]:
    from prefect.concurrency.sync import concurrency

    # Strict: a limit that is missing would be none, and two steps would time each other.
    return concurrency(limit_of(inventory), occupy=1, lease_duration=LEASE_SECONDS, strict=True)

"""Step 2: what the target consists of."""

from __future__ import annotations

from tasks.measure.inventory import take_inventory
from tasks.ptq.sessions import session_settings
from tasks.run.context import Run, log
from tasks.run.step import step
from tasks.runtimes import openvino
from tasks.runtimes.ort_gpu import device_of
from validators.job.candidate_name import Candidate
from validators.records.run import Inventory
from validators.targets import is_on_gpu


@step("take inventory")
def take_target_inventory(run: Run) -> Inventory:
    """The inventory of this machine for the job's target."""
    with run.clock.work("take inventory"):
        device = device_of(session_settings(Candidate("fp16", run.job.target), 1, (), run.job.provider_options))
        inventory = take_inventory(run.job.target, device)
    log.info("inventory: %s", inventory.device_key)
    missing = openvino.why_missing() if run.job.target == "ort-openvino" else None
    if missing:
        log.warning("target ort-openvino: %s; expected %s; %s", missing.found, missing.expected, missing.fix)
    if is_on_gpu(run.job.target) and inventory.gpu is None:
        ends = (
            "engines are built ahead of time and looked at" if run.job.target == "tensorrt" else "candidates are made"
        )
        log.warning("target %s: no NVIDIA GPU that its driver tells of; %s, and none is measured", run.job.target, ends)
    if inventory.load_average > inventory.cores:
        log.warning(
            "the machine is busy (load %.1f on %d cores): latency will be noisy",
            inventory.load_average,
            inventory.cores,
        )
    return inventory

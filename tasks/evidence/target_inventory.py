"""Step 2: the inventory of the target's hardware and software."""

from __future__ import annotations

from tasks.measure.inventory import take_inventory
from tasks.run.context import Run, log
from tasks.run.step import step
from tasks.runtimes.ort_gpu import device_of
from tasks.targets.catalog import find_target
from tasks.targets.variants import session_settings
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate
from validators.records.run import Inventory


@step("take inventory")
def take_target_inventory(run: Run) -> Inventory:
    """Return the inventory of this machine for the job's target."""
    with run.clock.work("take inventory"):
        device = device_of(session_settings(Candidate("fp16", run.job.target), 1, (), run.job.provider_options))
        inventory = take_inventory(run.job.target, device)
    log.info("inventory: %s", inventory.device_key)
    target = find_target(run.job.target)
    for engine in target.facts.engines or (target.name,):
        try:
            find_target(engine).check_device()
        except CandidateRefused as missing:
            log.warning("target %s: %s; expected %s; %s", engine, missing.found, missing.expected, missing.fix)
    if target.facts.on_gpu and inventory.gpu is None:
        ends = "engines are built ahead of time and inspected" if target.builds_engines else "candidates are made"
        log.warning("target %s: the driver reports no NVIDIA GPU; %s, and none is measured", run.job.target, ends)
    if inventory.load_average > inventory.cores:
        log.warning(
            "the machine is busy (load %.1f on %d cores): latency will be noisy",
            inventory.load_average,
            inventory.cores,
        )
    return inventory

"""Step 2: the inventory of the target's hardware and software."""

from __future__ import annotations

from dataclasses import replace

from tasks.engines.catalog import absent_engines, find_target
from tasks.engines.variants import session_settings
from tasks.measure.inventory import take_inventory
from tasks.run.context import Run, log
from tasks.run.step import step
from tasks.runtimes.ort_gpu import device_of
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate
from validators.records.run import Inventory
from validators.targets import engines_of, is_on_gpu


@step("take inventory")
def take_target_inventory(run: Run) -> Inventory:
    """Return the inventory of this machine for the job's target."""
    with run.clock.work("take inventory"):
        device = device_of(session_settings(Candidate("fp16", run.job.target), 1, (), run.job.provider_options))
        inventory = take_inventory(run.job.target, device)
        inventory = replace(inventory, absent=absent_engines(inventory))
    log.info("inventory: %s", inventory.device_key)
    engines = [find_target(engine) for engine in engines_of(run.job.target)]
    absent = {one.engine for one in inventory.absent}
    for engine in (one for one in engines if one.name not in absent):
        try:
            engine.check_device()
        except CandidateRefused as missing:
            log.warning("target %s: %s; expected %s; %s", engine.name, missing.found, missing.expected, missing.fix)
    if is_on_gpu(run.job.target) and inventory.gpu is None:
        builds = any(engine.facts.builds_engines for engine in engines)
        ends = "engines are built ahead of time and inspected" if builds else "candidates are made"
        log.warning("target %s: the driver reports no NVIDIA GPU; %s, and none is measured", run.job.target, ends)
    if inventory.load_average > inventory.cores:
        log.warning(
            "the machine is busy (load %.1f on %d cores): latency will be noisy",
            inventory.load_average,
            inventory.cores,
        )
    return inventory

"""Tables of candidates, and of the targets that this machine can run."""

from __future__ import annotations

from tasks.engines.catalog import absent_engines, all_targets, find_target
from tasks.engines.variants import refuse_other_targets
from tasks.measure.inventory import take_inventory, usable_providers
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.job.job import Job
from validators.job.recipe_words import describe
from validators.records.run import Inventory
from validators.targets import DEFAULT_TARGET

Rows = list[tuple[str, ...]]


def candidate_rows(job: Job) -> Rows:
    """Return one row per candidate of the job: its name, what it is, and whether this version can make it."""
    inventories: dict[str, Inventory] = {}

    def inventory_of(target: str) -> Inventory:
        inventories[target] = inventories.get(target) or take_inventory(target)
        return inventories[target]

    def here(candidate: Candidate) -> str:
        if candidate.name not in tried:
            return str(absent[candidate.target])
        target = find_target(candidate.target)
        try:
            refuse_other_targets(candidate, job.processor_of(inventory_of(candidate.target)))
            target.check_device()
        except CandidateRefused as error:
            return f"refused: {error.found}; {error.fix}"
        if target.facts.on_gpu and target.facts.provider not in usable_providers(inventory_of(target.name)):
            return "made and checked, not measured: `quantgate doctor` shows what is missing"
        return "numerics only: never promoted" if candidate.is_simulated else "yes"

    absent = {one.engine: one for one in absent_engines(inventory_of(job.target))}
    tried = job.candidates_without(absent.values())
    candidates = map(decode, job.candidate_names)
    return [("Candidate", "What it is", "Here"), *((one.name, describe(one), here(one)) for one in candidates)]


def target_rows() -> Rows:
    """Return one row per target: whether it can run here, why (not), and the fix, as a command if there is one.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two of them that overwrite each other.
    """
    inventory = take_inventory(DEFAULT_TARGET)
    rows: Rows = [("Target", "Here", "Why", "Fix")]
    for target in all_targets():
        found = target.availability(inventory.providers)
        rows.append((target.name, "yes" if found.is_here else "no", found.why, found.mend))
    return rows

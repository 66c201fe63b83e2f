"""Tables of candidates, and of the targets that this machine can run."""

from __future__ import annotations

from tasks.measure.inventory import take_inventory, usable_providers
from tasks.targets.catalog import all_targets, find_target
from tasks.targets.variants import refuse_other_targets
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.job.recipe_words import describe
from validators.records.run import Inventory

Rows = list[tuple[str, ...]]


def candidate_rows(job: Job) -> Rows:
    """Return one row per candidate of the job: its name, what it is, and whether this version can make it."""
    rows: Rows = [("Candidate", "What it is", "Here")]
    inventories: dict[str, Inventory] = {}
    for name in job.candidate_names:
        candidate = decode(name)
        target = find_target(candidate.target)
        try:
            refuse_other_targets(candidate)
            target.check_device()
            here = "numerics only: never promoted" if candidate.is_simulated else "yes"
            if target.facts.on_gpu:
                inventories[target.name] = inventories.get(target.name) or take_inventory(target.name)
                if target.runtime.name not in usable_providers(inventories[target.name]):
                    here = "made and checked, not measured: `quantgate doctor` shows what is missing"
        except CandidateRefused as error:
            here = f"refused: {error.found}; {error.fix}"
        rows.append((name, describe(candidate), here))
    return rows


def target_rows() -> Rows:
    """Return one row per target: whether it can run here, why (not), and the fix, as a command if there is one.

    Raises:
        InfrastructureError: no ONNX Runtime is installed, or two of them that overwrite each other.
    """
    inventory = take_inventory("ort-cpu")
    rows: Rows = [("Target", "Here", "Why", "Fix")]
    for target in all_targets():
        found = target.availability(inventory.providers)
        rows.append((target.name, "yes" if found.is_here else "no", found.why, found.mend))
    return rows

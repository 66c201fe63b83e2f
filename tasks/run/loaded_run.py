"""A run with its inputs, as all steps take it that follow the loading of the data."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.run.context import Run
from validators.records.run import Inventory, Source
from validators.samples.evidence import Evidence


# In a module of its own: cache keys leave out the code of `Run` (`CUTS`), and must cover that of the samples.
@dataclass(frozen=True, kw_only=True)
class LoadedRun(Run):
    """A run with its source, its samples and the inventory of its target."""

    source: Source
    evidence: Evidence
    inventory: Inventory


def with_inputs(run: Run, source: Source, evidence: Evidence, inventory: Inventory) -> LoadedRun:
    """Return the run with its inputs; the clock, store, locks, footprint and patience stay those of `run`."""
    return LoadedRun(**vars(run), source=source, evidence=evidence, inventory=inventory)

"""Products that the store keeps, and their cache keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from validators.source_code import OURS

Record = TypeVar("Record")

# Modules that makers import but that do not affect a product, each with its submodules. Every value of the job that a maker
# reads is among the inputs of its product.
CUTS = (
    # The storage of entries.
    "tasks.storage",
    # The connection to MLflow.
    "tasks.registry",
    # The check of a registered version, which every use repeats.
    "tasks.champion.readback",
    # The availability of a target, and how to install what is missing.
    "tasks.engines.availability",
    # The run around a maker: its budget, log, progress and retries.
    "tasks.run.clock",
    "tasks.run.context",
    "tasks.run.footprint",
    "tasks.run.log_redaction",
    "tasks.run.progress_events",
    "tasks.run.settings",
    "tasks.run.step",
    # Classes of errors, time limits, and the wording of texts.
    "validators.deadline",
    "validators.errors",
    "validators.plain_text",
    "validators.redact",
    # The settings of a job, their bounds and defaults.
    "validators.job.job",
    "validators.job.job_data",
    "validators.job.job_engines",
    "validators.job.job_gates",
    "validators.job.job_measurement",
    # The linter, which judges files and makes none.
    "tasks.engines.ort.lint",
    "tasks.engines.ort.rules",
    "tasks.engines.tensorrt.lint",
    "tasks.engines.tensorrt.rules",
    "validators.graph.lint",
)


@dataclass(frozen=True)
class Product(Generic[Record]):
    """An entry of the store: its kind, the inputs that determine its content, and its maker.

    `make` writes files into the given folder and returns the record that describes them. `inputs` are JSON-like values; another
    product among them stands for its key. The maker's code is an implicit input: its module with all its imports, except
    `CUTS`. A maker therefore lives in a module with few imports, beside its constants.
    """

    kind: str
    inputs: tuple[Any, ...]
    record_type: type[Record]
    make: Callable[[Path], Record]

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the cache key: two products of one kind share it only if they are interchangeable."""
        inputs = (list(one.key) if isinstance(one, Product) else one for one in self.inputs)
        return (*inputs, code_of(self.make))


def code_of(maker: Callable[..., Any]) -> str:
    """Return the digest of a maker's source code; an empty text for a maker outside our packages."""
    while isinstance(maker, functools.partial):
        maker = maker.func
    return code_of_module(maker.__module__)


@functools.cache
def code_of_module(module: str) -> str:
    """Return the digest of a module's source code; see `code_of`."""
    file = OURS.modules.get(module)
    return OURS.digest(file, CUTS) if file else ""

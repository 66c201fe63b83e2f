"""Record from which the documents of a version are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validators.gates.approval import Approval
from validators.job.job import Job
from validators.records.journal import RolledBack
from validators.records.run import DataFile, Inventory, Source
from validators.samples.datasets import TensorSpec


@dataclass(frozen=True)
class FormerChampion:
    """A version that was champion before: its recipe and speedup as its tags tell, and how it ended.

    `at` is the time of its promotion (ISO 8601, UTC), "" if a release without a journal promoted it.
    """

    version: str
    candidate: str
    speedup: str
    at: str
    rolled_back: RolledBack | None


@dataclass(frozen=True)
class Promoted:
    """An approved variant, with everything that it was made from and approved on.

    `uri` is the address that consumers load. `data` maps a role to its file: calibration, evaluation and, if given, traffic.
    `manifest` comes from `tasks/champion/manifest.py`. `inputs` and `outputs` are those of the artifact. `request` holds the
    input shapes, by name, of a request in the latency measurement. `run_page` is the URL of the run in MLflow, if it has one.
    `at` is the time of promotion (ISO 8601, UTC). `before` are the champions before it, latest first.
    """

    uri: str
    source: Source
    source_bytes: int
    data: Mapping[str, DataFile]
    inventory: Inventory
    job: Job
    approval: Approval
    manifest: Mapping[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    request: Mapping[str, tuple[int, ...]]
    run_id: str
    run_page: str | None
    at: str
    before: tuple[FormerChampion, ...] = ()

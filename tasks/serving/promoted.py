"""The record that the documents of a version are written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validators.gates.approval import Approval
from validators.job.job import Job
from validators.records.run import DataFile, Inventory, Source
from validators.samples.datasets import TensorSpec


@dataclass(frozen=True)
class Promoted:
    """An approved variant with all that it was made from and approved on.

    `uri` is what consumers load. `data` is by role: calibration, evaluation and, where there was any, traffic. `manifest` is
    that of `tasks/champion/manifest.py`; `inputs` and `outputs` are those of the artifact, and `request` the shapes by input
    name of a request as latency was measured with. `run_page` is the address of the run in MLflow, where it has pages; `at`
    is when it was promoted, in UTC, as ISO 8601.
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

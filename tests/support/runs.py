"""Runs of a job in a folder of a test, with a store and locks of their own."""

from __future__ import annotations

from pathlib import Path

from tasks.measure.latency.patience import RunPatience
from tasks.run.clock import Clock
from tasks.run.context import Run
from tasks.run.footprint import Footprint
from tasks.storage.locks import FolderLocks
from tasks.storage.store import Store
from validators.job.job import Job


def run_in(folder: Path, job: Job, *, tracking_uri: str = "", store: Store | None = None) -> Run:
    store = store or Store(folder / "store")
    patience = RunPatience(job.measurement.patience_seconds)
    return Run(job, folder, tracking_uri, store, Clock(), FolderLocks(folder), Footprint(job.budgets, store), patience)

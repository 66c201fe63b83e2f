"""Shared context of a run's steps."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.patience import RunPatience
from tasks.run.clock import Clock
from tasks.run.footprint import Footprint
from tasks.run.log_redaction import redact_logs
from tasks.run.progress_events import WAIT, stage
from tasks.run.settings import make_state_folder, state_folder, store_place, tracking_uri
from tasks.runtimes.libraries import copy_library, find_library
from tasks.storage.files import remove_leftovers
from tasks.storage.leases import open_locks
from tasks.storage.locks import Locks
from tasks.storage.product import Product
from tasks.storage.store import Store, open_store
from validators.job.job import Job
from validators.job.job_data import OperatorLibrary
from validators.records.libraries import Libraries, Library
from validators.records.run import SessionSettings

log = logging.getLogger("quantgate")
# Here, since every process that executes a step of a run imports this module.
redact_logs()

# Shares of `budgets.seconds` after which work on candidates, and then on the winner, is cut off. Confirmation times only one
# or a few candidates, and the report takes seconds.
CANDIDATES_SHARE, WINNER_SHARE = 0.8, 0.95


@dataclass(frozen=True)
class Run:
    """The job with the paths, store, clock, locks, footprint and patience of this run.

    Latency is measured with `timed_threads`, where the job does not say with how many; 0: those of the session.
    """

    job: Job
    state: Path
    tracking_uri: str
    store: Store
    clock: Clock
    locks: Locks
    footprint: Footprint
    patience: RunPatience
    libraries: Libraries = ()
    timed_threads: int = 0

    @property
    def reference_session(self) -> SessionSettings:
        """Settings in which the source is computed for comparison, with the threads of the first measured point."""
        threads = self.job.measurement.points[0].threads or usable_cores()
        return SessionSettings.reference(threads, libraries=self.libraries)

    def time_for_candidates(self) -> AbstractContextManager[None]:
        """Return a context in which model passes are refused once the candidates' share of the budget is spent."""
        return self.clock.within(CANDIDATES_SHARE * self.job.budgets.seconds)

    def time_for_winner(self) -> AbstractContextManager[None]:
        """Return a context in which model passes are refused once only the report's share of the budget is left."""
        return self.clock.within(WINNER_SHARE * self.job.budgets.seconds)


def start_run(job: Job, *, processes: int = 1, timed_threads: int = 0) -> Run:
    """Return a run of the job with the state folder of this machine; `processes` of it share its patience.

    `timed_threads` is that of `Run`.

    Raises:
        JobError: a library of custom operators that the job names cannot be loaded.
        InfrastructureError: the state folder cannot be created.
    """

    def pause(seconds: float) -> None:
        with stage(WAIT, lambda: f"up to {patience.left} of waiting for a quiet machine"):
            time.sleep(seconds)

    patience = RunPatience(job.measurement.patience_seconds / processes, log.info, pause)
    state = make_state_folder(state_folder())
    where = store_place()
    store = open_store(state, where)
    remove_leftovers(store.root)
    libraries = tuple(_keep_library(store, named) for named in job.operator_libraries)
    return Run(
        job,
        state,
        tracking_uri(state),
        store,
        Clock(),
        open_locks(state, where),
        Footprint(job.budgets, store),
        patience,
        libraries,
        timed_threads,
    )


def _keep_library(store: Store, named: OperatorLibrary) -> Library:
    """Return the library; a user's file as a copy in the store, since the original may be rebuilt during the run."""
    found = find_library(named)
    if found.package is not None:
        return found

    copy = partial(copy_library, found)
    return store.make(Product("library", (found.path.name, found.digest), Library, copy))[0]

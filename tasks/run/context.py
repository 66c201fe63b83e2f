"""What every step of one run shares."""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.run.clock import Clock
from tasks.run.footprint import Footprint
from tasks.run.log_redaction import redact_logs
from tasks.run.settings import make_state_folder, state_folder, store_place, tracking_uri
from tasks.runtimes.libraries import find_library
from tasks.storage.files import remove_leftovers
from tasks.storage.locks import Locks
from tasks.storage.places import open_locks, open_store
from tasks.storage.store import Store
from validators.digests import digest_code
from validators.job.job import Job
from validators.job.job_data import OperatorLibrary
from validators.records.libraries import Libraries, Library
from validators.records.run import Source
from validators.samples.datasets import Samples, TensorSpec

log = logging.getLogger("quantgate")
# Here, since every process that does a step of a run imports this, whatever started it.
redact_logs()

_TASKS = Path(__file__).parents[1]
# Code versions in the keys of the store: a change in code that makes artifacts makes them anew; the same for what measures.
# With the steps themselves, whose constants say how many samples a pass takes and in batches of what size.
_MAKERS = ("trials/make_candidate.py", "trials/build_engine.py")
_MEASURERS = (
    "trials/inspect_variant.py",
    "evidence/judge_calibration.py",
    "trials/measure_accuracy.py",
    "trials/measure_latency.py",
    "trials/measure_saturation.py",
    "trials/recover.py",
    "trials/request.py",
)
MAKER_CODE = digest_code([_TASKS / "ptq", _TASKS / "runtimes", *(_TASKS / name for name in _MAKERS)])
MEASURE_CODE = digest_code([_TASKS / "measure", _TASKS / "runtimes", *(_TASKS / name for name in _MEASURERS)])

# Shares of `budgets.seconds` after which work on candidates, and then on the winner, is cut off. Confirmation times one or a
# few candidates where up to then all were made and timed, and the report takes seconds.
CANDIDATES_SHARE, WINNER_SHARE = 0.8, 0.95


@dataclass(frozen=True)
class Run:
    """The job with the places and instruments of this run."""

    job: Job
    state: Path
    tracking_uri: str
    store: Store
    clock: Clock
    locks: Locks
    libraries: Libraries = ()
    footprint: Footprint = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "footprint", Footprint(self.job.budgets, self.store))

    def time_for_candidates(self) -> AbstractContextManager[None]:
        """A block whose passes over models are refused once the candidates' share of the budget is spent."""
        return self.clock.within(CANDIDATES_SHARE * self.job.budgets.seconds)

    def time_for_winner(self) -> AbstractContextManager[None]:
        """The same for what follows the candidates, but for the report."""
        return self.clock.within(WINNER_SHARE * self.job.budgets.seconds)


def start_run(job: Job) -> Run:
    """The run of a job on this machine's state.

    Raises:
        JobError: a library of custom operators that the job names cannot be loaded.
        InfrastructureError: the state folder cannot be made.
    """
    state = make_state_folder(state_folder())
    where = store_place()
    store = open_store(state, where)
    remove_leftovers(store.root)
    libraries = tuple(_keep_library(store, named) for named in job.operator_libraries)
    return Run(job, state, tracking_uri(state), store, Clock(), open_locks(state, where), libraries)


def _keep_library(store: Store, named: OperatorLibrary) -> Library:
    """The library; a file of the user's as a copy in the store, since the original may be built anew while the run lasts."""
    found = find_library(named)
    if found.package is not None:
        return found

    def copy(folder: Path) -> Library:
        return replace(found, path=Path(shutil.copy(found.path, folder)))

    return store.make("library", (found.path.name, found.digest), Library, copy)[0]


@dataclass(frozen=True)
class Evidence:
    """The samples of a run and what the model's graph says of its inputs and the judged output.

    `batch_axis` is the fixed size of the inputs' axis 0, or None when it is dynamic. `confirmation`, shape `(rows,)`, marks the
    evaluation rows that have no say in choosing a winner. `sample_bytes` is the size of one sample's inputs and judged output,
    0 where it is not known.
    """

    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    calibration: Samples
    evaluation: Samples
    traffic: Samples | None
    batch_axis: int | None
    confirmation: NDArray[np.bool_]
    sample_bytes: int = 0

    @property
    def reference(self) -> Samples:
        """What calibration data should be like: the traffic, or the evaluation inputs in its place."""
        return self.traffic or self.evaluation


@dataclass(frozen=True)
class Given:
    """What candidates are made from and judged on."""

    source: Source
    evidence: Evidence

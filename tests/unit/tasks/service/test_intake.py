"""What the flows that take versions in say of themselves; what they do is tested on real servers in test_triggers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.new_versions import state_of
from tasks.service.job_files import Jobs
from tasks.service.new_versions import VersionOutcome, sentence
from validators.errors import JobError

STARTED = VersionOutcome("m", "2", "j", "started", "no status", "id")
SKIPPED = VersionOutcome("m", "1", "j", "skipped", "status promoted")
FAILED = VersionOutcome("n", "", "", "failed", "its tag is wrong")
JOBS = Jobs(Path("/jobs"))
BROKEN = Jobs(Path("/jobs"), broken={"b": JobError(found="this", expected="that", fix="mend it")})


def test_the_sentence_says_what_was_done_and_why() -> None:
    """What was started first; of many a few."""
    assert sentence([SKIPPED, STARTED], JOBS) == (
        "started: m version 2 with j (no status); skipped: m version 1 with j (status promoted)"
    )
    assert sentence([FAILED], BROKEN) == "failed: n (its tag is wrong); broken job files: b"
    assert sentence([], JOBS) == "no registered model takes part with the jobs in /jobs"
    assert sentence([SKIPPED] * 7, JOBS).endswith("(status promoted), and 2 more")


@pytest.mark.parametrize(
    ("taken", "jobs", "state", "name"),
    [
        ([SKIPPED], JOBS, "COMPLETED", "NothingToDo"),
        ([], JOBS, "COMPLETED", "NothingToDo"),
        ([SKIPPED, STARTED], JOBS, "COMPLETED", "Started"),
        ([STARTED, FAILED], JOBS, "FAILED", "Failed"),
        ([STARTED], BROKEN, "FAILED", "Failed"),
    ],
)
def test_a_flow_fails_where_a_person_has_something_to_mend(
    taken: list[VersionOutcome], jobs: Jobs, state: str, name: str
) -> None:
    """Whatever it started besides."""
    found = state_of(taken, jobs)
    assert (found.type.value, found.name, found.message) == (state, name, sentence(taken, jobs))

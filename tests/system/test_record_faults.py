"""MLflow has one run for each candidate and none that still runs, whatever answer got lost while it was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from record_faults import Recording, Struck, figures, killed_often, recording

KILLS = 50


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """A process that records runs through a gate before a server."""
    with recording(tmp_path_factory.mktemp("recorded")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("struck", ["parent", "candidate"])
def test_lost_answer_creates_no_second_run(record: Recording, struck: Struck) -> None:
    left = record.strike(struck, kill=False)
    assert left.is_whole, left


@pytest.mark.slow
def test_server_killed_after_creation_leaves_one_run(record: Recording) -> None:
    left = record.strike("candidate", 2, kill=True)
    assert left.is_whole, left


@pytest.mark.slow
def test_late_creation_is_deleted_at_the_end(record: Recording) -> None:
    """No look can find a run that the server creates after it; the end of the record does."""
    left = record.record_with_late_twins()
    assert left.is_whole, left


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_fifty_kills_under_load_leave_no_duplicate(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = figures(killed_often(tmp_path_factory.mktemp("killed"), KILLS))
    assert found == {"recordings": KILLS, "whole": KILLS, "duplicates": 0, "running": 0, "without_verdicts": 0}

"""Real servers, a real worker and a real run, each killed at each stage: after a restart and one retry it is as if nothing was.

`pytest -m faults` runs every case and prints the table; a plain run has one that is struck four times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import Tiny
from fault_checks import Reference, champions_that_answer
from fault_plant import Plant
from faults import CASES, MANY, Case, Row, make_holder, reference_of, run_case, table
from stack import Stack


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """What the cases came to, printed at the end."""
    found: list[Row] = []
    yield found
    print("\n" + table(found))


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Iterator[Plant]:
    """The service."""
    root = tmp_path_factory.mktemp("faults")
    plant = Plant(Stack(root, on_postgres=True, on_s3=True), tiny)
    try:
        plant.start()
        yield plant
    finally:
        plant.close()


@pytest.fixture(scope="module")
def reference(plant: Plant) -> Reference:
    """An undisturbed run."""
    return reference_of(plant)


@pytest.fixture(scope="module")
def holder(plant: Plant) -> None:
    """A champion of another run, which cases start with."""
    make_holder(plant)


def _ids(case: Case) -> str:
    return case.name


def write_table(rows: list[Row]) -> None:
    """Where FAULT_TABLE says, after each case: the whole takes an hour."""
    if path := os.environ.get("FAULT_TABLE"):
        Path(path).write_text(table(rows) + "\n", encoding="utf-8")
        Path(path).with_suffix(".json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


def check(plant: Plant, reference: Reference, case: Case, rows: list[Row]) -> None:
    """Run a case and hold it to what must be."""
    row = run_case(plant, case, reference)
    rows.append(row)
    write_table(rows)
    assert (row.outcome, row.redone, row.aliases_wrong, row.problems) == ("Promoted", 0, 0, []), row
    assert champions_that_answer(plant, [case.name]) == {case.name}


@pytest.mark.slow
def test_kills_cost_time_alone(plant: Plant, reference: Reference, rows: list[Row]) -> None:
    """The S3 server, the run's process, MLflow and the Prefect server, one after the other, in one run."""
    check(plant, reference, MANY, rows)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_every_kill_at_every_stage(
    plant: Plant, reference: Reference, rows: list[Row], case: Case, request: pytest.FixtureRequest
) -> None:
    if case.has_champion:
        request.getfixturevalue("holder")
    check(plant, reference, case, rows)

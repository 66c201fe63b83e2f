"""Promotion on a real registry, with every fault before every write; the processes are those of promoters.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driving import TESTS, environment
from promoters import ALIAS_WRITE, LAST, left
from stack import Stack

CHAMPION = "champion-ort-cpu"
AT_REST = {"done", "interrupted", "failed"}

pytestmark = pytest.mark.slow


def driven(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The lines that promoters.py prints."""
    command = [sys.executable, str(TESTS / "promoters.py"), arguments[0], str(folder), *arguments[1:]]
    env = environment(folder / "state", PYTHONWARNINGS="ignore")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # MLflow says on the same stream where its runs are to be seen.
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[{"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each fault left, and what the retry made of it. Versions 1 and 2 were promoted before, in this order."""
    return driven(tmp_path_factory.mktemp("faults"), "faults")


def of(lines: list[dict[str, Any]], fault: str) -> list[dict[str, Any]]:
    """The lines of one fault, by the write that it came before; the last has all writes behind it."""
    found = [line for line in lines if line["fault"] == fault]
    assert [line["at"] for line in found] == list(range(1, LAST + 2))
    return found


def variants(state: dict[str, Any]) -> dict[str, Any]:
    """The versions that the faults may have touched."""
    return {number: version for number, version in state["versions"].items() if int(number) > 2}


def test_every_write_of_a_promotion_had_its_fault(lines: list[dict[str, Any]]) -> None:
    """And after the last write there was none left to come before."""
    assert LAST == 9
    for fault in ("kill", "refuse", "down", "interrupt", "interrupt again"):
        assert ["promoted" if line["first"] == "promoted" else "not" for line in of(lines, fault)] == [
            *["not"] * LAST,
            "promoted",
        ]


def test_one_retry_after_any_fault_ends_as_if_none_had_happened(lines: list[dict[str, Any]]) -> None:
    """The alias is at the variant, whose promotion is done; nothing is staged, nothing is going on."""
    for line in lines:
        end = line["end"]
        assert line["second"] == "promoted", line
        assert set(end["aliases"]) == {CHAMPION}, line
        champion = end["versions"][str(end["aliases"][CHAMPION])]
        assert champion["phase"] == "done" and champion["digest"] == end["versions"]["3"]["digest"], line
        assert {version["phase"] for version in end["versions"].values()} <= AT_REST, line


@pytest.mark.parametrize("fault", ["kill", "refuse", "down", "interrupt", "interrupt again"])
def test_complete_version_is_taken_up_and_not_registered_twice(lines: list[dict[str, Any]], fault: str) -> None:
    for line in of(lines, fault):
        assert line["end"]["aliases"] == {CHAMPION: 3}, line
        assert set(variants(line["end"])) == {"3"} and line["end"]["versions"]["3"]["previous"] == "2", line


@pytest.mark.parametrize("fault", ["kill", "interrupt again"])
def test_killed_anywhere_the_alias_points_to_something_whole(lines: list[dict[str, Any]], fault: str) -> None:
    """To the version before, or to one that had been read back, loaded and asked."""
    for line in of(lines, fault):
        expected = 3 if line["at"] > ALIAS_WRITE else 2
        assert line["left"]["aliases"][CHAMPION] == expected, line
        phases = {version["phase"] for version in variants(line["left"]).values()}
        assert line["at"] <= ALIAS_WRITE or phases <= {"moving", "done"}, line


@pytest.mark.parametrize(("fault", "first"), [("refuse", "InfrastructureError"), ("interrupt", "interrupted")])
def test_failure_leaves_the_old_champion_and_says_where_it_ended(
    lines: list[dict[str, Any]], fault: str, first: str
) -> None:
    """Even one after the alias had moved: it is put back."""
    for line in of(lines, fault)[:LAST]:
        assert line["first"] == first
        assert line["left"]["aliases"] == {CHAMPION: 2}, line
        phases = [version["phase"] for version in variants(line["left"]).values()]
        assert phases == ([] if line["at"] < 3 else ["interrupted"]), line


def test_alias_that_somebody_moved_meanwhile_stays_where_it_is(lines: list[dict[str, Any]]) -> None:
    """But for a move in the moment between the last look and the write: the registry has no compare-and-swap."""
    moved = of(lines, "move")
    for line in moved:
        if line["at"] in (ALIAS_WRITE, LAST + 1):
            continue
        assert line["left"]["aliases"] == {CHAMPION: 1}, line
        assert {version["phase"] for version in variants(line["left"]).values()} <= AT_REST, line
    ends = {line["at"]: line["first"] for line in moved}
    assert {ends[at] for at in range(1, ALIAS_WRITE)} == {"ChampionMoved"}


def test_a_damaged_artifact_never_becomes_the_champion(lines: list[dict[str, Any]]) -> None:
    """Read back by digest, loaded by the staging alias, loaded by the champion's: damage before each is seen by the next."""
    for line in of(lines, "damage")[:ALIAS_WRITE]:
        assert line["first"] == "VersionUnsound", line
        assert line["left"]["aliases"] == {CHAMPION: 2}, line
        assert variants(line["left"])["3"]["phase"] == "failed", line
        assert variants(line["end"])["3"]["phase"] == "failed", "what failed is not taken up"


def test_of_two_promoters_exactly_one_wins(tmp_path: Path) -> None:
    """Rounds of a race: who comes second is told that the champion is another one, and leaves nothing behind."""
    check_race(driven(tmp_path, "race", "10"))


def test_through_a_server_it_is_the_same(tmp_path: Path) -> None:
    """Uploaded, read back and loaded over HTTP; then the command goes back, and not to a version whose files are gone."""
    stack = Stack(tmp_path)
    try:
        stack.start_mlflow()
        (versions,) = driven(tmp_path / "work", "served", stack.registry)
        assert versions == ["1", "2"]
        state = left(tmp_path)
        assert state["aliases"] == {CHAMPION: 2}
        assert {version["phase"] for version in state["versions"].values()} == {"done"}
        command = [sys.executable, "-m", "flows.cli.app", "rollback", "m", "--target", "ort-cpu"]
        models = sorted((tmp_path / "mlartifacts").rglob("model.onnx"), key=lambda path: path.stat().st_mtime_ns)
        kept = models[0].rename(tmp_path / "kept")
        gone = subprocess.run(command, env=stack.settings(), capture_output=True, text=True, check=False)
        assert gone.returncode == 2 and "m-quantized has no intact version that was the champion" in gone.stderr, (
            gone.stderr
        )
        assert left(tmp_path)["aliases"] == {CHAMPION: 2}
        kept.rename(models[0])
        done = subprocess.run(command, env=stack.settings(), capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "version 1 is the champion now" in done.stdout, done.stderr
        assert left(tmp_path)["aliases"] == {CHAMPION: 1}
    finally:
        stack.close()


def check_race(rounds: list[dict[str, Any]]) -> None:
    """One winner a round, which the alias points to, with its predecessor; nothing staged, nothing between two phases."""
    for line in rounds:
        end = line["end"]
        assert sorted(line["ends"]) == ["ChampionMoved", "promoted"], line
        (number,) = set(end["aliases"].values())
        assert set(end["aliases"]) == {CHAMPION} and number == line["before"] + 1, line
        assert end["versions"][str(number)]["previous"] == str(line["before"]), line
        assert len(end["versions"]) == number, line
        assert {version["phase"] for version in end["versions"].values()} == {"done"}, line

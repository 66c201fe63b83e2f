"""Rollback on a real registry, with a fault before every write, by the command, and as a flow; the steps are rollbacks.py's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driving import TESTS, environment
from prefect.utilities.callables import parameter_schema

from flows.rollback import rollback
from validators.targets import BUILT_IN

CHAMPION = "champion-ort-cpu"
# Step, error, champion, and versions that are marked as rolled back, after it.
STORY = [
    ("start", None, 3, {}),
    ("back", None, 2, {"3": 2}),
    ("the same request again", None, 2, {"3": 2}),
    ("a rolled back variant again", "InfrastructureError", 2, {"3": 2}),
    ("another request", None, 1, {"3": 2, "2": 1}),
    ("nothing before it", "JobError", 1, {"3": 2, "2": 1}),
    ("forward", None, 3, {"2": 1}),
    ("forward again", None, 3, {"2": 1}),
    ("past one that was rolled back", None, 1, {"2": 1, "3": 1}),
    ("none", None, None, {"2": 1, "3": 1, "1": 0}),
    ("none again", None, None, {"2": 1, "3": 1, "1": 0}),
    ("no champion", "JobError", None, {"2": 1, "3": 1, "1": 0}),
    ("no such version", "JobError", None, {"2": 1, "3": 1, "1": 0}),
    ("no such model", "JobError", None, {"2": 1, "3": 1, "1": 0}),
    ("up again", None, 3, {"2": 1, "1": 0}),
    ("a variant that nobody rolled back", None, 4, {"2": 1, "1": 0}),
]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each step came to, in turn."""
    folder = tmp_path_factory.mktemp("rollbacks")
    command = [sys.executable, str(TESTS / "rollbacks.py"), str(folder)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line["step"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
def test_rollback_moves_the_alias_and_marks_the_old_champion(steps: dict[str, dict[str, Any]]) -> None:
    """The table above: one version back a request, forward by name, none at all, and refusals that change nothing."""
    seen = [
        (
            name,
            line.get("error"),
            line["left"]["aliases"].get(CHAMPION),
            {n: mark["to"] for n, mark in line["marks"].items()},
        )
        for name, line in list(steps.items())[: len(STORY)]
    ]
    assert seen == STORY


@pytest.mark.slow
def test_twins_of_one_file_are_two_champions(steps: dict[str, dict[str, Any]]) -> None:
    """The same file with another number of threads is promoted, and rolled back, for itself."""
    seen = {
        name: (steps[name].get("error"), steps[name]["left"]["aliases"][CHAMPION], list(steps[name]["marks"]))
        for name in ("the champion again", "its twin", "back from the twin", "the twin again")
    }
    assert seen == {
        "the champion again": (None, 3, []),
        "its twin": (None, 4, []),
        "back from the twin": (None, 3, ["4"]),
        "the twin again": ("InfrastructureError", 3, ["4"]),
    }
    both = steps["back from the file's other version"]
    assert (both["left"]["aliases"], sorted(both["marks"])) == ({CHAMPION: 2}, ["3", "4"])
    forward = steps["forward to the twin"]
    assert (forward["left"]["aliases"], list(forward["marks"])) == ({CHAMPION: 4}, ["3"]), "the other stays barred"


@pytest.mark.slow
def test_other_evidence_is_another_version(steps: dict[str, dict[str, Any]]) -> None:
    """A version serves the evidence of the run that its tags name, not that of a run which was killed before."""
    assert steps["killed"]["left"]["aliases"][CHAMPION] == 3 and set(steps["killed"]["left"]["versions"]) >= {"4"}
    after = steps["with other evidence"]["left"]
    assert after["aliases"] == {CHAMPION: 5}
    assert [after["versions"][number]["phase"] for number in ("4", "5")] == ["interrupted", "done"]


@pytest.mark.slow
def test_it_says_what_it_did_and_keeps_why(steps: dict[str, dict[str, Any]]) -> None:
    here = "models:/m-quantized@champion-ort-cpu"
    assert steps["back"]["said"] == f"{here}: version 3 was left, and version 2 is the champion now"
    assert steps["the same request again"]["said"] == f"{here}: version 2 is the champion already"
    mark = steps["back"]["marks"]["3"]
    assert mark["reason"] == "slow under load" and mark["at"].endswith("+00:00")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill 1", "kill 2", "kill 3", "refuse 1", "refuse 2", "refuse 3"])
def test_the_same_request_after_a_fault_goes_back_one_version(steps: dict[str, dict[str, Any]], fault: str) -> None:
    """Not two, whichever write the fault came before; the third is one that there is none of."""
    before, after = steps[fault], steps[f"{fault}, again"]
    assert before["left"]["aliases"] == {CHAMPION: 2 if fault.endswith("3") else 3}
    assert after["left"]["aliases"] == {CHAMPION: 2} and {n: mark["to"] for n, mark in after["marks"].items()} == {
        "3": 2
    }
    if fault.startswith("refuse") and not fault.endswith("3"):
        assert before["marks"] == {}, "what came to nothing says nothing"


@pytest.mark.slow
def test_an_alias_that_somebody_moved_meanwhile_is_left(steps: dict[str, dict[str, Any]]) -> None:
    assert steps["move 1"]["error"] == "ChampionMoved" and steps["move 1"]["left"]["aliases"] == {CHAMPION: 1}


@pytest.mark.slow
def test_rollback_refuses_another_champion_than_was_judged(steps: dict[str, dict[str, Any]]) -> None:
    """Version 3 was promoted while somebody decided about version 2: it stays, and is not marked."""
    refused = steps["from version 2, which is not the champion"]
    assert (refused["error"], refused["left"]["aliases"], refused["marks"]) == ("ChampionMoved", {CHAMPION: 3}, {})
    done = steps["from version 3, which is the champion"]
    assert (done["left"]["aliases"], list(done["marks"])) == ({CHAMPION: 2}, ["3"])


@pytest.mark.slow
def test_watch_leaves_a_champion_that_it_did_not_judge(steps: dict[str, dict[str, Any]]) -> None:
    """The alarm is about version 2 and the champion is version 3 by now; nothing is recorded as done about the alarm."""
    watch = steps["the watch, about version 2"]
    assert watch["said"].startswith("no rollback: models:/m-quantized@champion-ort-cpu is version 3")
    assert (watch["left"]["aliases"], watch["marks"]) == ({CHAMPION: 3}, {})


@pytest.mark.slow
def test_a_damaged_version_is_passed_over_and_refused_by_name(steps: dict[str, dict[str, Any]]) -> None:
    by_name, past = steps["to one that is damaged"], steps["past one that is damaged"]
    assert (by_name["error"], by_name["left"]["aliases"], by_name["marks"]) == ("VersionUnsound", {CHAMPION: 3}, {})
    assert past["left"]["aliases"] == {CHAMPION: 1}


def test_the_form_has_descriptions_choices_and_bounds() -> None:
    """What the UI makes of the flow's parameters."""
    schema = parameter_schema(rollback).model_dump()
    fields = schema["properties"]
    assert list(fields) == ["model", "target", "to", "leaving", "reason"] and schema["required"] == ["model", "target"]
    assert all(field["description"] for field in fields.values())
    assert fields["target"]["enum"] == list(BUILT_IN)
    assert fields["leaving"]["anyOf"][0] == {"minimum": 1, "type": "integer"}
    assert fields["to"]["anyOf"][0] == {"minimum": 0, "type": "integer"} and fields["reason"]["maxLength"] == 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("m",), "Missing option '--target'"),
        (("m", "--target", "npu"), "'npu' is not one of 'ort-cpu'"),
        (("m", "--target", "ort-cpu", "--to", "-1"), "greater than or equal to 0"),
        (("m", "--target", "ort-cpu"), "'m' has no variants for ort-cpu"),
    ],
)
@pytest.mark.slow
def test_the_command_refuses_what_cannot_be(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "flows.cli.app", "rollback", *arguments]
    env = environment(tmp_path, TERM="dumb", COLUMNS="200")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr

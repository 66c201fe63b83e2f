"""A state folder of Prefect 3.8.8, onnxruntime 1.31.1 and SQLAlchemy 2.0 after an upgrade of all three.

Its champions load, are compared, replaced and rolled back; its runs and deployments stay on the Prefect server.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tarfile
from pathlib import Path

import pytest
from conftest import Tiny
from driving import Answer, run_jobs, write_job

# Its paths stand as @ROOT@, and the databases as SQL. Two versions of tiny-quantized were promoted in it, then
# `quantgate deploy` was run.
PACKED = Path(__file__).parents[1] / "support" / "state_before_prefect_3_9.tar.xz"


def unpack(folder: Path) -> Path:
    """Unpack the state folder below `folder`, as if it had been made there."""
    state = folder / "state"
    with tarfile.open(PACKED) as archive:
        archive.extractall(state, filter="data")
    for path in state.rglob("*"):
        if path.is_file() and b"@ROOT@" in (held := path.read_bytes()):
            path.write_bytes(held.replace(b"@ROOT@", str(folder).encode()))
    for script in state.rglob("*.sql"):
        with sqlite3.connect(script.with_suffix(".db")) as database:
            database.executescript(script.read_text(encoding="utf-8"))
        script.unlink()
    return state


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    root = tmp_path_factory.mktemp("old")
    state = unpack(root)
    weaker = tiny.job(source="models:/tiny/1", candidates=["int8-static-minmax-pc@ort-cpu"], objective="size")
    job = str(write_job(root / "weaker.yaml", weaker))
    again = tiny.job(source="models:/tiny/1", candidates=["int4-g64-rtn@ort-cpu"], objective="size")
    calls: list[dict[str, object]] = [
        {"name": "status", "arguments": ["status", "--json"]},
        {"name": "weaker", "job": job, "replace_device": True},
        {"name": "rollback", "arguments": ["rollback", "tiny", "--target", "ort-cpu", "--json"]},
        {"name": "export", "arguments": ["export", "tiny", "--target", "ort-cpu", "--out", str(root / "exported")]},
        {"name": "again", "job": str(write_job(root / "again.yaml", again)), "replace_device": True},
        {"name": "retention", "arguments": ["retention", "--json"]},
    ]
    return state, run_jobs(state, root / "runs", calls, bare=True)


def champion(state: Path) -> int:
    """The version that the alias points to."""
    with sqlite3.connect(state / "mlflow.db") as database:
        ((version,),) = database.execute(
            "SELECT version FROM registered_model_aliases WHERE alias = 'champion-ort-cpu'"
        ).fetchall()
    return int(version)


def test_old_champion_is_compared_with_a_new_variant(world: tuple[Path, dict[str, Answer]]) -> None:
    answer = world[1]["weaker"]
    assert answer.result is not None, answer.said
    (candidate,) = answer.result["candidates"]
    verdicts = {verdict["gate"]: verdict for verdict in candidate["verdicts"]}
    assert answer.result["outcome"] == "no_variant"
    assert verdicts["beats_champion"]["outcome"] == "fail"
    assert "no longer runs here" not in answer.said


def test_old_champion_is_rolled_back_and_exported(world: tuple[Path, dict[str, Answer]]) -> None:
    answers = world[1]
    assert answers["rollback"].code == 0, answers["rollback"].said
    told = json.loads(answers["rollback"].out)
    assert (told["left"], told["now"]) == ("2", "1")
    assert answers["export"].code == 0, answers["export"].said


def test_new_champion_names_the_old_ones(world: tuple[Path, dict[str, Answer]]) -> None:
    state, answers = world
    assert answers["again"].code == 0 and champion(state) == 3, answers["again"].said
    with sqlite3.connect(state / "mlflow.db") as database:
        ((card,),) = database.execute(
            "SELECT description FROM model_versions WHERE name = 'tiny-quantized' AND version = 3"
        ).fetchall()
    assert re.search(r"\| 2 \| `int4-g32-rtn@ort-cpu` \| [\d.]+x \| 2026-11-26 \| rolled back to version 1 ", card), (
        card
    )
    assert re.search(
        r"\| 1 \| `int8-static-percentile-pc@ort-cpu` \| [\d.]+x \| 2026-11-26 \| replaced 2026-11-26 \|", card
    )


def test_old_state_is_listed_and_aged(world: tuple[Path, dict[str, Answer]]) -> None:
    for name in ("status", "retention"):
        assert world[1][name].code == 0, world[1][name].said
    assert "tiny" in world[1]["status"].out


def test_old_runs_and_deployments_stay_on_the_prefect_server(world: tuple[Path, dict[str, Answer]]) -> None:
    """The server moves its database to its own schema when it starts."""
    with sqlite3.connect(world[0] / "prefect" / "prefect.db") as database:
        runs = "SELECT flow_run.state_type, count(*) FROM flow_run JOIN flow ON flow.id = flow_run.flow_id "
        runs = dict(database.execute(runs + "WHERE flow.name = 'quantize' GROUP BY flow_run.state_type").fetchall())
        ((deployments,),) = database.execute("SELECT count(*) FROM deployment").fetchall()
    assert runs == {"COMPLETED": 4}
    assert deployments == 7

"""Rolls back on the registry of promoters.py: `python rollbacks.py FOLDER` prints what each step came to, as JSON.

Version 1, 2 and 3 were promoted, in this order. QUANTGATE_STATE is FOLDER. A step is done by a process of its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from promoters import ALIAS_WRITE, TARGET, Packed, ended, fork, kill, left, move, pack, plant, prepare, promote, refuse

from tasks.run.settings import prepare_environment


def told(folder: Path, step: str, act: Callable[[], Any]) -> None:
    """Do a step, and print how it ended, what it said, and what is there."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)

    def call() -> None:
        from validators.errors import QuantgateError

        try:
            said = {"said": str(act())}
        except QuantgateError as error:
            said = {"error": type(error).__name__, "said": error.found}
        answer.write_text(json.dumps(said))

    end = ended(fork(call))
    said = json.loads(answer.read_text()) if answer.exists() else {}
    print(json.dumps({"step": step, "end": end, "left": left(folder), "marks": marks(folder)} | said), flush=True)


def marks(folder: Path) -> dict[int, Any]:
    """The versions that are marked as rolled back, and what their marks say."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        tags = "SELECT version, value FROM model_version_tags WHERE key = 'quantgate.rolled_back'"
        return {version: json.loads(value) for version, value in database.execute(tags)}


def back(to: int | None = None, model: str = "m", **options: Any) -> Any:
    """Roll back."""
    from tasks.champion.rollback import roll_back

    return roll_back(model, TARGET, to, **options)


def watch_rolls_back(champion: str, predecessor: str) -> str:
    """Act on an alarm that the watch raised about `champion`, whichever version is the champion by now."""
    from types import SimpleNamespace

    from tasks.registry.champion_slot import ChampionSlot
    from tasks.watch.alarms import Alarm, Decision, Memory
    from tasks.watch.subject import Lineage
    from tasks.watch.traffic import TrafficMark
    from tasks.watch.trend import Trend
    from tasks.watch.watch import act
    from validators.records.run import Champion

    place = ChampionSlot("m-quantized", TARGET)
    about = Champion(place.name, champion, place.alias, "digest", "source", "int8", previous=champion)
    lineage = Lineage(place, about, "models:/m/1", "", predecessor)
    run: Any = SimpleNamespace(job=SimpleNamespace(source_name="m", target=TARGET))
    alarm = Alarm("disagreement", 0.5, 0.9, "")
    return act(run, lineage, Trend("none", Memory(), TrafficMark(), {}), Decision("rollback", alarm, "disagreement"))


def story(folder: Path, packed: list[Packed]) -> None:
    """A day of somebody's, one step after the other."""
    told(folder, "back", lambda: back(reason="slow\nunder load", request="a"))
    told(folder, "the same request again", lambda: back(reason="slow", request="a"))
    told(folder, "a rolled back variant again", lambda: promote(folder, packed[2], "2"))
    told(folder, "another request", lambda: back(model="m-quantized"))
    told(folder, "nothing before it", back)
    told(folder, "forward", lambda: back(3))
    told(folder, "forward again", lambda: back(3))
    told(folder, "past one that was rolled back", back)
    told(folder, "none", lambda: back(0))
    told(folder, "none again", lambda: back(0))
    told(folder, "no champion", back)
    told(folder, "no such version", lambda: back(9))
    told(folder, "no such model", lambda: back(model="x'; --"))
    told(folder, "up again", lambda: back(3))
    told(folder, "a variant that nobody rolled back", lambda: promote(folder, packed[3], "3"))


def faults(folder: Path, packed: list[Packed]) -> None:
    """From version 3 with a fault before each write, and the same request once more."""
    for name, fault in (("kill", kill), ("refuse", refuse), ("move", move)):
        for at in (1, 2, 3):
            shutil.copy(folder / "before.db", folder / "mlflow.db")

            def attempt(at: int = at, fault: Callable[[Path], None] = fault) -> Any:
                plant(at, fault, folder)
                return back(request="r", leaving=3)

            told(folder, f"{name} {at}", attempt)
            told(folder, f"{name} {at}, again", lambda: back(request="r", leaving=3))
    shutil.copy(folder / "before.db", folder / "mlflow.db")
    told(folder, "from version 2, which is not the champion", lambda: back(1, leaving=2))
    told(folder, "the watch, about version 2", lambda: watch_rolls_back("2", "1"))
    told(folder, "from version 3, which is the champion", lambda: back(leaving=3))
    shutil.copy(folder / "before.db", folder / "mlflow.db")
    model = packed[1].path / "artifacts" / "variant" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    told(folder, "to one that is damaged", lambda: back(2))
    told(folder, "past one that is damaged", back)


def twins(folder: Path, packed: list[Packed], twin: Packed) -> None:
    """The file of version 3 with another number of threads."""
    shutil.copy(folder / "before.db", folder / "mlflow.db")
    told(folder, "the champion again", lambda: promote(folder, packed[2], "3"))
    told(folder, "its twin", lambda: promote(folder, twin, "3"))
    told(folder, "back from the twin", back)
    told(folder, "the twin again", lambda: promote(folder, twin, "3"))
    told(folder, "back from the file's other version", back)
    told(folder, "forward to the twin", lambda: back(4))


def other_evidence(folder: Path, packed: list[Packed]) -> None:
    """A promotion that was killed before it moved the alias, and then another run's of the same variant."""
    shutil.copy(folder / "before.db", folder / "mlflow.db")

    def attempt() -> Any:
        plant(ALIAS_WRITE, kill, folder)
        return promote(folder, packed[3], "3")

    told(folder, "killed", attempt)
    tags = packed[3].tags | {"quantgate.evidence_digest": "of another run"}
    told(folder, "with other evidence", lambda: promote(folder, replace(packed[3], tags=tags), "3"))


def main(folder: Path) -> None:
    """All of it."""
    packed = prepare(folder)
    twin = pack(folder, packed[2].factor, threads=2)
    told(folder, "start", lambda: promote(folder, packed[2], "2"))
    shutil.copy(folder / "mlflow.db", folder / "before.db")
    story(folder, packed)
    twins(folder, packed, twin)
    other_evidence(folder, packed)
    faults(folder, packed)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    place = Path(sys.argv[1])
    prepare_environment(place)
    main(place)

"""Runs jobs one after the other in one process, as `quantgate run` would: `python tests/drive.py CALLS.json ANSWERS.json`.

Starting Prefect's embedded server takes longer than a small job: a process for each would make the suite slow.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from flows.cli import app


def answer(call: dict[str, Any], result: Path) -> int:
    """The exit code of one call: a run unless it asks for another command."""
    command = call.get("command", "run")
    if command == "rollback":
        given = ["rollback", call["model"], "--target", call["target"]]
    elif command == "suggest":
        given = ["suggest-calibration", call["job"], "--from", call["pool"], "--size", str(call["size"])]
    else:
        given = [command, call["job"], "--result", str(result)]
        given += [] if call.get("promote", True) else ["--no-promote"]
    code: int = app(given, standalone_mode=False)
    return code


def main(calls: Path, answers: Path) -> None:
    """`CALLS` holds a list of {"name", "job", ...}; `ANSWERS` maps each name to exit code, output and result."""
    given = {}
    for call in json.loads(calls.read_text()):
        result = answers.parent / f"{call['name']}.result.json"
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = answer(call, result)
        document = json.loads(result.read_text()) if result.exists() else None
        given[call["name"]] = {"code": code, "said": said.getvalue(), "result": document}
    answers.write_text(json.dumps(given))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

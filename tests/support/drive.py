"""Run jobs one after the other in one process, as `quantgate run` would: `python drive.py CALLS.json ANSWERS.json`.

Starting Prefect's embedded server takes longer than a small job: a process for each would make the suite slow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from flows.cli.app import app


def answer(call: dict[str, Any], result: Path) -> int:
    """The exit code of one call: that of its `arguments`, else a run unless it asks for another command."""
    command = call.get("command", "run")
    if "arguments" in call:
        given = call["arguments"]
    elif command == "rollback":
        given = ["rollback", call["model"], "--target", call["target"]]
    elif command == "tag":
        tag_champion(call["model"], call["tag"], call["value"])
        return 0
    elif command == "suggest":
        given = ["suggest-calibration", call["job"], "--from", call["pool"], "--size", str(call["size"])]
    else:
        given = [command, call["job"], "--result", str(result)]
        given += [] if call.get("promote", True) else ["--no-promote"]
        given += ["--replace-device"] if call.get("replace_device") else []
    code: int = app(given, standalone_mode=False)
    return code


def tag_champion(model: str, tag: str, value: str) -> None:
    """Change a tag of a model's champion for ort-cpu."""
    from tasks.registry.mlflow_registry import connect
    from tasks.run.settings import state_folder, tracking_uri

    with connect(tracking_uri(state_folder())) as client:
        version = client.get_model_version_by_alias(model, "champion-ort-cpu").version
        client.set_model_version_tag(model, version, tag, value)


class _Copied(io.StringIO):
    """What is written to it goes elsewhere, too."""

    def __init__(self, other: io.StringIO) -> None:
        super().__init__()
        self._other = other

    def write(self, text: str) -> int:
        self._other.write(text)
        return super().write(text)


def main(calls: Path, answers: Path) -> None:
    """`CALLS` holds a list of {"name", "job", "environ", ...}; `ANSWERS` maps each name to exit code, output and result."""
    given = {}
    for call in json.loads(calls.read_text()):
        result = answers.parent / f"{call['name']}.result.json"
        said = io.StringIO()
        out = _Copied(said)
        told = mock.patch.dict(os.environ, call.get("environ", {}))
        with told, contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = answer(call, result)
        document = json.loads(result.read_text()) if result.exists() else None
        given[call["name"]] = {"code": code, "said": said.getvalue(), "out": out.getvalue(), "result": document}
    answers.write_text(json.dumps(given))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

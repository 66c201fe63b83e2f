"""Run jobs one after the other in one process, as `quantgate run` would: `python drive.py CALLS.json ANSWERS.json`.

Starting Prefect's embedded server takes longer than a small job: a process for each would make the suite slow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from limits import measured

from flows.cli.app import app

# A call with a limit that waits, such as for a pipe, uses no processor time and is ended after this one.
MOST_PATIENCE = 60


def answer(call: dict[str, Any], result: Path) -> int:
    """The exit code of one call: that of its `arguments`, else a run unless it asks for another command."""
    command = call.get("command", "run")
    if "version" in call:
        register_version(Path(call["version"]))
    if "arguments" in call:
        given = [*call["arguments"], *(record_runs(Path(call["recorded"])) if "recorded" in call else [])]
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


def register_version(folder: Path) -> None:
    """Register the files in `folder/version` as the first version of a model with the folder's name."""
    from tasks.registry.mlflow_registry import connect
    from tasks.run.settings import state_folder, tracking_uri

    with connect(tracking_uri(state_folder())) as client:
        client.create_registered_model(folder.name)
        client.create_model_version(folder.name, str(folder / "version"))


def record_runs(folder: Path) -> list[str]:
    """Record two finished runs with the artifacts in `folder/run`; return their ids."""
    from tasks.registry.mlflow_registry import connect, experiment_id
    from tasks.registry.mlflow_runs import EXPERIMENT
    from tasks.run.settings import state_folder, tracking_uri

    found = []
    with connect(tracking_uri(state_folder())) as client:
        experiment = experiment_id(client, EXPERIMENT, tracking_uri(state_folder()))
        for _ in range(2):
            found.append(client.create_run(experiment, tags={"quantgate.kind": "run"}).info.run_id)
            client.log_artifacts(found[-1], folder / "run")
            client.set_terminated(found[-1])
    return found


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


@contextlib.contextmanager
def limited(more_mb: int | None) -> Iterator[None]:
    """With a limit, refuse this process more address space than that beyond the present, and a call of over a minute."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if more_mb is not None:
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(MOST_PATIENCE)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_mb * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the call takes over {MOST_PATIENCE} s")


def main(calls: Path, answers: Path, *, plain: bool) -> None:
    """`CALLS` holds a list of {"name", "job", "environ", ...}; `ANSWERS` maps each name to exit code, output and result."""
    given: dict[str, dict[str, Any]] = {}
    with without_engine() if plain else contextlib.nullcontext():
        answer_all(calls, answers, given)
    answers.write_text(json.dumps(given))


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """Call flows as plain functions, and so their steps: Prefect's engine, its server and its heartbeats take 1.2 s a run.

    Nothing is retried, nothing is recorded by Prefect, and candidates are made one after the other.
    """
    from prefect import Flow
    from prefect.states import Failed

    def flow(self: Any, *given: Any, return_state: bool = False, **named: Any) -> Any:
        try:
            with mock.patch.dict(os.environ, {"PREFECT__RUNTIME__FLOW_RUN__ID": str(uuid.uuid4())}):
                return self.fn(*given, **named)
        except Exception as error:
            return Failed(data=error)

    publishing = [
        "tasks.evidence.judge_calibration.create_link_artifact",
        *(f"tasks.records.publish_report.create_{kind}_artifact" for kind in ("markdown", "table", "link")),
        "tasks.records.publish_report._tag_flow_run",
    ]
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(Flow, "__call__", flow))
        patches.enter_context(mock.patch("flows.cli.run.on_server", contextlib.nullcontext))
        patches.enter_context(mock.patch("flows.cli.run.start_server"))
        for name in publishing:
            patches.enter_context(mock.patch(name))
        yield


def answer_all(calls: Path, answers: Path, given: dict[str, dict[str, Any]]) -> None:
    """Make the calls one after the other."""
    for call in json.loads(calls.read_text()):
        result = answers.parent / f"{call['name']}.result.json"
        said = io.StringIO()
        out = _Copied(said)
        told = mock.patch.dict(os.environ, call.get("environ", {}))
        quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(said)
        with told, measured() as exceeded, limited(call.get("more_mb")), quiet[0], quiet[1]:
            code = answer(call, result)
        given[call["name"]] = {"code": code, "said": said.getvalue(), "out": out.getvalue(), "exceeded": exceeded}
        given[call["name"]]["result"] = json.loads(result.read_text()) if result.exists() else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), plain="--plain" in sys.argv)

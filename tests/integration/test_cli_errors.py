"""What every command says of what is wrong: found, expected, fix, the same as a document with `--json`, and the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import Tiny
from driving import Answer, environment, run_jobs, write_job
from typer.testing import CliRunner

from flows.cli import doctor
from flows.cli.app import app
from validators.errors import InfrastructureError

NOWHERE = "http://127.0.0.1:9"
# Arguments, further environment, exit code, words of what was found, words of the fix. `{}` is the test's folder.
Case = tuple[tuple[str, ...], dict[str, str], int, str, str]

USAGE: list[Case] = [
    (("walk",), {}, 2, "No such command 'walk'", "`quantgate --help`"),
    (("rolback",), {}, 2, "Did you mean 'rollback'?", "`quantgate --help`"),
    (("run",), {}, 2, "Missing argument 'JOB'", "`quantgate run --help`"),
    (("run", "job.yaml", "--fast"), {}, 2, "No such option: --fast", "`quantgate run --help`"),
    (("run", "job.yaml", "other.yaml"), {}, 2, "unexpected extra argument(s) (other.yaml)", "`quantgate run --help`"),
    (("rollback", "m", "--target", "gpu"), {}, 2, "'gpu' is not one of 'ort-cpu'", "`quantgate rollback --help`"),
    (("rollback", "m", "--target", "ort-cpu", "--to", "-1"), {}, 2, "greater than or equal to 0", "--help`"),
    (("retention", "--keep-versions", "few"), {}, 2, "'--keep-versions'", "`quantgate retention --help`"),
    (("ui", "--mlflow-port", "http"), {}, 2, "'--mlflow-port'", "`quantgate ui --help`"),
    (("reject", "run"), {}, 2, "Missing option '--comment'", "`quantgate reject --help`"),
]
FILES: list[Case] = [
    (("run", "{}/none.yaml"), {}, 2, "none.yaml: No such file or directory", "check the path"),
    (("run", "{}"), {}, 2, "Is a directory", "check the path"),
    (("run", "{}/good.yaml", "--result", "{}/no/r.json"), {}, 2, "no/r.json: no such folder", "mkdir -p"),
    (("run", "{}/good.yaml", "--junit", "{}/no/j.xml"), {}, 2, "no/j.xml: no such folder", "mkdir -p"),
    (("run", "{}/syntax.yaml"), {}, 2, "syntax.yaml: ", "correct the file there"),
    (("run", "{}/list.yaml"), {}, 2, "list.yaml holds a value of type list", "examples/text.yaml"),
    (("run", "{}/key.yaml"), {}, 2, "unknown key `speed`", "correct `speed`"),
    (("run", "{}/good.yaml"), {"QUANTGATE_STATE": "{}/good.yaml"}, 1, "state folder {}/good.yaml: ", "QUANTGATE_STATE"),
    # Elsewhere than Prefect's folder, as in containers.
    (
        ("run", "{}/good.yaml"),
        {"QUANTGATE_STATE": "{}/good.yaml", "PREFECT_HOME": "{}/prefect"},
        1,
        "state folder {}/good.yaml: ",
        "QUANTGATE_STATE",
    ),
    (("run", "{}/good.yaml"), {"PREFECT_HOME": "{}/good.yaml"}, 1, "Prefect's folder {}/good.yaml: ", "PREFECT_HOME"),
    (("validate", "{}/none.yaml"), {}, 2, "none.yaml: No such file", "check the path"),
    (("candidates", "{}/none.yaml"), {}, 2, "none.yaml: No such file", "check the path"),
    (("candidates", "{}/key.yaml"), {}, 2, "unknown key `speed`", "correct `speed`"),
    (
        ("suggest-calibration", "{}/s3.yaml", "--from", "p.npz", "--size", "8"),
        {},
        2,
        "`data.calibration` at s3://",
        "--out",
    ),
    (("lint", "{}/none.onnx"), {}, 2, "none.onnx: no such file", ""),
    (("lint", "{}/key.yaml"), {}, 2, "not an ONNX file", ""),
    (("lint", "{}/none.onnx", "--target", "openvino"), {}, 2, "target openvino has no linter rules", "run the model"),
    (
        ("init", "models:/m/1", "--out", "{}/good.yaml"),
        {},
        2,
        "good.yaml: the file already exists",
        "another file with --out",
    ),
    (("init", "models:/m/1", "--out", "{}/no/j.yaml"), {}, 2, "no/j.yaml: no such folder", "mkdir -p"),
    (("watch", "{}"), {"QUANTGATE_JOBS": "{}/no"}, 2, "no such folder", "create the folder"),
]
SERVERS: list[Case] = [
    (("init", "models:/m/1", "--out", "{}/new.yaml"), {}, 2, "no recorded runs: ", "MLFLOW_TRACKING_URI"),
    (("report", "last"), {}, 2, "no recorded runs: ", "`quantgate run JOB`"),
    (("promote", "last"), {}, 2, "no recorded runs: ", "`quantgate run JOB`"),
    (("compare", "last", "ab"), {}, 2, "no recorded runs: ", "`quantgate run JOB`"),
    (("approvals",), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("approve", "run"), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("reject", "run", "--comment", "no"), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("deploy",), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("worker",), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("worker", "--target", "ort-cpu"), {}, 1, "PREFECT_API_URL is not set", "`quantgate serve`"),
    (("worker", "--target", "tensorrt"), {}, 1, "cannot run here", "`quantgate doctor`"),
    (("webhook", f"{NOWHERE}/webhook"), {"QUANTGATE_WEBHOOK_SECRET": ""}, 2, "no QUANTGATE_WEBHOOK_SECRET", "set it"),
    (("webhook",), {}, 2, "the registry sqlite:", "MLFLOW_TRACKING_URI"),
]
_DOWN = {"MLFLOW_TRACKING_URI": NOWHERE}
# Those of Prefect first: it reads its settings once, when it is first imported.
DOWN: list[Case] = [
    (("status",), {"PREFECT_API_URL": f"{NOWHERE}/api"}, 1, f"the Prefect server at {NOWHERE}/api does not", "runs"),
    (("approvals",), {"PREFECT_API_URL": f"{NOWHERE}/api"}, 1, "the Prefect server at", "check PREFECT_API_URL"),
    (("approve", "r"), {"PREFECT_API_URL": f"{NOWHERE}/api"}, 1, "the Prefect server at", "check PREFECT_API_URL"),
    (("deploy",), {"PREFECT_API_URL": f"{NOWHERE}/api"}, 1, "the Prefect server at", "check PREFECT_API_URL"),
    (("status",), _DOWN, 1, "the MLflow registry does not answer", "check MLFLOW_TRACKING_URI"),
    (("report", "last"), _DOWN, 1, "the MLflow registry does not answer", "check MLFLOW_TRACKING_URI"),
    (("compare", "last", "ab"), _DOWN, 1, "the MLflow registry does not answer", "check MLFLOW_TRACKING_URI"),
    (("promote", "last"), _DOWN, 1, "the MLflow registry does not answer", "check MLFLOW_TRACKING_URI"),
    (("init", "models:/m/1", "--out", "{}/new.yaml"), _DOWN, 1, "the MLflow registry does not answer", "server runs"),
    (("rollback", "m", "--target", "ort-cpu"), _DOWN, 1, "the MLflow registry does not answer", "server runs"),
    (("webhook",), _DOWN, 1, "the MLflow registry does not answer", "server runs"),
]


@pytest.fixture(autouse=True)
def environ() -> Iterator[None]:
    """What a command sets for Prefect and MLflow holds for one call here."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def folder(tmp_path: Path, tiny: Tiny) -> Path:
    """Job files, good and bad."""
    write_files(tmp_path, tiny)
    return tmp_path


def write_files(folder: Path, tiny: Tiny) -> None:
    """The files that the cases name."""
    write_job(folder / "good.yaml", tiny.job())
    write_job(folder / "key.yaml", tiny.job(speed=3))
    s3 = {"calibration": "s3://bucket/calibration.npz", "evaluation": str(tiny.evaluation)}
    write_job(folder / "s3.yaml", tiny.job(data=s3))
    (folder / "syntax.yaml").write_text("source: [")
    (folder / "list.yaml").write_text("- source")


def filled(text: str, folder: Path) -> str:
    """With the test's folder in the place that is left for it."""
    return text.replace("{}", str(folder))


def check(code: int, said: str, document: Any, case: Case, folder: Path) -> None:
    """The exit code, the three labels with the words, and the same in the document."""
    found, fix = filled(case[3], folder), case[4]
    assert code == case[2], said
    assert "Traceback" not in said and found in said
    assert all(f"{label + ':':<10}" in said for label in ("found", "expected", "fix")), said
    error = document["error"]
    assert set(error) == {"kind", "found", "expected", "fix"} and all(error.values())
    assert found in error["found"] and fix in error["fix"]
    assert all(error[label] in said for label in ("found", "expected", "fix"))


def name_of(case: Case) -> str:
    """A name for a case."""
    return " ".join(case[0])[:50] + (f" {next(iter(case[1]))}" if case[1] else "")


@pytest.mark.parametrize("case", USAGE + FILES, ids=name_of)
def test_wrong_calls_and_wrong_files(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGATE_STATE", str(folder / "state"))
    for name, value in case[1].items():
        monkeypatch.setenv(name, filled(value, folder))
    arguments = [filled(argument, folder) for argument in case[0]]
    plain = CliRunner().invoke(app, arguments)
    assert plain.stdout == ""
    machine = CliRunner().invoke(app, [*arguments, "--json"])
    assert machine.exit_code == plain.exit_code
    check(plain.exit_code, plain.stderr, json.loads(machine.stdout), case, folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """Each case in text and as a document, in one process for those without a server, and in one for those that are down."""
    folder = tmp_path_factory.mktemp("errors")
    write_files(folder, tiny)
    given: dict[str, Answer] = {}
    api = {"PREFECT_API_URL": f"{NOWHERE}/api"}
    for name, cases, extra in (("none", SERVERS, {}), ("down", DOWN, api)):
        calls: list[dict[str, object]] = []
        for case in cases:
            arguments = [filled(argument, folder) for argument in case[0]]
            environ = case[1] if "PREFECT_API_URL" in case[1] or not extra else case[1] | {"PREFECT_API_URL": ""}
            for suffix, more in (("", []), (" --json", ["--json"])):
                calls.append({"name": name_of(case) + suffix, "arguments": arguments + more, "environ": environ})
        retries = {"PREFECT_CLIENT_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        # Names are those of files as well.
        numbered = [call | {"name": str(index)} for index, call in enumerate(calls)]
        found = run_jobs(folder / "state", folder / name, numbered, bare=True, **retries, **extra)
        given |= {str(call["name"]): found[str(index)] for index, call in enumerate(calls)}
    return folder, given


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVERS + DOWN, ids=name_of)
def test_servers_that_are_not_there(case: Case, answers: tuple[Path, dict[str, Answer]]) -> None:
    folder, given = answers
    plain, machine = given[name_of(case)], given[f"{name_of(case)} --json"]
    assert plain.out == "" and machine.code == plain.code
    check(plain.code, plain.said, json.loads(machine.out), case, folder)


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_a_port_that_is_taken(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, [command, "--mlflow-port", str(port), "--json"])
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == 1 and error["found"] == f"port {port} is taken" and "--mlflow-port" in error["fix"]


@pytest.mark.parametrize("usable", [True, False])
def test_light_doctor_opens_no_session(tmp_path: Path, usable: bool) -> None:
    """Neither a runtime nor a GPU is asked: none is imported. It fails where nothing could be kept."""
    state = tmp_path / "state"
    state.mkdir() if usable else state.write_text("a file")
    script = (
        "import sys\nfrom flows.cli.app import app\ncode = app(['doctor', '--light'], standalone_mode=False)\n"
        "print(sorted({'onnxruntime', 'torch', 'tensorrt', 'pynvml', 'openvino'} & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(state), capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if usable else 1), done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert ("is not writable" in done.stdout) is not usable


def test_doctor_ends_with_1_where_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise InfrastructureError(found="no ONNX Runtime", expected="one", fix="pip install onnxruntime")

    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", f"{NOWHERE}/api")
    monkeypatch.setattr(doctor, "take_inventory", missing)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 1 and not document["any_target_runs"]
    assert {row["mend"] for row in document["targets"]} == {"pip install onnxruntime"}
    assert "does not answer" in document["facts"]["Prefect"]


def test_a_page_that_no_browser_opens_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where it is."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    monkeypatch.setattr("flows.cli.look.registry", contextlib.nullcontext)
    monkeypatch.setattr("tasks.records.run_pages.compare_runs", lambda _client, _names, path: path.touch())
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["compare", "a", "b", "--out", str(page), "--open"])
    assert done.exit_code == 1 and page.exists()
    assert f"found:    no browser could be started for {page}\n" in done.stderr and page.as_uri() in done.stderr


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What `candidates` ends in."""
    raised: list[BaseException] = []

    def ends(*_: object) -> None:
        raise raised[0]

    monkeypatch.setattr("validators.job.read_job.read_job", ends)
    return raised


def test_what_nobody_foresaw_is_told_with_where_its_traceback_is(
    fault: list[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    fault.append(ZeroDivisionError("division by zero\nat password=hunter22"))
    done = CliRunner().invoke(app, ["candidates", "job.yaml"])
    log = tmp_path / "logs" / "last-error.log"
    assert done.exit_code == 1 and done.stdout == ""
    assert "found:    ZeroDivisionError: division by zero\n" in done.stderr and f"report it with {log}" in done.stderr
    assert "ZeroDivisionError" in log.read_text() and "hunter22" not in log.read_text()


def test_ctrl_c_says_how_to_go_on(fault: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/venv/bin/quantgate", "candidates", "my job.yaml"])
    fault.append(KeyboardInterrupt())
    done = CliRunner().invoke(app, ["candidates", "my job.yaml", "--json"])
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["kind"]) == (130, "Interrupted")
    assert error["fix"].endswith("finished work is kept: quantgate candidates 'my job.yaml'")


NOISY = """
import os, subprocess, sys
from pathlib import Path
from flows.cli import console

@console.command
def noisy():
    print("from Python")
    os.write(1, b"from C\\n")
    subprocess.run(["echo", "from a child"], check=True)
    return console.CommandAnswer({"value": float("nan"), "path": Path("/x")}, ("a line",))

try:
    noisy(json=sys.argv[1] == "json")
except console.typer.Exit as ended:
    sys.exit(ended.exit_code)
"""


def test_a_document_is_alone_on_standard_output() -> None:
    """Whoever prints: Python, what knows the stream by its number alone, or a child process."""
    command = [sys.executable, "-c", NOISY]
    done = subprocess.run([*command, "json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"value": None, "path": "/x"}
    assert sorted(done.stderr.splitlines()) == ["from C", "from Python", "from a child"]
    done = subprocess.run([*command, "text"], capture_output=True, text=True, check=True)
    assert done.stderr == "" and sorted(done.stdout.splitlines())[0] == "a line"

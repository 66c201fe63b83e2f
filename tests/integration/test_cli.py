"""The command line as a process: help, usage errors, and what needs no server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Tiny, has_gpu
from databases import lend_mlflow
from driving import environment, write_job
from typer.main import get_command
from typer.testing import CliRunner

from flows.cli.app import GROUPS, app
from validators.targets import facts_of


def quantgate(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of the console script's module, with a state folder of its own."""
    command = [sys.executable, "-m", "flows.cli.app", *arguments]
    env = environment(tmp_path / "state", COLUMNS="200", NO_COLOR="1", TERM="dumb")
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False)


def commands() -> list[str]:
    """The names of all commands."""
    return [
        str(command.name or command.callback.__name__).replace("_", "-")
        for command in app.registered_commands
        if command.callback
    ]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A terminal of 80 columns without colours."""
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    return CliRunner()


@pytest.mark.parametrize("name", commands())
def test_help_of_each_command_fits_a_screen_and_has_an_example(name: str, screen: CliRunner) -> None:
    """The example is parsed as the command would be called; paths in it need not be there."""
    done = screen.invoke(app, [name, "--help"])
    lines = done.output.rstrip().splitlines()
    assert done.exit_code == 0 and len(lines) <= 34 and max(map(len, lines)) <= 80
    (example,) = [line.strip() for line in lines if line.strip().startswith("Example: ")]
    called, *arguments = shlex.split(example.removeprefix("Example: quantgate "))
    assert called == name
    assert any(line.startswith(("│ --json", "│    --json")) for line in lines)
    command = get_command(app).commands[name]  # type: ignore[attr-defined]  # a group has them
    assert command.make_context(name, arguments).params is not None


def test_version_is_one_line(screen: CliRunner) -> None:
    done = screen.invoke(app, ["--version"])
    python = ".".join(map(str, sys.version_info[:3]))
    assert (done.exit_code, done.output) == (0, f"quantgate {version('quantgate')} (Python {python})\n")


def test_list_of_commands_is_grouped_and_fits_a_large_screen(screen: CliRunner) -> None:
    done = screen.invoke(app, ["--help"])
    lines = done.output.rstrip().splitlines()
    assert len(lines) <= 45
    listed = [found[1] for line in lines if (found := re.match(r"│ ([a-z]+(?:-[a-z]+)*) +[A-Z]", line))]
    assert listed == commands() and len(listed) > 20
    assert [title for title in GROUPS if not any(line.startswith(f"╭─ {title} ") for line in lines)] == []
    # Each on one line, or the list would not be read.
    assert len([line for line in lines if line.startswith("│")]) == len(listed) + 3


# Libraries that take a tenth of a second to several seconds to import.
HEAVY = {"fastapi", "great_expectations", "mlflow", "onnx", "onnxruntime", "openvino", "pandas", "prefect", "scipy"} | {
    "scipy.stats",
    "sklearn",
    "torch",
    "transformers",
    "uvicorn",
}
# What `import mlflow` imports itself.
OF_MLFLOW = {"mlflow", "fastapi", "pandas", "scipy"}


@pytest.mark.parametrize(
    ("line", "code", "needed"),
    [
        ("--help", 0, set()),
        ("--version", 0, set()),
        ("candidates job.yaml", 0, {"onnx", "onnxruntime"}),
        ("lint tiny.onnx", 0, {"onnx"}),
        ("doctor", 0, {"onnx", "onnxruntime", "openvino"}),
        ("status", 0, OF_MLFLOW),
        ("retention", 0, OF_MLFLOW),
        # There is no run yet, which shows when the registry has been asked.
        ("report last", 2, OF_MLFLOW),
        ("compare last last", 2, OF_MLFLOW),
    ],
)
def test_commands_that_look_import_only_what_they_need(
    line: str, code: int, needed: set[str], tmp_path: Path, tiny: Tiny
) -> None:
    """In a fresh process. Whoever adds an import that such a command does not need sees its price here."""
    write_job(tmp_path / "job.yaml", tiny.job())
    (tmp_path / "tiny.onnx").symlink_to(tiny.model)
    lend_mlflow(tmp_path / "state" / "mlflow.db")
    script = (
        "import sys\nfrom flows.cli.app import app\ncode = app(sys.argv[1:], standalone_mode=False)\n"
        f"print(*sorted({HEAVY} & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *line.split()],
        env=environment(tmp_path / "state"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == code, done.stderr
    allowed = needed | ({"torch"} if line == "doctor" and has_gpu() else set())
    assert set(done.stdout.splitlines()[-1].split()) - allowed == set()


def test_usage_errors_exit_with_2_and_name_what_is_wrong(tmp_path: Path) -> None:
    done = quantgate(tmp_path, "rnu", "job.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("found:    No such command 'rnu'. Did you mean 'run'?\nexpected: quantgate [OPTIONS]")
    done = quantgate(tmp_path, "run", "none.yaml", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 2 and document["outcome"] == "error" and document["error"]["kind"] == "JobError"
    assert "none.yaml: No such file or directory" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_runs_and_targets(tmp_path: Path, shell: str) -> None:
    """As the shells' own scripts ask: by environment, with what was typed so far."""
    (tmp_path / "state" / "reports" / "0123abcd").mkdir(parents=True)

    def completed(line: str) -> str:
        words = {"_QUANTGATE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
        words |= {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        command = [str(Path(sys.executable).with_name("quantgate"))]
        env = environment(tmp_path / "state", **words)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout

    assert "rollback" in completed("quantgate ro") and "retention" not in completed("quantgate ro")
    assert "0123abcd" in completed("quantgate report 01")
    assert "openvino" in completed("quantgate lint model.onnx --target openv")


def test_a_bad_job_writes_an_error_document(tmp_path: Path, tiny: Tiny) -> None:
    write_job(tmp_path / "job.yaml", tiny.job(speed=3))
    done = quantgate(tmp_path, "run", "job.yaml", "--result", "result.json")
    assert done.returncode == 2
    document = (tmp_path / "result.json").read_text()
    assert '"outcome": "error"' in document
    assert "unknown key `speed`" in document
    assert not (tmp_path / "state").exists(), "a bad job must not start anything"


def test_bad_job_writes_the_files_for_ci(tmp_path: Path, tiny: Tiny) -> None:
    write_job(tmp_path / "job.yaml", tiny.job(speed=3))
    done = quantgate(tmp_path, "run", "job.yaml", "--junit", "junit.xml", "--summary", "summary.md")
    assert done.returncode == 2
    (suite,) = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("name"), suite.get("errors")) == ("run", "1")
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("**error**: ") and "unknown key" in summary


def test_candidates_names_all_and_says_what_cannot_run_here(tmp_path: Path, tiny: Tiny) -> None:
    write_job(tmp_path / "job.yaml", tiny.job(candidates="default", target="ort-cuda"))
    done = quantgate(tmp_path, "candidates", "job.yaml")
    assert done.returncode == 0
    for name in facts_of("ort-cuda").default_candidates:
        assert re.search(rf"^{re.escape(name)}\s.*made and checked, not measured", done.stdout, re.MULTILINE)


def test_doctor_names_every_target_and_the_runtime(tmp_path: Path) -> None:
    done = quantgate(tmp_path, "doctor")
    assert done.returncode == 0
    assert re.search(r"^ort-cpu\s+yes", done.stdout, re.MULTILINE)
    assert f"onnxruntime {version('onnxruntime')}" in done.stdout and "GB free of" in done.stdout
    assert re.search(r"^MLflow +the database .*mlflow.db \(does not exist yet", done.stdout, re.MULTILINE)

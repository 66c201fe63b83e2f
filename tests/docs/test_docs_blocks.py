"""Every block of code on a page is held against the code: run, parsed by what would read it, or found where it was said.

`RULES` has what is done with each kind of block; a kind without a rule fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from conftest import Tiny
from docs_pages import ROOT, Block, blocks, pages
from docs_python import PREPARED, run_blocks
from driving import environment, write_job

from flows.cli.app import app
from tasks.engines.tensorrt.rules import TENSORRT_RULES
from validators.job.read_job import parse_job

# Programs of others, which no test here starts: what is told of them is their own.
OTHERS = {"export", "cp", "echo", "docker", "kubectl", "mkdir", "mlflow", "prefect"}
EXTRAS = set(metadata.metadata("quantgate").get_all("Provides-Extra"))
# Run as they stand, in a folder with the files that they name: they need no server, and take seconds.
CHEAP = ("candidates", "lint")
WHOLE = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}


def name_of(block: Block) -> str:
    return f"{block.page}:{block.line}"


def of_kind(kind: str) -> list[Any]:
    found = [block for block in blocks() if block.kind == kind]
    assert found, f"no block of {kind}: the test would prove nothing"
    return [pytest.param(block, id=name_of(block)) for block in found]


# Commands


def lines_of(script: str) -> list[list[str]]:
    """The commands of a shell script as lists of words, without settings before them, comments and where output goes behind.

    >>> lines_of("A=1 quantgate run x.yaml \\\\\\n  --no-promote  # so\\nmake a && make b > c")
    [['quantgate', 'run', 'x.yaml', '--no-promote'], ['make', 'a'], ['make', 'b']]
    """
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line.split(" > ")[0], comments=True)
        while "&&" in words:
            at = words.index("&&")
            found.append(words[:at])
            words = words[at + 1 :]
        found.append(words)
    without = [line[next((at for at, word in enumerate(line) if "=" not in word), 0) :] for line in found]
    return [line for line in without if line]


def check_quantgate(words: list[str]) -> None:
    """That the command is there and takes these arguments and options; it is not called."""
    group = typer.main.get_command(app)
    with group.make_context("quantgate", list(words[:1]), resilient_parsing=True) as context:
        command = group.get_command(context, words[0])  # type: ignore[attr-defined]  # a group has it
        assert command is not None, f"no command {words[0]}"
        command.make_context(words[0], list(words[1:]), parent=context)


def check_python(words: list[str]) -> None:
    """That the script or module is there."""
    if words[0] == "-m":
        path = ROOT / words[1].replace(".", "/")
        here = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        assert here or find_spec(words[1].partition(".")[0])
    else:
        assert (ROOT / words[0]).is_file(), f"no {words[0]}"


def check_command(words: list[str]) -> None:
    program = words[0].rpartition("/")[2]
    if program == "quantgate":
        check_quantgate(words[1:])
    elif program == "python":
        check_python(words[1:])
    elif program == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert targets and all(f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8") for target in targets)
    elif program in ("pip", "uv"):
        named = [
            name for word in words for names in re.findall(r"quantgate\S*\[(.+?)\]", word) for name in names.split(",")
        ]
        assert set(named) <= EXTRAS
        files = [file for option, file in pairwise(words) if option == "-r"]
        assert all((ROOT / file).is_file() for file in files)
    elif words[0].startswith("infra/"):
        assert os.access(ROOT / words[0], os.X_OK)
    else:
        assert program in OTHERS, f"nothing is known of {program}"


@pytest.mark.parametrize("block", of_kind("bash"))
def test_a_shell_block_names_what_is_there(block: Block) -> None:
    """Commands with their arguments and options, targets of make, scripts."""
    lines = lines_of(block.text)
    assert lines
    for words in lines:
        check_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "quantgate walk",
        "quantgate run",
        "quantgate run job.yaml --fast",
        "make bread",
        "python nowhere.py",
        "rm -rf /",
        "uv pip install 'quantgate[cpu,bread] @ git+https://x'",
        "pip install -r requirements/bread.txt",
    ],
)
def test_a_command_that_is_not_there_is_found(line: str) -> None:
    with pytest.raises((AssertionError, Exception), match=r"No such|Missing|no |assert|nothing is known"):
        check_command(shlex.split(line))


def cheap_commands() -> list[str]:
    said = {shlex.join(words) for block in blocks() if block.kind == "bash" for words in lines_of(block.text)}
    return sorted(line for line in said if line.split()[0] == "quantgate" and line.split()[1] in CHEAP)


@pytest.mark.slow
def test_cheap_commands_run_as_they_stand(tmp_path: Path, tiny: Tiny) -> None:
    """With the tiny model under the names that the pages use."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "model.onnx").symlink_to(tiny.model)
    write_job(tmp_path / "job.yaml", tiny.job())
    assert len(cheap_commands()) >= 3
    for line in cheap_commands():
        command = [sys.executable, "-m", "flows.cli.app", *shlex.split(line)[1:]]
        env = environment(tmp_path / "state")
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


# Jobs, workflows, policies


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """One mapping over another, mappings in them too."""
    both = {key: merge(base[key], over[key]) for key in base.keys() & over.keys() if isinstance(over[key], dict)}
    return base | over | both


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_a_yaml_block_is_a_job_or_a_workflow(block: Block, tmp_path: Path) -> None:
    """A part of a job is one when it is completed; a workflow is held against its schema, and its commands as those above."""
    read = yaml.safe_load(block.text)
    if "jobs" not in read:
        merged = merge(WHOLE, read)
        job = parse_job(merged, base=Path("/data"))
        assert job.data.evaluation, "completed"
        return
    path = tmp_path / "workflow.yaml"
    path.write_text(block.text, encoding="utf-8")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [step for job in read["jobs"].values() for step in job["steps"]]
    scripts = [step["run"] for step in steps if "run" in step]
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for line in (line for script in scripts for line in script.splitlines() if line.startswith("uv ")):
        check_command(shlex.split(line.replace("$QUANTGATE", read["env"]["QUANTGATE"])))
    called = [found for script in scripts for found in re.findall(r"bin/quantgate ([^;}\n]+)", script)]
    assert called, "a workflow that does not use it"
    for line in called:
        check_quantgate(shlex.split(line.replace("$JOB", "job.yaml")))


@pytest.mark.parametrize(("code", "ends", "calls"), [(0, 0, 1), (1, 1, 2), (2, 2, 1), (3, 0, 1), (4, 4, 1)])
def test_the_workflow_does_with_an_exit_code_what_its_page_says(
    code: int, ends: int, calls: int, tmp_path: Path
) -> None:
    """With a program in quantgate's place that ends with it: infrastructure is tried twice, no variant is no failure."""
    (text,) = [block.text for block in blocks() if block.page == "docs/ci.md" and block.kind == "yaml"]
    steps = yaml.safe_load(text)["jobs"]["quantize"]["steps"]
    (script,) = [step["run"] for step in steps if "case" in step.get("run", "")]
    program = tmp_path / "environment" / "bin" / "quantgate"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho called >> calls\necho \'{{"reason": "said"}}\' > result.json\nexit {code}\n')
    program.chmod(0o755)
    # As GitHub starts it.
    played = ["bash", "-e", "-c", script.replace("sleep 60", ":")]
    done = subprocess.run(played, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "calls").read_text().count("called")) == (ends, calls), done.stderr
    assert ("::notice::said" in done.stdout, "::warning::" in done.stdout) == (code == 0, code == 3)


@pytest.mark.parametrize("block", of_kind("json"))
def test_a_json_block_reads(block: Block) -> None:
    assert json.loads(block.text)


# Python


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in blocks() if block.kind == "python"}))
def test_the_python_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    """One after the other in one process, in a folder with what the page takes for given; what they leave is checked."""
    assert page in PREPARED, f"tests/support/docs_python.py says nothing of {page}"
    run_blocks(page, [block.text for block in blocks() if (block.page, block.kind) == (page, "python")], tmp_path)


# Text: what a program said, and drawings


def test_what_the_linter_says_is_what_its_rules_say() -> None:
    (text,) = [block.text for block in blocks() if block.page == "docs/lint.md" and block.kind == "text"]
    shown = {line.split("  ")[0]: line for line in re.findall(r"TRT\d+ .*", text)}
    rules = {rule.title: rule for rule in TENSORRT_RULES}
    assert len(shown) == 3
    for title, line in shown.items():
        assert line.endswith("  " + rules[title].fix)


DRAWINGS = {
    "docs/lint.md": "what the linter says: held above",
    "docs/storage.md": "places on S3, which tests/system/test_shared_store.py looks at",
    "docs/triggers.md": "a drawing of who tells whom",
    "CONTRIBUTING.md": "the rooms: their folders are there",
}


@pytest.mark.parametrize("block", of_kind("text"))
def test_a_text_block_is_known(block: Block) -> None:
    assert block.page in DRAWINGS
    if block.page == "CONTRIBUTING.md":
        top = ""
        for line in block.text.splitlines():
            name = line.split()[0]
            top = top if line.startswith(" ") else name
            assert (ROOT / top / (name if line.startswith(" ") else "")).is_dir(), name


@pytest.mark.parametrize("block", of_kind("toml"))
def test_a_toml_block_is_that_of_the_example(block: Block) -> None:
    """The page shows the package that the tests install, its module too."""
    shown = {one.text for one in blocks() if one.page == block.page}
    files = {path.read_text() for path in (ROOT / "examples" / "target").iterdir() if path.suffix in (".toml", ".py")}
    assert block.page == "docs/new-target.md" and len(files) == 2 and files <= shown


RULES: dict[str, Callable[..., None]] = {
    "bash": test_a_shell_block_names_what_is_there,
    "yaml": test_a_yaml_block_is_a_job_or_a_workflow,
    "json": test_a_json_block_reads,
    "toml": test_a_toml_block_is_that_of_the_example,
    "python": test_the_python_blocks_of_a_page_run,
    "text": test_a_text_block_is_known,
}


def test_every_block_is_of_a_kind_with_a_rule() -> None:
    assert [name_of(block) for block in blocks() if block.kind not in RULES] == []
    assert len(blocks()) > 60


def test_links_on_pages_outside_the_site_lead_somewhere() -> None:
    """The build of the site looks at those of all others."""
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", pages()["README.md"])
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    pictures = re.findall(r'(?:srcset|src)="([^"]+)"', pages()["README.md"])
    assert [picture for picture in pictures if not (ROOT / picture).exists()] == []

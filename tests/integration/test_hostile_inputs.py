"""Hostile inputs, each through a whole command: the documented exit code, a clear error, and files left as they are.

All calls run in one child process, with limits on memory and time, and without Prefect's engine, which takes a second a call;
`tests/system/test_bad_input.py` is with it.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
from advice import apply_advice, settings_of
from driving import Answer, run_jobs
from hostile_files import good_folder
from hostile_inputs import BAD, HOSTILE, Hostile
from hostile_versions import HOSTILE_VERSIONS

from validators.digests import digest_file
from validators.job.read_job import read_job
from validators.plain_text import plain

ROWS = [*HOSTILE, *HOSTILE_VERSIONS]
# What `init` is asked for.
TARGETS = {"decoder": "ort-genai"}
# Address space beyond that of the process, for each call.
MORE_MB = 3000
# Advice that would change or lose data. A warning against it has "lose", "invent" or "scramble" in its place.
HARMFUL = re.compile(
    r"delet|\btruncate\b|\bdrop (the|or|them|those|all)\b|"
    r"remove (the )?(label|row|sample|file)|remove their|shuffl|reorder|sort the|reshape\(|overwrite|"
    r"nan_to_num|fillna|fill (in|with)|round\(|\bpad\b|\bclip|astype\('?u?int(8|16|32)|disable|allow_pickle|"
    r"ignore: \[(label|x\.)"
)


@dataclass(frozen=True)
class Seen:
    """The answer to a hostile input, the files that differ afterwards, and the job that `init` wrote."""

    answer: Answer
    changed: list[str]
    written: Path
    after: Answer | None = None
    """The answer after the advice was applied; None for advice that is for a person."""


def state_of(folder: Path) -> dict[str, str]:
    """The content of every file below a folder: a digest, or the kind of what is not a regular file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path.relative_to(folder))] = digest_file(path) if stat.S_ISREG(mode) else oct(mode)
    return found


def call_of(row: Hostile, folder: Path, number: int) -> dict[str, object]:
    """The call of a row for `drive.answer`: a command about the folder, the version or the runs that it holds."""
    command, _, kind = row.command.partition(" ")
    written = folder.parent / f"{number}.yaml"
    source = f"models:/{folder.name}/1" if kind else str(folder / "model.onnx")
    arguments = {
        "validate": ["validate", str(folder / "job.yaml")],
        "init": ["init", source, "--out", str(written), "--target", TARGETS.get(kind, "ort-cpu")],
        "compare": ["compare", "--out", str(written)],
    }
    allowed = {"QUANTGATE_ALLOWED_HOOKS": f"reader:picture@{folder}"}
    call = {"name": str(number), "arguments": arguments[command], "environ": allowed, "more_mb": MORE_MB}
    return call | ({"recorded" if kind == "runs" else "version": str(folder)} if kind else {})


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The rows that were selected, by name."""
    base = tmp_path_factory.mktemp("hostile")
    items = [item for item in request.session.items if item.path == request.path]
    chosen = {callspec.params["row"].name for item in items if (callspec := getattr(item, "callspec", None))}
    good_folder(base / "good")
    # The first call imports libraries, which take more than the limit.
    calls: list[dict[str, object]] = [{"name": "good", "arguments": ["validate", str(base / "good" / "job.yaml")]}]
    before = {}
    for number, row in enumerate(ROWS):
        if row.name not in chosen:
            continue
        folder = base / f"job-{number}"
        good_folder(folder)
        row.plant(folder)
        before[number] = state_of(folder)
        calls.append(call_of(row, folder, number))
    answers = run_jobs(base / "state", base / "runs", calls, plain=True)
    assert answers["good"].code == 0, answers["good"].said
    changed = {number: differing(files, state_of(base / f"job-{number}")) for number, files in before.items()}
    again = [
        {"name": str(number), "arguments": ["validate", str(base / f"job-{number}" / "job.yaml")]}
        for number in before
        if ROWS[number].command == "validate"
        and apply_advice(*(told(answers[str(number)].said, part) for part in ("found", "fix")), base / f"job-{number}")
    ]
    after = run_jobs(base / "state", base / "again", again, plain=True) if again else {}
    return {
        ROWS[number].name: Seen(answers[str(number)], changed[number], base / f"{number}.yaml", after.get(str(number)))
        for number in before
    }


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The files that are not in both, or not the same, without what Python keeps of the job's code."""
    return [name for name, _ in before.items() ^ after.items() if "__pycache__" not in name]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_hostile_input_is_answered(row: Hostile, seen: dict[str, Seen]) -> None:
    answer, changed = seen[row.name].answer, seen[row.name].changed
    assert answer.code == row.code, answer.said
    assert "Traceback" not in answer.said and "last-error.log" not in answer.said
    assert not changed and not answer.exceeded
    # Nothing that a terminal obeys.
    assert plain(answer.said) == answer.said
    if row.code != BAD:
        assert row.found in answer.said, answer.said
        # A name of the model may not add a key to the job.
        assert row.command != "init" or Path(read_job(seen[row.name].written).source).name == "model.onnx"
        return
    found, expected, fix = (told(answer.said, label) for label in ("found", "expected", "fix"))
    assert row.found in found and row.fix in fix, answer.said
    assert expected and fix and len(found) < 2000
    assert not HARMFUL.search(fix), fix
    after = seen[row.name].after
    print("APPLIED", row.name, after and after.code, after and told(after.said, "found")[:150])
    assert after is None or after.code != BAD or told(after.said, "found") != found, after.said
    assert after is not None or row.command != "validate" or not settings_of(fix), fix


def told(said: str, label: str) -> str:
    """The text of one part of an error."""
    return next((line[10:] for line in said.splitlines() if line.startswith(f"{label}:")), "")


def test_names_are_unique() -> None:
    assert len({row.name for row in HOSTILE}) == len(HOSTILE) >= 60

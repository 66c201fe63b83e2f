"""What `quantgate export` says where it cannot know what is meant; with a registry it is in test_version_served.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "no folder"),
        (("--triton", "a", "--out", "b"), "--triton and --out"),
        (("--ovms", "a", "--out", "b"), "--ovms and --out"),
        (("--genai", "a", "--gguf", "b"), "--genai and --gguf"),
        (("--gguf", "a", "--max-batch", "4"), "--max-batch with --gguf"),
        (("--ovms", "a", "--max-batch", "4"), "--max-batch with --ovms"),
        (("--out", "b", "--max-batch", "4"), "--max-batch with --out"),
        (("--max-batch", "4"), "no folder"),
    ],
)
def test_one_folder_and_what_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], found: str
) -> None:
    monkeypatch.setattr("flows.cli.export.prepared", lambda: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", "m", "--target", "ort-cpu", *arguments])
    assert done.exit_code == 2
    assert f"found:    {found}\n" in done.stderr and "fix:      pass one of them\n" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was made"

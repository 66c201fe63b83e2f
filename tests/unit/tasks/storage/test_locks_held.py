"""Locks of a folder: one holder at a time, among threads' and processes' files, freed by a death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.storage.locks import FolderLocks, lock_key
from validators.errors import LockTaken

HOLDER = """
import sys, time
from pathlib import Path
from tasks.storage.locks import FolderLocks
with FolderLocks(Path(sys.argv[1])).hold("promotion-m-ort-cpu", wait_seconds=1):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_held_by_one_and_freed_at_the_end(tmp_path: Path) -> None:
    """Of another name, or after the block, nothing is in the way."""
    locks = FolderLocks(tmp_path / "locks")
    with locks.hold("a", wait_seconds=0) as held:
        held.check()
        with pytest.raises(LockTaken, match="a is held by process"), locks.hold("a", wait_seconds=0):
            pass
        with locks.hold("b", wait_seconds=0):
            pass
    with locks.hold("a", wait_seconds=0):
        pass


def test_a_holder_that_is_killed_frees_it(tmp_path: Path) -> None:
    """SIGKILL runs nothing of the holder's: the kernel frees the file."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"held\n"
        locks = FolderLocks(tmp_path)
        with (
            pytest.raises(LockTaken, match=f"process {process.pid}"),
            locks.hold("promotion-m-ort-cpu", wait_seconds=0),
        ):
            pass
        process.kill()
    with locks.hold("promotion-m-ort-cpu", wait_seconds=10):
        pass


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a\0b", "a/b", "ä b", "n" * 300, "模" * 256])
def test_a_name_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    """Whatever a model is called; different names are different files."""
    with FolderLocks(tmp_path).hold(name, wait_seconds=0):
        (file,) = tmp_path.iterdir()
        assert file.parent == tmp_path and file.name == f"{lock_key(name)}.lock"
        assert "/" not in lock_key(name)

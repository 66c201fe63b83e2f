"""Processes that load models of other people: resource limits, no secrets, no network if the kernel allows dropping it.

A loaded model may run code, through a flaw in torch or by a pickle that the operator allowed.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from validators.child_environment import child_environment

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
PROCESSOR_SECONDS = 3600
OPEN_FILES = 1024
# Longest life of such a process, in seconds.
PATIENCE_SECONDS = 7200.0
# The largest file that it may write: a multiple of the model file's size, plus a constant in bytes.
WRITTEN_SIZES, WRITTEN_BYTES = 8, 1 << 30
# Limit of the description of one error.
ERROR_CHARACTERS = 300
# Colors and other codes of a terminal (ECMA-48, section 5.4).
_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Files of libraries and of this program, and code that torch generates.
_OTHERS = re.compile(rf"/(site|dist)-packages/|/lib/python3|^<|^{re.escape(str(ROOT / 'tasks'))}/")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def confined_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process whose home is a temporary folder."""
    return module_environment() | OFFLINE | {"HOME": str(folder), "TMPDIR": str(folder)}


def module_environment(*more: str) -> dict[str, str]:
    """Return the variables that `child_environment` keeps, with this program on the path of modules."""
    kept = child_environment(*more)
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))}


def run_module(module: str, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own to its end; `settings` are those of `subprocess.run`, such as `env`.

    Raises:
        TimeoutExpired: the process was killed after `timeout` seconds.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **settings)


def confine(written_bytes: int) -> bool:
    """Drop privileges that loading a model does not need, and return True if network access could be dropped too.

    `written_bytes` is the largest file that the process may write.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, PROCESSOR_SECONDS),
        (resource.RLIMIT_FSIZE, written_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        with suppress(ValueError, OSError):  # the limit is lower already
            resource.setrlimit(limit, (value, value))
    # Root may unshare the network; other users need a new user namespace too, which some systems forbid.
    return not libc.unshare(CLONE_NEWNET) or not libc.unshare(CLONE_NEWUSER | CLONE_NEWNET)


def first_cause(error: BaseException) -> str:
    """Return the first cause of an error and what was raised from it, on one line, without the codes of a terminal.

    Libraries raise a general error from the one that names the operator. The last line of the model's own code leads.
    """
    texts: list[str] = []
    place = ""
    cause: BaseException | None = error
    while cause is not None:
        lines = _CODES.sub("", str(cause)).strip().splitlines() or ["no message"]
        texts.insert(0, f"{type(cause).__name__}: {lines[0]}"[:ERROR_CHARACTERS])
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not _OTHERS.search(frame.filename)]
        place = f"at `{frames[-1].line}`: " if frames else place
        cause = cause.__cause__
    return place + "; raised as ".join(texts[:2])

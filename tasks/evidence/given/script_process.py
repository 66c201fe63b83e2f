"""The process in which a job's own script makes a file: it gets its orders as JSON and writes its answer as JSON.

It imports nothing of quantgate and nothing but the standard library, since it may run in an environment of the script's own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
# linux/landlock.h: numbers of the calls, which are the same on every processor, and rights by the version that has them.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
WRITING = {1: WRITE_FILE | 0b1_1111_1111 << 4, 2: 1 << 13, 3: TRUNCATE}
# Devices that libraries write to: shared memory, the null device, and GPUs.
DEVICES = ("/dev/shm", "/dev/null", "/dev/nvidia*", "/dev/dri/*")  # noqa: S108  # no temporary file is made there


def main(orders: dict[str, Any]) -> dict[str, str]:
    """Call the function with the paths of source, calibration samples and work folder; return the path, or the error."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, orders["written_bytes"]),
        (resource.RLIMIT_AS, orders["memory_bytes"] or resource.RLIM_INFINITY),
    ):
        with suppress(ValueError, OSError):  # the limit is lower already
            resource.setrlimit(limit, (value, value))
    shut_in(Path(orders["answer"]).parent)
    path = Path(orders["file"])
    sys.path.append(str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None  # a .py file always has both
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        made = getattr(module, orders["function"])(
            *(Path(orders[name]) for name in ("source", "calibration", "folder"))
        )
    except BaseException as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    if not isinstance(made, (str, os.PathLike)):
        return {"error": f"it returned {type(made).__name__}, where the path of a file was expected"}
    return {"path": str(Path(orders["folder"]) / made)}


def shut_in(folder: Path) -> None:
    """Let this process, and those that it starts, write to no file outside of the folder, if the kernel has Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    handled = sum(rights for since, rights in WRITING.items() if since <= version)
    if not handled:
        return
    rules = libc.syscall(CREATE_RULESET, struct.pack("Q", handled), 8, 0)
    for place in (folder, *(path for pattern in DEVICES for path in Path("/").glob(pattern[1:]))):
        rights = handled if place.is_dir() else handled & (WRITE_FILE | TRUNCATE)
        file = os.open(place, os.O_PATH)
        libc.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", rights, file), 0)
        os.close(file)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.syscall(RESTRICT_SELF, rules, 0)


if __name__ == "__main__":
    told = json.load(sys.stdin)
    answer = main(told)
    Path(told["answer"]).write_text(json.dumps(answer), encoding="utf-8")

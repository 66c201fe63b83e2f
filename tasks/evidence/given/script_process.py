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
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


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


if __name__ == "__main__":
    told = json.load(sys.stdin)
    answer = main(told)
    Path(told["answer"]).write_text(json.dumps(answer), encoding="utf-8")

"""Process that loads a model of another flavor and writes it as ONNX; `torch_export` runs it with `python -m`.

A loaded model may run code, through a flaw in torch or by a pickle that the operator allowed. So the process has resource
limits, no secrets in its environment, and no network if the kernel allows dropping it. It has the file access of its user.
Orders are lines of JSON on standard input, answers are lines of JSON on standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from tasks.evidence import original_models

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
PROCESSOR_SECONDS = 3600
OPEN_FILES = 1024

LOADERS = {
    "program": original_models.from_program,
    "pickle": original_models.from_pickle,
    "transformers": original_models.from_transformers,
    "sentence_transformers": original_models.from_sentence_transformers,
    "keras": original_models.from_keras,
    "sklearn": original_models.from_sklearn,
}


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


def main() -> None:
    # Keep the model's prints out of the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    has_network = not confine(order["written_bytes"])

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        run = LOADERS[order["kind"]](order)
        answer({"has_network": has_network})
        asked = json.loads(sys.stdin.readline())
        with np.load(asked["batch"], allow_pickle=False) as archive:
            np.savez(asked["outputs"], *run({name: archive[name] for name in asked["names"]}))
        answer({})
    except Exception as error:  # the model, the conversion of its operators, or its pickle may raise anything
        answer({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    main()

"""Process that loads a PyTorch model and exports it; `torch_export` runs it with `python -m`.

A loaded model may run code, through a flaw in torch or by a pickle that the operator allowed. So the process has resource
limits, no secrets in its environment, and no network if the kernel allows dropping it. It has the file access of its user.
Orders are lines of JSON on standard input, answers are lines of JSON on standard output.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import logging
import os
import resource
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
PROCESSOR_SECONDS = 3600
OPEN_FILES = 1024

# The newest opset that all the pinned runtimes read, with its IR version.
OPSET = 21
IR_VERSION = 10


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
        exported = _export(order)
        answer({"has_network": has_network})
        asked = json.loads(sys.stdin.readline())
        _run(exported, asked)
        answer({})
    except Exception as error:  # the model, the conversion of its operators, or its pickle may raise anything
        answer({"error": f"{type(error).__name__}: {error}"[:2000]})


def _export(order: dict[str, Any]) -> torch.export.ExportedProgram:
    """Write the model as ONNX; return the program that was converted."""
    import onnx
    import torch

    exported = _unpickled(order) if order["samples"] else torch.export.load(order["program"])
    # The exporter also logs that torchvision is not installed; no operator here needs it.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # The exporter warns about its own internals (deprecated calls in its passes), which no user can act on.
        warnings.simplefilter("ignore")
        converted = torch.onnx.export(exported, dynamo=True, opset_version=OPSET, verbose=False)
    assert converted is not None
    model = converted.model_proto
    model.ir_version = IR_VERSION
    onnx.save(model, order["onnx"])
    return exported


def _unpickled(order: dict[str, Any]) -> torch.export.ExportedProgram:
    """Return the program of a pickled module, traced on the samples whose names are parameters of `forward`."""
    import torch

    sys.path[:0] = order["code"]
    module = torch.load(order["program"], map_location="cpu", weights_only=False)
    assert isinstance(module, torch.nn.Module), f"the file holds a {type(module).__name__}, not a torch.nn.Module"
    samples = _arrays(order["samples"])
    taken = list(inspect.signature(module.forward).parameters)
    names = [name for name in taken if name in samples]
    assert names, f"`forward` takes {taken}, but the data has {sorted(samples)}: the names must match"
    tensors = tuple(torch.from_numpy(samples[name]) for name in names)
    shapes = tuple({0: torch.export.Dim("batch")} for _ in names)
    return torch.export.export(module.eval(), tensors, dynamic_shapes=shapes)


def _run(exported: torch.export.ExportedProgram, asked: dict[str, Any]) -> None:
    """Write the program's outputs on a batch, in the order of the export: containers are flattened on both sides."""
    import torch
    from torch.utils import _pytree as pytree

    batch = _arrays(asked["batch"])
    tensors = [torch.from_numpy(batch[name]) for name in asked["names"]]
    args, kwargs = pytree.tree_unflatten(tensors, exported.call_spec.in_spec)
    with torch.no_grad():
        outputs = exported.module()(*args, **kwargs)
    given = [output for output in pytree.tree_leaves(outputs) if isinstance(output, torch.Tensor)]
    np.savez(asked["outputs"], *(output.numpy() for output in given))


def _arrays(path: str) -> dict[str, Any]:
    with np.load(Path(path), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


if __name__ == "__main__":
    main()

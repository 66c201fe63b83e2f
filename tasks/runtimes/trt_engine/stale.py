"""Whether an engine may be loaded here, or is another machine's.

What must be equal, and why:

| what | engines for one GPU | ahead of time | source |
|---|---|---|---|
| digests of the ONNX file and of the engine | equal | equal | it is the engine that was approved, made from that file |
| runtime and version, to the last number | equal | equal | engines run on the version that built them [1] |
| compute capability | equal | among those built for | engines are for one architecture [1] |
| GPU model | equal | - | kernels were chosen by their times on that model [1] |
| driver | equal | - | those times, and the approval with them, are that driver's |

[1] NVIDIA TensorRT documentation, "Engine Compatibility": without the flags for version or hardware compatibility, which
quantgate does not set.

NVIDIA lets an engine run under a newer driver. quantgate's approval holds for the driver that it was measured with, so a new
one makes the engine stale here as everywhere else: it is built again, from the approved file, which takes minutes and with
the timing cache less; and the next nightly run approves it for the new driver.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def why_stale(manifest: dict[str, Any], here: dict[str, str], files: dict[str, str]) -> str | None:
    """What differs between an engine's manifest and this machine, in words; None if the engine may be loaded.

    `manifest` has the fields of `validators.records.engines.EngineManifest`. `here` has `runtime`, `runtime_version`, `gpu`,
    `compute_capability` and `driver`; `files` the digests found, as `onnx_digest` and `engine_digest`.

    Raises:
        KeyError: a manifest, machine or digest that lacks one of these: what is not known is not taken for equal.
    """
    ahead_of_time = manifest["gpu"] is None
    differ = [
        _differ(what, manifest[key], files[key])
        for what, key in (("ONNX file", "onnx_digest"), ("engine file", "engine_digest"))
    ]
    differ += [
        _differ(what, manifest[key], here[key])
        for what, key in (("runtime", "runtime"), ("version", "runtime_version"))
    ]
    if ahead_of_time:
        built_for = list(manifest["build"]["compute_capabilities"])
        if here["compute_capability"] not in built_for:
            differ.append(
                f"compute capability {here['compute_capability']}, built for {', '.join(built_for) or 'none'}"
            )
    else:
        differ += [
            _differ(what, manifest[key], here[key])
            for what, key in (("GPU", "gpu"), ("compute capability", "compute_capability"), ("driver", "driver"))
        ]
    return "; ".join(text for text in differ if text) or None


def _differ(what: str, built: str, found: str) -> str | None:
    return None if built == found else f"{what} {found}, built with {built}"


def same_machine(manifest: dict[str, Any], here: dict[str, str]) -> bool:
    """Whether kernels timed for the manifest's engine were timed on such a GPU, by such a version: its timing cache helps."""
    return all(manifest[key] == here[key] for key in ("runtime", "runtime_version", "gpu", "compute_capability"))


# Not `validators.digests`: this folder goes to consumers, and may import nothing of quantgate.
def digest_file(path: Path) -> str:
    """The sha256 of a file, in 64 hexadecimal characters."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_onnx(path: Path) -> str:
    """The digest of an ONNX file and, if there are any, its weights beside it (`<name>.data`), as `onnx_digest` has it."""
    beside = path.with_name(f"{path.name}.data")
    if not beside.exists():
        return digest_file(path)
    both = json.dumps([digest_file(path), digest_file(beside)], separators=(",", ":"))
    return hashlib.sha256(both.encode()).hexdigest()

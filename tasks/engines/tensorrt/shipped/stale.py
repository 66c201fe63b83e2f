"""Check whether an engine may be loaded on this machine or is stale.

These must be equal:

| what | engines for one GPU | ahead of time | source |
|---|---|---|---|
| digests of the ONNX file and of the engine | equal | equal | it is the engine that was approved, made from that file |
| runtime and version, to the last number | equal | equal | engines run on the version that built them [1] |
| compute capability | equal | among those built for | engines are for one architecture [1] |
| GPU model | equal | - | kernels were chosen by their times on that model [1] |
| driver | equal | - | those times, and the approval with them, are that driver's |

[1] NVIDIA TensorRT documentation, "Engine Compatibility": without the flags for version or hardware compatibility, which
quantgate does not set.

NVIDIA lets an engine run under a newer driver. quantgate's approval holds only for the driver of the measurement, so a new
driver makes the engine stale. It is then built again from the approved file, which takes minutes, or less with the timing
cache. The next nightly run approves it for the new driver.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def why_stale(manifest: dict[str, Any], here: dict[str, str], files: dict[str, str]) -> str | None:
    """Return the differences between an engine's manifest and this machine, in words; None if the engine may be loaded.

    `manifest` has the fields of `validators.records.engines.EngineManifest`. `here` has `runtime`, `runtime_version`, `gpu`,
    `compute_capability` and `driver`. `files` has the digests found, `onnx_digest` and `engine_digest`.

    Raises:
        KeyError: one of these keys is missing: an unknown value never counts as equal.
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
    """Return whether the engine's timing cache applies here: same GPU model, compute capability, runtime and version."""
    return all(manifest[key] == here[key] for key in ("runtime", "runtime_version", "gpu", "compute_capability"))


# Not `validators.digests`: this folder goes to consumers, and may import nothing of quantgate.
def digest_file(path: Path) -> str:
    """Return the sha256 of a file, in 64 hexadecimal characters."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_onnx(path: Path) -> str:
    """Return the `onnx_digest` of an ONNX file and its external weights, `<name>.data`, if any."""
    beside = path.with_name(f"{path.name}.data")
    if not beside.exists():
        return digest_file(path)
    both = json.dumps([digest_file(path), digest_file(beside)], separators=(",", ":"))
    return hashlib.sha256(both.encode()).hexdigest()

"""Engine of a registered version for a consumer: loaded on the machine type that it was approved on, else rebuilt or refused.

`manifest.json` beside the folder of the variant has these keys for the engine:

| key | value |
|---|---|
| `files` | sha256 by name of each file in the folder: `model.onnx` (and `.data`), `engine.plan` and, if any, `timing.cache` |
| `engine` | the fields of `validators.records.engines.EngineManifest`, as `dataclasses.asdict` gives them |
| `inputs` | numpy dtype by input name |
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from .api import load_api, runtime_of
from .build import build_plan
from .cuda import gpu_here
from .files import check_files, keep, read_kept
from .run import EngineRunner
from .stale import digest_file, digest_onnx, same_machine, why_stale

ONNX, ENGINE, TIMING_CACHE = "model.onnx", "engine.plan", "timing.cache"
# Environment variable for a stale engine: "warn" (default) and "allow" rebuild it, "refuse" raises. The same variable applies
# in `tasks/champion/consumer.py` to every mismatch between a version and the machine that loads it.
POLICY = "QUANTGATE_MISMATCH"
# Environment variable: a folder where engines that were rebuilt here are kept.
CACHE = "QUANTGATE_CACHE"
# Former name of that variable. Setting it is an error, since its "refuse" must not be ignored silently.
FORMER = "QUANTGATE_STALE_ENGINE"


def open_version(folder: Path, manifest: dict[str, Any]) -> EngineRunner:
    """Load the engine in a version's folder if it fits this machine; otherwise build one here from the ONNX file.

    An engine that was built here is kept in the folder `QUANTGATE_CACHE`, if it is set, and loaded from there the next time.

    Raises:
        RuntimeError: a file differs from the approved one, there is no GPU, the engine is stale and
            QUANTGATE_MISMATCH=refuse, or it cannot be built or loaded here.
        ImportError: TensorRT is missing.
    """
    check_files(folder, manifest["files"])
    api = load_api()
    engine = manifest["engine"]
    here = machine(api)
    found = {"onnx_digest": digest_onnx(folder / ONNX), "engine_digest": digest_file(folder / ENGINE)}
    if found["onnx_digest"] != engine["onnx_digest"]:  # a rebuild would start from this file
        raise RuntimeError(
            f"found {ONNX} with digest {found['onnx_digest']}; expected {engine['onnx_digest']}, which was approved; "
            "download the version again"
        )
    why = why_stale(engine, here, found)
    if why is None:
        return EngineRunner((folder / ENGINE).read_bytes(), api)
    if _refuses():
        raise RuntimeError(
            f"found a stale engine: {why}; expected the machine that it was approved on; load it there, or set {POLICY}=warn"
        )
    kept = _kept(engine, here)
    built = read_kept(kept) if kept else None
    how = f"one that was built here before is in {CACHE}" if built else f"it is rebuilt from {ONNX}"
    if kept is None:
        how += f" at each start, unless {CACHE} names a folder to keep it in"
    warnings.warn(
        f"the engine is stale: {why}; {how}. Speed and accuracy were approved elsewhere and may "
        "differ; run quantgate on such a machine",
        stacklevel=3,
    )
    if built is None:
        built = _rebuild(folder, manifest, here)
        if kept and (failed := keep(kept, built)):
            warnings.warn(f"the rebuilt engine is not kept: {failed}", stacklevel=3)
    return EngineRunner(built, api)


def _kept(engine: dict[str, Any], here: dict[str, str]) -> Path | None:
    """Return the file of the engine that was rebuilt for this machine; None without `QUANTGATE_CACHE`.

    Its name is a digest of what the build depends on: the ONNX file, the settings, the runtime, the GPU and its driver.
    """
    place = os.environ.get(CACHE)
    if not place:
        return None
    depends = [engine["onnx_digest"], engine["build"], {name: here[name] for name in sorted(here) if name != "uuid"}]
    text = json.dumps(depends, sort_keys=True, default=list)
    return Path(place) / f"{hashlib.sha256(text.encode()).hexdigest()}.plan"


def _refuses() -> bool:
    """Return whether a stale engine is an error.

    Raises:
        RuntimeError: the variable is neither `warn`, `refuse` nor `allow`, or only its former name is set.
    """
    if POLICY not in os.environ and FORMER in os.environ:
        raise RuntimeError(f"found {FORMER}; expected {POLICY}, which replaced it; set that to warn or refuse")
    answer = os.environ.get(POLICY, "warn")
    if answer not in ("warn", "refuse", "allow"):
        raise RuntimeError(f"found {POLICY}={answer}; expected warn, refuse or allow; set one of them")
    return answer == "refuse"


def machine(api: ModuleType) -> dict[str, str]:
    """Return the description of this machine that `why_stale` compares.

    Raises:
        RuntimeError: there is no GPU.
    """
    gpu = gpu_here()
    if gpu is None:
        raise RuntimeError("found no NVIDIA GPU; expected one, with its driver; use the champion of ort-cpu")
    return {**gpu, "runtime": runtime_of(api), "runtime_version": api.__version__}


def _rebuild(folder: Path, manifest: dict[str, Any], here: dict[str, str]) -> bytes:
    """Build the engine for this machine, with the profile and settings of the approved one.

    The timing cache is used on the same GPU and runtime version only: the rebuild then picks the approved kernels.
    """
    engine = manifest["engine"]
    settings = engine["build"]
    timed = None
    if TIMING_CACHE in manifest["files"] and same_machine(engine, here):
        timed = (folder / TIMING_CACHE).read_bytes()
    # Manifests of earlier versions have no values.
    profile, values = (
        {
            name: (tuple(ends["minimum"]), tuple(ends["optimum"]), tuple(ends["maximum"]))
            for name, ends in settings.get(key, {}).items()
        }
        for key in ("profile", "values")
    )
    plan = build_plan(
        str(folder / ONNX),
        profile=profile,
        values=values,
        workspace_mb=settings["workspace_mb"],
        tf32=settings["tf32"],
        timing_cache=timed,
    )
    if plan.engine is None:
        errors = [error.text for error in plan.errors] or [
            text for kind, text in plan.messages if kind.endswith("ERROR")
        ]
        raise RuntimeError(
            f"found that TensorRT {plan.version} does not build {ONNX}: {'; '.join(errors[:3])}; expected an engine; "
            f"install the version that it was approved on, {engine['runtime_version']}"
        )
    return plan.engine

"""Build of TensorRT engines: the installed runtimes, the child process that builds, and its results.

The builder runs in a child process: it may crash or be killed for its memory, and TensorRT has one logger per process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.engines.tensorrt.build_process import read_log, run_builder
from tasks.engines.tensorrt.build_process_child import ANSWER, ENGINE, LAYERS, LOG, TIMING_CACHE
from tasks.engines.tensorrt.errors import refusal_of, refused_warning
from tasks.engines.tensorrt.layers import layers_in_log, parse_layers_json
from tasks.engines.tensorrt.shipped.api import OLDEST, RUNTIMES, Runtime
from tasks.engines.tensorrt.shipped.build import NodeError
from validators.digests import digest_file, digest_model
from validators.errors import CandidateRefused, JobError
from validators.job.job import Job
from validators.job.job_engines import AxisRange, Engines
from validators.job.job_measurement import OperatingPoint
from validators.records.engines import BuildSettings, BuiltEngine, EngineLayer, EngineManifest, ShapeRange
from validators.records.run import Gpu
from validators.samples.datasets import TensorSpec
from validators.samples.evidence import Evidence

# The job's name for axis 0, whatever the model calls it.
BATCH = "batch"


def available() -> dict[Runtime, str]:
    """Return the versions of the runtimes that can build here. TensorRT is not imported: without a GPU it may crash."""
    versions = {name: _installed_version(name) for name in RUNTIMES}
    return {
        name: version for name, version in versions.items() if version and int(version.split(".")[0]) >= OLDEST[name]
    }


def build_engine(
    onnx: Path, build: BuildSettings, folder: Path, *, gpu: Gpu | None, timing_caches: Path | None
) -> BuiltEngine:
    """Build the engine of an ONNX file into `folder`, with the builder's log and its timing cache.

    The engine is for `gpu`, or ahead of time for `build.compute_capabilities`. Timing caches are shared in the folder
    `timing_caches`, one per GPU, driver and runtime version.

    Raises:
        CandidateRefused: `unsupported`: no installed TensorRT can build it, or has kernels for it; `invalid`: the file or its
            profile is wrong; `infrastructure`: too little memory, or the builder crashed.
    """
    runtimes = available()
    runtime = _choose(runtimes, build, gpu)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ENGINE, LOG, TIMING_CACHE, LAYERS, ANSWER):
        (folder / name).unlink(missing_ok=True)
    shared = _shared_cache(timing_caches, runtime, runtimes[runtime], gpu)
    run_builder(_orders(onnx, build, folder, shared), gpu)
    answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    messages = read_log(folder / LOG)
    engine = folder / ENGINE
    if not engine.exists():
        raise refusal_of([NodeError(**error) for error in answer["errors"]], messages)
    changed = refused_warning(messages)
    if changed:
        raise changed
    cache = folder / TIMING_CACHE
    manifest = EngineManifest(
        runtime=runtime,
        runtime_version=answer["version"],
        gpu=gpu.name if gpu and not build.compute_capabilities else None,
        compute_capability=",".join(build.compute_capabilities) or (gpu.compute_capability if gpu else ""),
        driver=gpu.driver if gpu and not build.compute_capabilities else None,
        build=build,
        onnx_digest=digest_model(onnx),
        engine_digest=digest_file(engine),
        timing_cache_digest=digest_file(cache) if cache.exists() else None,
    )
    return BuiltEngine(engine, manifest, folder / LOG, cache if cache.exists() else None, _layers(folder, messages))


def make_engine(
    onnx: Path,
    build: BuildSettings,
    gpu: Gpu | None,
    timing_caches: Path | None,
    keep_log: Callable[[Path], Path | None],
    folder: Path,
) -> BuiltEngine:
    """Build an engine into the folder of an entry. `keep_log` moves the log of a build that failed out of it."""
    try:
        return build_engine(onnx, build, folder, gpu=gpu, timing_caches=timing_caches)
    except CandidateRefused as error:
        error.log = keep_log(folder / LOG)
        raise


def _layers(folder: Path, messages: Iterable[tuple[str, str]]) -> tuple[EngineLayer, ...]:
    """Return the layers from the log or, if the log has none, from the inspector's JSON."""
    logged = layers_in_log(text for _, text in messages)
    inspected = folder / LAYERS
    if logged or not inspected.exists():
        return logged
    return parse_layers_json(inspected.read_text(encoding="utf-8"))


def _choose(runtimes: Collection[Runtime], build: BuildSettings, gpu: Gpu | None) -> Runtime:
    """Return the runtime to build with.

    Raises:
        CandidateRefused: `unsupported`: no runtime can build; the error names the extra to install.
    """
    if build.compute_capabilities:
        if "tensorrt_rtx" in runtimes:
            return "tensorrt_rtx"
        missing, extra = "tensorrt_rtx, which builds engines ahead of time, is not installed", "tensorrt-aot"
    elif gpu is None:
        missing = "this machine has no NVIDIA GPU to build an engine for"
        extra = "tensorrt` on a machine with one, or build ahead of time with the extra `tensorrt-aot"
    else:
        runtime = next((name for name in RUNTIMES if name in runtimes), None)
        if runtime:
            return runtime
        missing, extra = f"TensorRT for {gpu.name} is not installed", "tensorrt"
    raise CandidateRefused(
        kind="unsupported",
        found=missing,
        expected="TensorRT 11 and its GPU, or tensorrt_rtx to build ahead of time",
        fix=f"install the extra `{extra}`",
    )


def _orders(onnx: Path, build: BuildSettings, folder: Path, shared_cache: Path | None) -> dict[str, Any]:
    profile, values = (
        {name: (ends.minimum, ends.optimum, ends.maximum) for name, ends in ranges.items()}
        for ranges in (build.profile, build.values)
    )
    return {
        "onnx": str(onnx.resolve()),
        "folder": str(folder.resolve()),
        "profile": profile,
        "values": values,
        "workspace_mb": build.workspace_mb,
        "tf32": build.tf32,
        "compute_capabilities": build.compute_capabilities,
        "shared_cache": str(shared_cache.resolve()) if shared_cache else None,
    }


def _shared_cache(folder: Path | None, runtime: Runtime, version: str, gpu: Gpu | None) -> Path | None:
    """Return the timing cache for this GPU, driver and runtime; None for `tensorrt_rtx`, which times nothing in a build."""
    if folder is None or gpu is None or runtime != "tensorrt":
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (re.sub(r"[^\w.]+", "-", f"{gpu.name} {gpu.driver} {runtime} {version}") + ".cache")


def _installed_version(runtime: Runtime) -> str | None:
    """Return the version of an installed runtime, from any of its distributions; None if it is not installed."""
    if util.find_spec(runtime) is None:
        return None
    for distribution in (runtime, f"{runtime}_cu13", f"{runtime}_cu12", f"{runtime}_cu13_bindings"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def settings_of(
    job: Job, evidence: Evidence, compute_capabilities: tuple[str, ...], *, accuracy_batch: int
) -> BuildSettings:
    """Return the build settings of a job's engines, which accept its data and up to `accuracy_batch` samples at once.

    Raises:
        CandidateRefused: `unsupported`: the job names constants for inputs.
        JobError: see `profile_of`.
    """
    if job.inputs:
        raise CandidateRefused(
            kind="unsupported",
            found=f"`inputs` of the job: {', '.join(sorted(job.inputs))}",
            expected="for an engine, inputs that are arrays with the samples along axis 0",
            fix="use candidates of another target, or export the model so",
        )
    data = evidence.evaluation.inputs
    shapes = {spec.name: [data[spec.name].shape] for spec in evidence.inputs}
    return BuildSettings(
        profile_of(evidence.inputs, job.engines, job.measurement.points, shapes, accuracy_batch=accuracy_batch),
        job.engines.workspace_mb,
        job.engines.tf32,
        compute_capabilities,
        values_of(evidence.inputs, data),
    )


def profile_of(
    inputs: Sequence[TensorSpec],
    engines: Engines,
    points: Sequence[OperatingPoint],
    data_shapes: Mapping[str, Sequence[tuple[int, ...]]],
    *,
    accuracy_batch: int,
) -> dict[str, ShapeRange]:
    """Return the optimization profile for an engine of this job: the shape range of each input.

    `data_shapes` holds the shapes of each input's arrays in the data files, that of requests first: `[(1000, 48), (200, 48)]`.
    Axis 0 is the batch. Its range always reaches from 1 to at least `accuracy_batch`, the samples evaluated at once. The
    optimum is that of the first operating point.

    Raises:
        JobError: `engines.axes` names an axis that no input has, or excludes a size that the job needs.

    >>> inputs, point = [TensorSpec("ids", "int64", ("n", "length"))], OperatingPoint(4, {"length": 16}, 1)
    >>> profile_of(inputs, Engines(), [point], {"ids": [(1000, 48)]}, accuracy_batch=32)["ids"]
    ShapeRange(minimum=(1, 16), optimum=(4, 16), maximum=(32, 48))
    """
    sizes: dict[str, list[int]] = {BATCH: [point.batch_size for point in points]}
    for spec in inputs:
        for index, axis in enumerate(spec.shape):
            if index and not isinstance(axis, int):
                seen = [shape[index] for shape in data_shapes[spec.name]]
                # An axis that a point does not name keeps the size of the data.
                asked = [point.dims.get(axis or "", seen[0]) for point in points]
                sizes.setdefault(axis or f"{spec.name}.{index}", []).extend([*asked, *seen])
    unknown = sorted(set(engines.axes) - set(sizes))
    if unknown:
        raise JobError(
            found=f"`engines.axes` names {unknown}",
            expected=f"dynamic axes of the inputs: {sorted(sizes)}",
            fix="correct the names; axis 0 is `batch`",
        )
    ranges = {axis: _range(axis, found, engines.axes.get(axis)) for axis, found in sizes.items()}
    _, best, high = ranges[BATCH]
    ranges[BATCH] = (1, best, max(high, accuracy_batch))
    return {spec.name: _shapes(spec, ranges) for spec in inputs}


def values_of(inputs: Sequence[TensorSpec], data: Mapping[str, NDArray[Any]]) -> dict[str, ShapeRange]:
    """Return the range of each integer input of one fixed axis, which may decide shapes; the first sample is the optimum.

    `data` holds arrays with the samples along axis 0. An input of another form is no shape tensor of TensorRT.

    >>> values_of([TensorSpec("n", "int64", (1,))], {"n": np.array([3, 2, 5])})["n"]
    ShapeRange(minimum=(2,), optimum=(3,), maximum=(5,))
    """
    found = {}
    for spec in inputs:
        if spec.dtype in ("int32", "int64") and len(spec.shape) == 1 and isinstance(spec.shape[0], int):
            requests = np.reshape(data[spec.name], (-1, spec.shape[0]))
            ends = requests.min(axis=0), requests[0], requests.max(axis=0)
            found[spec.name] = ShapeRange(*(tuple(map(int, end)) for end in ends))
    return found


def _range(axis: str, sizes: Sequence[int], wanted: AxisRange | None) -> tuple[int, int, int]:
    """Return (minimum, optimum, maximum) of an axis: the job's, or those of all needed sizes with the first as optimum."""
    if wanted is None:
        return min(sizes), sizes[0], max(sizes)
    if not wanted.minimum <= min(sizes) <= max(sizes) <= wanted.maximum:
        raise JobError(
            found=f"`engines.axes.{axis}` from {wanted.minimum} to {wanted.maximum}",
            expected=f"a range that includes {sorted(set(sizes))}, the sizes of the data and of `measurement`",
            fix="widen the range, or remove it",
        )
    return wanted.minimum, wanted.optimum, wanted.maximum


def _shapes(spec: TensorSpec, ranges: Mapping[str, tuple[int, int, int]]) -> ShapeRange:
    names = [BATCH if not index else axis or f"{spec.name}.{index}" for index, axis in enumerate(spec.shape)]
    axes = [
        (axis, axis, axis) if isinstance(axis, int) else ranges[str(name)]
        for axis, name in zip(spec.shape, names, strict=True)
    ]
    return ShapeRange(*(tuple(axis[end] for axis in axes) for end in range(3)))

"""Contents of a registered version: files, manifest, signature, requirements, and lineage with the verdicts."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tasks.registry.champion_slot import EVIDENCE_DIGEST, IDENTITY, TAG
from tasks.run.loaded_run import LoadedRun
from tasks.runtimes.decoder_session import PRESENT
from tasks.runtimes.libraries import describe_library
from validators.digests import digest_file, digest_text, weights_of
from validators.gates.approval import Approval
from validators.processors import ISA_FLAGS
from validators.records.measurements import Saturation
from validators.records.run import Inventory, Variant
from validators.records.verdicts import Verdict
from validators.samples.datasets import TensorSpec
from validators.targets import facts_of_provider

FORMAT = 2
# Distribution with which a consumer identifies the GPU.
_NVML = "nvidia-ml-py"
# Requirements of a consumer of an engine, besides TensorRT.
_ENGINE_REQUIREMENTS = ("cuda-bindings", _NVML)


def variant_folder(variant: Variant, folder: Path) -> Path:
    """Create a folder with only the artifact's files, since its entry in the store also holds the record; return it."""
    files = folder / "variant"
    files.mkdir()
    for path in _artifact_files(variant):
        if path.stat().st_dev == files.stat().st_dev:
            (files / path.name).hardlink_to(path)
        else:
            shutil.copyfile(path, files / path.name)
    return files


def _artifact_files(variant: Variant) -> list[Path]:
    if facts_of_provider(variant.session.provider).generates:
        return sorted(variant.path.parent.iterdir())  # a decoder has a folder of its own
    beside = weights_of(variant.path)
    libraries = [library.path for library in variant.session.libraries if library.package is None]
    engine = variant.engine
    built = [engine.path, *([engine.timing_cache] if engine.timing_cache else [])] if engine else []
    return [variant.path, *([beside] if beside.exists() else []), *libraries, *built]


def hardware_of(inventory: Inventory) -> dict[str, Any]:
    """Return the device of an approval as consumers compare it: the processor with its instruction sets, and the GPU."""
    gpu = inventory.gpu
    return {
        "processor": inventory.cpu,
        "isa": {flag: flag in inventory.isa for flag in ISA_FLAGS},
        "cores": inventory.cores,
        "gpu": {key: getattr(gpu, key) for key in ("name", "compute_capability", "driver")} if gpu else None,
    }


def manifest_of(run: LoadedRun, variant: Variant, saturation: Saturation | None) -> dict[str, Any]:
    """Return the manifest that consumers check and load from: digests, session settings, and the device of the approval.

    `format` is the version of the keys. Format 1 has no key `format`, nor `hardware` and `batch_sizes` (the sizes at which
    latency was measured). Keys are added, never changed: every release reads all formats.

    `loader` names the module that opens `artifact` where the version is loaded; `compiled`: it is code for the instructions of
    `hardware`. `saturates_without` lists instruction sets: x86 processors with none of them give other answers.
    `ranges` are to be watched in production: the ends of each fixed range, and the share of values outside it in this run.
    """
    engine = variant.engine.manifest if variant.engine else None
    facts = facts_of_provider(variant.session.provider)
    runtime = engine.runtime if engine else _runtime_of(run.inventory, variant)
    outputs = [value.name for value in onnx.load(run.source.onnx_path, load_external_data=False).graph.output]
    return {
        "format": FORMAT,
        "candidate": variant.candidate,
        "source_digest": run.source.digest,
        "files": {path.name: digest_file(path) for path in _artifact_files(variant)},
        "session": variant.session.described,
        "libraries": [describe_library(library) for library in variant.session.libraries],
        "inputs": {spec.name: spec.dtype for spec in run.evidence.model_inputs},
        # Without the caches of a decoder.
        "outputs": [name for name in outputs if not name.startswith(PRESENT)],
        "runtime": runtime,
        "runtime_version": engine.runtime_version if engine else _public(run.inventory.runtimes[runtime]),
        "engine": asdict(engine) if engine else None,
        "loader": f"{facts.package}.model",
        "artifact": variant.path.name,
        "compiled": facts.compiles,
        "device": run.inventory.device_key,
        "hardware": hardware_of(run.inventory),
        "saturates_without": list(variant.saturates_without),
        "batch_sizes": sorted({point.batch_size for point in run.job.measurement.points}),
        "ranges": {
            tensor.tensor: {"low": tensor.low, "high": tensor.high, "share_outside": tensor.share}
            for tensor in (saturation.tensors if saturation else ())
        },
    }


def _runtime_of(inventory: Inventory, variant: Variant) -> str:
    """Return the distribution that runs a variant, by its name in the inventory."""
    distributions = facts_of_provider(variant.session.provider).distributions
    return next(name for name in inventory.runtimes if name in distributions)


def _public(version: str) -> str:
    """Return a version without its local part, such as torch's build, which no index has."""
    return version.partition("+")[0]


def runtime_requirements(inventory: Inventory, variant: Variant) -> list[str]:
    if variant.engine:
        built = variant.engine.manifest
        bindings = [f"{name}=={metadata.version(name)}" for name in _ENGINE_REQUIREMENTS]
        return [f"{built.runtime.replace('_', '-')}=={built.runtime_version}", *bindings, f"numpy=={np.__version__}"]
    runtime = _runtime_of(inventory, variant)
    packages = [f"{one.distribution}=={one.version}" for one in variant.session.libraries if one.package]
    if variant.session.on_gpu:
        packages.append(f"{_NVML}=={metadata.version(_NVML)}")
    beside = facts_of_provider(variant.session.provider).beside
    packages += [f"{name}=={inventory.runtimes.get(name) or metadata.version(name)}" for name in beside]
    return [f"{runtime}=={_public(inventory.runtimes[runtime])}", *packages, f"numpy=={np.__version__}"]


def signature_of(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Any:
    """Return the MLflow signature of a variant from its session's inputs and outputs, with -1 for every dynamic axis."""
    from mlflow import types
    from mlflow.models import ModelSignature

    schemas = [
        types.Schema(
            [
                types.TensorSpec(
                    np.dtype(spec.dtype), tuple(axis if isinstance(axis, int) else -1 for axis in spec.shape), spec.name
                )
                for spec in side
            ]
        )
        for side in (inputs, outputs)
    ]
    return ModelSignature(inputs=schemas[0], outputs=schemas[1])


def lineage_of(run: LoadedRun, approval: Approval, mlflow_run_id: str, manifest: str) -> dict[str, str]:
    """Return the tags of the version: its sources, its device and runtimes, and every verdict with its evidence."""
    winner = approval.trial
    assert winner.accuracy and winner.latency and winner.coverage
    calibration = run.evidence.files.get("calibration")
    facts = {
        "source_uri": run.source.uri,
        "source_name": run.source.name,
        "source_version": run.source.version or "",
        "source_digest": run.source.digest,
        "variant_digest": approval.variant.digest,
        "manifest_digest": digest_text(manifest),
        "calibration_uri": (calibration.uri or "") if calibration else "",
        "calibration_digest": calibration.digest if calibration else "",
        "evaluation_uri": run.evidence.evaluation.file.uri or "",
        "evaluation_digest": run.evidence.evaluation.file.digest,
        "candidate": winner.candidate,
        "target": run.job.target,
        "device": run.inventory.device_key,
        "runtimes": ", ".join(f"{name} {version}" for name, version in run.inventory.runtimes.items()),
        "metric": f"{winner.accuracy.metric} {winner.accuracy.value:.6g}",
        "metric_drop_upper": f"{winner.drop.high:.6g}" if winner.drop else "",
        "speedup_p50": f"{winner.latency.speedup.value:.4g}",
        "coverage_macs": f"{winner.coverage.share:.4g}",
        "saturation": _saturation(winner.saturation),
        "verdicts": json.dumps({verdict.gate: verdict.outcome for verdict in approval.verdicts}),
        "evidence": f"runs:/{mlflow_run_id}",
    }
    if said := approval.sign_off:
        facts |= {"approved_by": said.by, "approved_at": said.at, "approval_comment": said.comment}
    facts |= {f"verdict.{verdict.gate}": _in_short(verdict) for verdict in approval.verdicts}
    same = {
        IDENTITY: approval.variant.identity,
        EVIDENCE_DIGEST: digest_file(approval.evidence) if approval.evidence else "",
    }
    return {f"{TAG}{key}": value for key, value in facts.items()} | same


def _in_short(verdict: Verdict) -> str:
    """Return a verdict as JSON without empty fields; `evidence` is the artifact in the candidate's MLflow run."""
    kept = {key: value for key, value in asdict(verdict).items() if value not in (None, "") and key != "gate"}
    return json.dumps(
        {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in kept.items()}
    )


def _saturation(saturation: Saturation | None) -> str:
    """Describe the tensor with the largest share of clipped values, the figure to watch in production."""
    if saturation is None or saturation.worst is None:
        return "no range is fixed"
    worst = saturation.worst
    return f"{worst.share:.4g} of the values of {worst.place} outside its range, at most ({saturation.samples} samples)"

"""Bill of materials of a version, as CycloneDX 1.6 in JSON: the model, its files, its source, its data, and its runtime."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from packaging.requirements import Requirement

from tasks.serving.promoted import Promoted
from validators.job.candidate_name import decode
from validators.job.recipe_words import describe
from validators.records.verdicts import Verdict

FILE = "sbom.json"
_SPACE = uuid.UUID("5a1f2c0e-6d3b-4f0e-9a56-0d3c1f7b8e21")


def bill_of_materials(promoted: Promoted, requirements: Iterable[str]) -> dict[str, Any]:
    """Return the document; `requirements` are the packages that run the version, as `name==version`.

    Its serial number follows from the artifact and the run, so that the same promotion has the same one.
    """
    variant = promoted.approval.variant
    libraries = [_library(Requirement(text)) for text in requirements]
    files = [
        {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": _hashes(digest)}
        for name, digest in sorted(promoted.manifest["files"].items())
    ]
    source = {
        "type": "machine-learning-model",
        "bom-ref": "source",
        "name": promoted.source.name,
        **({"version": promoted.source.version} if promoted.source.version else {}),
        "hashes": _hashes(promoted.source.digest),
    }
    data = [
        {"type": "data", "bom-ref": f"data:{role}", "name": role, "hashes": _hashes(file.digest)}
        for role, file in sorted(promoted.data.items())
    ]
    inside = [*files, source, *data, *libraries]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, f'{variant.digest} {promoted.run_id}')}",
        "version": 1,
        "metadata": {"timestamp": promoted.at, "component": _model(promoted)},
        "components": inside,
        "dependencies": [
            {"ref": "model", "dependsOn": [part["bom-ref"] for part in inside]},
            *({"ref": part["bom-ref"]} for part in inside),
        ],
    }


def _model(promoted: Promoted) -> dict[str, Any]:
    variant = promoted.approval.variant
    parameters = {
        "datasets": [{"ref": f"data:{role}"} for role in sorted(promoted.data)],
        "inputs": [{"format": f"{spec.name} {spec.dtype}"} for spec in promoted.inputs],
        "outputs": [{"format": f"{spec.name} {spec.dtype}"} for spec in promoted.outputs],
    }
    limits = [
        "Approved for this device and these versions alone: "
        + ", ".join(
            [promoted.inventory.device_key, *(f"{name} {one}" for name, one in promoted.inventory.runtimes.items())]
        )
    ]
    return {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": f"{promoted.source.name}, {variant.candidate}",
        "version": variant.digest,
        "description": describe(decode(variant.candidate)),
        "hashes": _hashes(variant.digest),
        "pedigree": {"ancestors": [{"type": "machine-learning-model", "name": promoted.source.name}]},
        "modelCard": {
            "modelParameters": parameters,
            "quantitativeAnalysis": {"performanceMetrics": [_metric(one) for one in promoted.approval.verdicts]},
            "considerations": {"technicalLimitations": limits},
        },
    }


def _metric(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a performance metric; the schema takes numbers as texts."""
    interval = {
        key: f"{value:.6g}"
        for key, value in (("lowerBound", verdict.low), ("upperBound", verdict.high))
        if value is not None
    }
    return {
        "type": verdict.gate,
        "value": "none" if verdict.value is None else f"{verdict.value:.6g}",
        **({"confidenceInterval": interval} if interval else {}),
    }


def _library(requirement: Requirement) -> dict[str, Any]:
    version = str(requirement.specifier).removeprefix("==")
    purl = f"pkg:pypi/{requirement.name.lower().replace('_', '-')}@{version}"
    return {"type": "library", "bom-ref": purl, "name": requirement.name, "version": version, "purl": purl}


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]

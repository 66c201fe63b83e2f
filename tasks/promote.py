"""Step 8: the winner into the registry, with lineage and evidence; the alias moves last."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tasks.context import Given, Run, log
from tasks.registry import connect, quiet_mlflow, registry_call
from tasks.request import request_batch
from tasks.runtimes import openvino
from tasks.runtimes.libraries import describe_library
from tasks.runtimes.ort import DISTRIBUTIONS, open_session
from tasks.step import step
from validators.digests import digest_file
from validators.errors import InfrastructureError
from validators.measurements import Saturation
from validators.records import Champion, Inventory, Trial, Variant

CONSUMER = Path(__file__).with_name("consumer.py")
TAG = "quantgate."


def champion_names(run: Run, given: Given) -> tuple[str, str]:
    """The registered model that holds the variants of a source, and the alias of its champion on the job's target."""
    return f"{given.source.name}-quantized", f"champion-{run.job.target}"


def find_champion(run: Run, given: Given) -> Champion | None:
    """The present champion, or None.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    name, alias = champion_names(run, given)
    with connect(run.tracking_uri) as client:
        try:
            version: Any = registry_call(client.get_model_version_by_alias, name, alias)
        except MlflowException:
            return None
    tags = version.tags
    return Champion(
        name,
        str(version.version),
        alias,
        digest=tags.get(f"{TAG}variant_digest", ""),
        source_digest=tags.get(f"{TAG}source_digest", ""),
        candidate=tags.get(f"{TAG}candidate", ""),
        previous=str(version.version),
    )


@step("promote")
def promote(
    run: Run, given: Given, inventory: Inventory, winner: Trial, champion: Champion | None, mlflow_run_id: str
) -> Champion:
    """Register the winner, check that it loads and answers as it was judged, and move the alias to it.

    A winner that already is the champion stays it, and nothing is registered.

    Raises:
        InfrastructureError: the registry does not answer, or the registered version does not answer as the variant did; the
            alias then points where it pointed before.
    """
    assert winner.variant is not None and winner.outcome == "passed" and winner.verdicts, "promotion takes its verdicts"
    if champion is not None and champion.digest == winner.variant.digest:
        log.info("%s is the champion already: %s version %s", winner.candidate, champion.name, champion.version)
        return champion
    name, alias = champion_names(run, given)
    with run.clock.work("promote"), _promoting(run.state), connect(run.tracking_uri) as client:
        version = _register(run, given, inventory, winner, winner.variant, name, mlflow_run_id)
        _smoke_test(run, given, winner.variant, f"models:/{name}/{version}")
        registry_call(client.set_registered_model_alias, name, alias, version)
    log.info("promoted %s: models:/%s@%s is version %s", winner.candidate, name, alias, version)
    return Champion(
        name,
        version,
        alias,
        winner.variant.digest,
        given.source.digest,
        winner.candidate,
        champion.version if champion else None,
    )


@contextmanager
def _promoting(state: Path) -> Iterator[None]:
    """One promotion at a time on this state: the registry has no compare-and-swap on aliases."""
    with (state / "promotion.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _register(
    run: Run, given: Given, inventory: Inventory, winner: Trial, variant: Variant, name: str, mlflow_run_id: str
) -> str:
    import mlflow

    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        manifest = Path(folder, "manifest.json")
        manifest.write_text(
            json.dumps(_manifest(given, inventory, variant, winner.saturation), indent=1), encoding="utf-8"
        )
        files = _variant_folder(variant, Path(folder))
        with mlflow.start_run(run_id=mlflow_run_id, log_system_metrics=False), quiet_mlflow():
            logged = registry_call(
                mlflow.pyfunc.log_model,
                name="variant",
                python_model=str(CONSUMER),
                artifacts={"variant": str(files), "manifest": str(manifest)},
                signature=_signature(variant),
                pip_requirements=[f"mlflow=={mlflow.__version__}", *_runtime_requirements(inventory, variant)],
            )
        with quiet_mlflow():
            made = registry_call(
                mlflow.register_model, logged.model_uri, name, tags=_lineage(run, given, inventory, winner, variant)
            )
    return str(made.version)


def _variant_folder(variant: Variant, folder: Path) -> Path:
    """A folder with the artifact alone: its entry in the store holds the record as well."""
    files = folder / "variant"
    files.mkdir()
    for path in _artifact_files(variant):
        (files / path.name).hardlink_to(path) if _same_disk(path, files) else (files / path.name).write_bytes(
            path.read_bytes()
        )
    return files


def _same_disk(path: Path, folder: Path) -> bool:
    return path.stat().st_dev == folder.stat().st_dev


def _artifact_files(variant: Variant) -> list[Path]:
    beside = variant.path.with_name(f"{variant.path.name}.data")
    libraries = [library.path for library in variant.session.libraries if library.package is None]
    return [variant.path, *([beside] if beside.exists() else []), *libraries]


def _manifest(given: Given, inventory: Inventory, variant: Variant, saturation: Saturation | None) -> dict[str, Any]:
    """What the consumer checks and needs: digests, session settings, and what the approval is tied to.

    `ranges` is what to watch in production: the ends of each fixed range, and the share of values that lay outside of it here.
    """
    plugin = variant.session.provider == openvino.OPENVINO_PROVIDER
    runtime = next(name for name in inventory.runtimes if name in DISTRIBUTIONS)
    return {
        "candidate": variant.candidate,
        "source_digest": given.source.digest,
        "files": {path.name: digest_file(path) for path in _artifact_files(variant)},
        "session": {key: value for key, value in asdict(variant.session).items() if key != "libraries"},
        "libraries": [describe_library(library) for library in variant.session.libraries],
        "plugin": openvino.describe_plugin(variant.session.threads) if plugin else None,
        "inputs": {spec.name: spec.dtype for spec in given.evidence.inputs},
        "runtime": runtime,
        "runtime_version": inventory.runtimes[runtime],
        "device": inventory.device_key,
        "ranges": {
            tensor.tensor: {"low": tensor.low, "high": tensor.high, "share_outside": tensor.share}
            for tensor in (saturation.tensors if saturation else ())
        },
    }


def _runtime_requirements(inventory: Inventory, variant: Variant) -> list[str]:
    plugin = variant.session.provider == openvino.OPENVINO_PROVIDER
    runtimes = [
        f"{name}=={version}"
        for name, version in inventory.runtimes.items()
        if name.startswith("onnxruntime") and (plugin or name != openvino.DISTRIBUTION)
    ]
    packages = [f"{one.distribution}=={one.version}" for one in variant.session.libraries if one.package]
    return [*runtimes, *packages, f"numpy=={np.__version__}"]


def _signature(variant: Variant) -> Any:
    """The signature of the variant, read from its own session: names, dtypes, -1 for every dynamic axis."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    from tasks.runtimes.ort import describe_inputs, describe_outputs

    with open_session(variant.path, variant.session) as session:
        sides = (describe_inputs(session), describe_outputs(session))
    schemas = [
        Schema(
            [
                TensorSpec(
                    np.dtype(spec.dtype), tuple(axis if isinstance(axis, int) else -1 for axis in spec.shape), spec.name
                )
                for spec in side
            ]
        )
        for side in sides
    ]
    return ModelSignature(inputs=schemas[0], outputs=schemas[1])


def _lineage(run: Run, given: Given, inventory: Inventory, winner: Trial, variant: Variant) -> dict[str, str]:
    assert winner.accuracy and winner.latency and winner.drop and winner.coverage
    facts = {
        "source_uri": given.source.uri,
        "source_name": given.source.name,
        "source_version": given.source.version or "",
        "source_digest": given.source.digest,
        "variant_digest": variant.digest,
        "calibration_digest": given.evidence.calibration.file.digest,
        "evaluation_digest": given.evidence.evaluation.file.digest,
        "candidate": winner.candidate,
        "target": run.job.target,
        "device": inventory.device_key,
        "runtimes": ", ".join(f"{name} {version}" for name, version in inventory.runtimes.items()),
        "metric": f"{winner.accuracy.metric} {winner.accuracy.value:.6g}",
        "metric_drop_upper": f"{winner.drop.high:.6g}",
        "speedup_p50": f"{winner.latency.speedup.value:.4g}",
        "coverage_macs": f"{winner.coverage.share:.4g}",
        "saturation": _saturation(winner.saturation),
        "verdicts": json.dumps({verdict.gate: verdict.outcome for verdict in winner.verdicts}),
    }
    return {f"{TAG}{key}": value for key, value in facts.items()}


def _saturation(saturation: Saturation | None) -> str:
    """The tensor that loses most, in words: the figure to watch in production."""
    if saturation is None or saturation.worst is None:
        return "no range is fixed"
    worst = saturation.worst
    return f"{worst.share:.4g} of the values of {worst.place} outside its range, at most ({saturation.samples} samples)"


def _smoke_test(run: Run, given: Given, variant: Variant, uri: str) -> None:
    """Load the registered version as a consumer would, and compare its answer with the judged artifact's."""
    import mlflow

    batch = request_batch(run.job, given.evidence, run.job.measurement.batch_sizes[0])
    loaded = registry_call(mlflow.pyfunc.load_model, uri)
    answer = loaded.predict(batch)
    with open_session(variant.path, variant.session) as session:
        expected = dict(zip((output.name for output in session.get_outputs()), session.run(None, batch), strict=True))
    for name, array in expected.items():
        if not np.allclose(answer[name], array, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InfrastructureError(
                found=f"{uri} answers {name!r} otherwise than the artifact that was judged",
                expected="the same values",
                fix="check the artifact store; the alias was not moved",
            )

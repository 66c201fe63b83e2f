"""Step 8: the winner into the registry, with lineage and evidence; the alias moves last."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tasks.context import Given, Run, log
from tasks.lineage import TAG, lineage_of, manifest_of, runtime_requirements, signature_of, variant_folder
from tasks.registry import connect, quiet_mlflow, registry_call
from tasks.request import request_batch
from tasks.runtimes.runner import open_runner
from tasks.step import step
from validators.approval import Approval, NotApproved
from validators.errors import InfrastructureError
from validators.records import Champion, Inventory, Variant

CONSUMER = Path(__file__).with_name("consumer.py")
# Of an engine, with the package that MLflow puts beside it.
ENGINE_CONSUMER = Path(__file__).with_name("consumer_tensorrt.py")
ENGINE_PACKAGE = Path(__file__).with_name("runtimes") / "trt_engine"


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
    run: Run, given: Given, inventory: Inventory, approval: Approval, champion: Champion | None, mlflow_run_id: str
) -> Champion:
    """Register the approved variant, check that it loads and answers as it was judged, and move the alias to it.

    One that already is the champion stays it, and nothing is registered.

    Raises:
        NotApproved: the approval is of another device than this.
        InfrastructureError: the registry does not answer, or the registered version does not answer as the variant did; the
            alias then points where it pointed before.
    """
    if approval.device_key != inventory.device_key:
        raise NotApproved(f"approved on {approval.device_key}, and here is {inventory.device_key}")
    variant = approval.variant
    if champion is not None and champion.digest == variant.digest:
        log.info("%s is the champion already: %s version %s", variant.candidate, champion.name, champion.version)
        return champion
    name, alias = champion_names(run, given)
    with run.clock.work("promote"), _promoting(run.state), connect(run.tracking_uri) as client:
        version = _register(run, given, inventory, approval, name, mlflow_run_id)
        _smoke_test(run, given, variant, f"models:/{name}/{version}")
        registry_call(client.set_registered_model_alias, name, alias, version)
    log.info("promoted %s: models:/%s@%s is version %s", variant.candidate, name, alias, version)
    return Champion(
        name,
        version,
        alias,
        variant.digest,
        given.source.digest,
        variant.candidate,
        champion.version if champion else None,
    )


@contextmanager
def _promoting(state: Path) -> Iterator[None]:
    """One promotion at a time on this state: the registry has no compare-and-swap on aliases."""
    with (state / "promotion.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _register(run: Run, given: Given, inventory: Inventory, approval: Approval, name: str, mlflow_run_id: str) -> str:
    import mlflow

    variant = approval.variant
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        manifest = Path(folder, "manifest.json")
        manifest.write_text(
            json.dumps(manifest_of(given, inventory, variant, approval.trial.saturation), indent=1), encoding="utf-8"
        )
        files = variant_folder(variant, Path(folder))
        with mlflow.start_run(run_id=mlflow_run_id, log_system_metrics=False), quiet_mlflow():
            logged = registry_call(
                mlflow.pyfunc.log_model,
                name="variant",
                python_model=str(ENGINE_CONSUMER if variant.engine else CONSUMER),
                code_paths=[str(ENGINE_PACKAGE)] if variant.engine else None,
                artifacts={"variant": str(files), "manifest": str(manifest)},
                signature=signature_of(variant),
                pip_requirements=[f"mlflow=={mlflow.__version__}", *runtime_requirements(inventory, variant)],
            )
        with quiet_mlflow():
            made = registry_call(
                mlflow.register_model,
                logged.model_uri,
                name,
                tags=lineage_of(run, given, inventory, approval, mlflow_run_id),
            )
    return str(made.version)


def _smoke_test(run: Run, given: Given, variant: Variant, uri: str) -> None:
    """Load the registered version as a consumer would, and compare its answer with the judged artifact's."""
    import mlflow

    batch = request_batch(given.evidence, run.job.measurement.points[0])
    loaded = registry_call(mlflow.pyfunc.load_model, uri)
    answer = loaded.predict(batch)
    with open_runner(variant.loaded, variant.session) as runner:
        names = [output.name for output in runner.outputs]
        expected = dict(zip(names, runner.run(batch, names), strict=True))
    for name, array in expected.items():
        if not np.allclose(answer[name], array, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InfrastructureError(
                found=f"{uri} answers {name!r} otherwise than the artifact that was judged",
                expected="the same values",
                fix="check the artifact store; the alias was not moved",
            )

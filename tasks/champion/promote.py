"""Step 8: registration of the winner with lineage and evidence; the alias moves last."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from prefect.runtime import flow_run

from tasks.champion.manifest import lineage_of, manifest_of, runtime_requirements, signature_of, variant_folder
from tasks.champion.promote_version import ApprovedVariant, promote_version
from tasks.champion.readback import check_answer
from tasks.measure.request import request_of
from tasks.ptq.graph.edits import model_bytes
from tasks.records.run_record import run_address
from tasks.registry.champion_slot import former_champions, place_of
from tasks.registry.mlflow_registry import connect, quiet_mlflow, registry_call
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.runtimes.runner import open_runner
from tasks.serving import bom
from tasks.serving.card import model_card
from tasks.serving.promoted import Promoted
from tasks.serving.readme import version_readme
from validators.gates.approval import Approval, NotApproved
from validators.records.journal import now
from validators.records.run import Champion, Variant
from validators.samples.datasets import Arrays
from validators.targets import facts_of_provider

CONSUMER = Path(__file__).with_name("consumer") / "consumer.py"
# Samples with which a registered version is checked, at least: one number would not show the scale of an output.
READ_BACK_SAMPLES = 8
# Packages that consumers get with a version.
EVIDENCE_PACKAGE = Path(__file__).with_name("signed_evidence")


@step("promote")
def promote(run: LoadedRun, approval: Approval, champion: Champion | None, mlflow_run_id: str) -> Champion:
    """Register the approved variant, check that it loads and answers as the judged artifact, and move the alias to it.

    `champion` is the champion that the variant was compared with. If the variant is the champion already, nothing is
    registered.

    Raises:
        NotApproved: the approval is for another device.
        ChampionMoved: the champion has changed since the comparison.
        InfrastructureError: the registry does not answer, the registered version does not answer as the variant did, or the
            variant was rolled back meanwhile. The alias then keeps its former version.
    """
    if approval.device_key != run.inventory.device_key:
        raise NotApproved(f"approved on {approval.device_key}, and here is {run.inventory.device_key}")
    place, variant = place_of(run.source.name, run.job.target), approval.variant
    with (
        run.clock.work("promote"),
        connect(run.tracking_uri) as client,
        _offer(run, approval, mlflow_run_id) as offer,
    ):
        before = champion.version if champion else None
        version = promote_version(client, run.locks, place, offer, judged_against=before, flow_run=flow_run.get_id())
    done = "is the champion already" if version == before else "promoted"
    log.info("%s %s: models:/%s@%s is version %s", variant.candidate, done, place.name, place.alias, version)
    return Champion(
        place.name,
        version,
        place.alias,
        variant.digest,
        run.source.digest,
        variant.candidate,
        previous=before,
        device=run.inventory.device_key,
        identity=variant.identity,
    )


@contextmanager
def _offer(run: LoadedRun, approval: Approval, mlflow_run_id: str) -> Iterator[ApprovedVariant]:
    """Prepare the offer of the approved variant, whose files lie in a temporary folder during the block."""
    variant = approval.variant
    point = run.job.measurement.points[0]
    count = math.ceil(READ_BACK_SAMPLES / point.batch_size)
    rows = np.resize(np.arange(len(run.evidence.evaluation)), (count, point.batch_size))
    requests = [request_of(run.evidence, point, one) for one in rows]
    manifest = json.dumps(manifest_of(run, variant, approval.trial.saturation), indent=1)

    @cache
    def promoted() -> Promoted:
        return _promoted(run, approval, manifest, requests[0], mlflow_run_id)

    @cache
    def judged() -> list[Arrays]:
        with open_runner(variant.loaded, variant.session) as runner:
            names = [output.name for output in runner.outputs]
            return [dict(zip(names, runner.run(request, names), strict=True)) for request in requests]

    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        yield ApprovedVariant(
            tags=lineage_of(run, approval, mlflow_run_id, manifest),
            upload=lambda: _upload(promoted(), manifest, Path(folder)),
            check=lambda uri: check_answer(uri, requests, judged(), variant.candidate),
            describe=lambda: model_card(promoted()),
        )


def _promoted(run: LoadedRun, approval: Approval, manifest: str, request: Arrays, mlflow_run_id: str) -> Promoted:
    """Return an approved variant with everything that its documents tell; `request` is a batch by input name."""
    place, variant = place_of(run.source.name, run.job.target), approval.variant
    with open_runner(variant.loaded, variant.session) as runner:
        inputs, outputs = tuple(runner.inputs), tuple(runner.outputs)
    with connect(run.tracking_uri) as client:
        before = former_champions(client, place)
    return Promoted(
        uri=place.uri(place.alias),
        source=run.source,
        source_bytes=model_bytes(run.source.onnx_path),
        data=run.evidence.files,
        inventory=run.inventory,
        job=run.job,
        approval=approval,
        manifest=json.loads(manifest),
        inputs=inputs,
        outputs=outputs,
        request={name: array.shape for name, array in request.items()},
        run_id=mlflow_run_id,
        run_page=run_address(run, mlflow_run_id),
        at=now(),
        before=before,
    )


def _packages(variant: Variant, folder: Path) -> list[str]:
    """Return the folders of the packages that check the evidence, and open a variant, in the consumer."""
    facts = facts_of_provider(variant.session.provider)
    shipped = Path(import_module(facts.shipped).__path__[0])
    shutil.copytree(shipped, folder / facts.package, ignore=shutil.ignore_patterns("__pycache__"))
    return [str(EVIDENCE_PACKAGE), str(folder / facts.package)]


def _upload(promoted: Promoted, manifest: str, folder: Path) -> str:
    """Log the variant as a model that consumers load without quantgate; return the URI of the logged model."""
    import mlflow

    variant = promoted.approval.variant
    texts = {
        "manifest": (folder / "manifest.json", manifest),
        "readme": (folder / "README.md", version_readme(promoted)),
    }
    requirements = runtime_requirements(promoted.inventory, variant)
    texts["sbom"] = (folder / bom.FILE, json.dumps(bom.bill_of_materials(promoted, requirements), indent=1))
    for path, text in texts.values():
        path.write_text(text, encoding="utf-8")
    files = variant_folder(variant, folder)
    evidence = {"evidence": str(promoted.approval.evidence)} if promoted.approval.evidence else {}
    with mlflow.start_run(run_id=promoted.run_id, log_system_metrics=False), quiet_mlflow():
        logged = registry_call(
            mlflow.pyfunc.log_model,
            name="variant",
            python_model=str(CONSUMER),
            code_paths=_packages(variant, folder),
            artifacts={"variant": str(files)} | {name: str(path) for name, (path, _) in texts.items()} | evidence,
            # A decoder takes prompts as well as tokens, which no signature can say.
            signature=None
            if facts_of_provider(variant.session.provider).generates
            else signature_of(promoted.inputs, promoted.outputs),
            pip_requirements=[f"mlflow=={mlflow.__version__}", *requirements],
        )
    return str(logged.model_uri)

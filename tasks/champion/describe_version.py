"""Input of a version's documents: its card in the registry, and the README among its artifacts."""

from __future__ import annotations

import json

from tasks.ptq.graph.edits import model_bytes
from tasks.records.run_record import run_address
from tasks.registry.champion_slot import ChampionSlot, former_champions
from tasks.registry.mlflow_registry import connect
from tasks.run.context import Run
from tasks.runtimes.runner import open_runner
from tasks.serving.promoted import Promoted
from validators.gates.approval import Approval
from validators.records.journal import now
from validators.records.run import Inventory
from validators.samples.datasets import Arrays
from validators.samples.run_inputs import RunInputs


def describe_version(
    run: Run,
    run_inputs: RunInputs,
    inventory: Inventory,
    approval: Approval,
    *,
    place: ChampionSlot,
    manifest: str,
    request: Arrays,
    mlflow_run_id: str,
) -> Promoted:
    """Return an approved variant with everything that it was made from.

    `manifest` is the text of its manifest, `request` a batch by input name.

    Raises:
        CandidateRefused: the runtime does not load the artifact.
        InfrastructureError: the registry does not answer.
    """
    evidence, variant = run_inputs.evidence, approval.variant
    samples = {"calibration": evidence.calibration, "evaluation": evidence.evaluation, "traffic": evidence.traffic}
    with open_runner(variant.loaded, variant.session) as runner:
        inputs, outputs = tuple(runner.inputs), tuple(runner.outputs)
    with connect(run.tracking_uri) as client:
        before = former_champions(client, place)
    return Promoted(
        uri=place.uri(place.alias),
        source=run_inputs.source,
        source_bytes=model_bytes(run_inputs.source.onnx_path),
        data={role: one.file for role, one in samples.items() if one is not None},
        inventory=inventory,
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

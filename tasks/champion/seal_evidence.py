"""Step 8: the evidence of a run as one sealed file, before anything is promoted on its word."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from tasks.champion.bundle.contents import Members, add_samples, installed_digest, lock_digests, sealed_members
from tasks.champion.bundle.statement import signer_here
from tasks.champion.manifest import manifest_of
from tasks.champion.signed_evidence.archive import write_archive
from tasks.champion.signed_evidence.check import FORMAT
from tasks.champion.signed_evidence.envelope import STATEMENT
from tasks.ptq.graph.edits import model_bytes
from tasks.records.result_document import Findings
from tasks.registry.champion_slot import place_of
from tasks.registry.mlflow_registry import connect, registry_call
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.storage.product import Product
from validators.digests import digest_text
from validators.gates.champion import champion_gates
from validators.records.artifact_paths import EVIDENCE
from validators.records.bundle import (
    CodeFacts,
    DataFacts,
    EvidenceRecord,
    PromotionDecision,
)
from validators.records.measurements import Accuracy
from validators.records.run import Trial
from validators.source_code import OURS

# Versions that may change a figure by rounding.
_COMPUTING = ("numpy", "scipy")


@step("seal the evidence")
def seal_evidence(run: LoadedRun, mlflow_run_id: str, findings: Findings, *, promotes: bool = False) -> Path:
    """Write the bundle of a run, upload it to its MLflow run, and return the file in the store; as `make_bundle`.

    Raises:
        InfrastructureError: MLflow does not answer.
    """
    path, told = make_bundle(run, mlflow_run_id, findings, promotes=promotes)
    with run.clock.work("seal the evidence"), connect(run.tracking_uri) as client:
        registry_call(client.log_artifact, mlflow_run_id, str(path), str(Path(EVIDENCE).parent))
    log.info("evidence: %s", told)
    return path


def make_bundle(run: LoadedRun, run_id: str, findings: Findings, *, promotes: bool) -> tuple[Path, str]:
    """Write the bundle of a run; return the file in the store, and its size and whether it is signed in words.

    `promotes` is True if the best trial of the findings is to be promoted. Without a key in the environment the bundle is
    unsigned.

    Raises:
        JobError: the signing key cannot be read, or the signing command fails.
    """
    baseline, best = findings.baseline, findings.best
    with run.clock.work("seal the evidence"):
        signer, members = signer_here(), Members()
        evidence = run.evidence
        record = EvidenceRecord(
            format=FORMAT,
            decision=_decision(run, findings, promotes=promotes),
            job=run.job.as_run(run.source.name, run.source.version, run.inventory.absent),
            source=run.source,
            data={
                role: DataFacts(file.uri, file.digest, file.rows)
                for role, file in evidence.files.items()
                if role != "traffic"
            },
            inventory=run.inventory,
            code=_code(),
            calibration=findings.calibration,
            run_id=run_id,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if best is not None and baseline is not None and best.variant and best.accuracy:
            record = _with_winner(run, members, record, baseline, best)
        content = sealed_members(members, record, signer)
        # A retry of the run gets the bundle of the first attempt, so that promotion resumes a version that has it.
        # The statement names every other member with its digest.
        stated = sealed_members(members, _of_any_attempt(record), None)[STATEMENT].decode("ascii")
        key = (digest_text(stated), signer.public if signer else "")
        path, _ = run.store.make(Product("evidence", key, Path, partial(write_archive, content)))
    return path, f"{len(content)} members, {'signed' if signer else 'unsigned'}"


def _of_any_attempt(record: EvidenceRecord) -> EvidenceRecord:
    """Return the record without what differs between the attempts of one run: its end, the load, and what was in the store."""
    trial = replace(record.trial, cached=False, seconds=0.0) if record.trial else None
    return replace(record, finished_at="", inventory=replace(record.inventory, load_average=0.0), trial=trial)


def _with_winner(
    run: LoadedRun, members: Members, record: EvidenceRecord, baseline: Accuracy, best: Trial
) -> EvidenceRecord:
    """Return the record with the winner's figures, whose files are added to the members."""
    assert best.variant and best.accuracy
    # Rows of a function that returns one number are the outputs and labels themselves.
    with_rows = not run.job.metric_is_function or np.load(best.accuracy.scores_path, mmap_mode="r").shape[1] == 1
    evidence = run.evidence
    slices, has_clusters = add_samples(members, evidence.confirmation, evidence.evaluation.slices, evidence.clusters)
    return replace(
        record,
        baseline=members.accuracy(baseline, "baseline", with_rows=with_rows),
        baseline_bytes=model_bytes(run.source.onnx_path),
        trial=members.trial(best, with_rows=with_rows),
        manifest=json.dumps(manifest_of(run, best.variant, best.saturation), indent=1),
        rows_left_out=not with_rows,
        slices=slices,
        has_clusters=has_clusters,
    )


def _decision(run: LoadedRun, findings: Findings, *, promotes: bool) -> PromotionDecision:
    """Return the decision; a champion that is the same artifact stays, and nothing is promoted."""
    best, champion = findings.best, findings.champion_before
    place, variant = place_of(run.source.name, run.job.target), best.variant if best else None
    stays = champion is not None and variant is not None and not champion_gates(variant.identity, champion)
    replaces = None if champion is None or stays else champion.version
    return PromotionDecision(promotes and not stays, place.name, place.target, replaces, findings.sign_off)


def _code() -> CodeFacts:
    versions = {name: metadata.version(name) for name in _COMPUTING}
    digest = OURS.digest(OURS.modules["flows.quantize"])
    return CodeFacts(metadata.version("quantgate"), digest, lock_digests(), installed_digest(), versions)

"""A promoted version with its evidence: planted answers and times, judged and sealed by the code that runs use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from onnx import TensorProto, helper
from report_data import CALIBRATION

from tasks.champion.bundle.contents import Members, add_samples, sealed_members
from tasks.champion.bundle.statement import Signer, sealed, statement_of
from tasks.champion.bundle.verify import read_record
from tasks.champion.manifest import hardware_of
from tasks.champion.signed_evidence.archive import archived
from tasks.champion.signed_evidence.check import FORMAT
from tasks.champion.signed_evidence.envelope import RECORD, STATEMENT
from tasks.measure.inventory import take_inventory
from tasks.measure.latency.recount import recount
from tasks.trials.judge import judge_trial
from tasks.trials.judge_on_samples import JudgedData, confirmed_of
from validators.digests import digest_file, digest_text
from validators.gates.catalog import judge_gates
from validators.gates.verdict_rules import confidence_of_each, overall
from validators.job.read_job import parse_job
from validators.records.artifact_paths import CONFIRMED
from validators.records.bundle import (
    CodeFacts,
    DataFacts,
    EvidenceRecord,
    PromotionDecision,
)
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy, Answers, Coverage, Estimate, Sanity
from validators.records.run import Confirmed, SessionSettings, SourceResult, Trial, Variant, identity_of
from validators.records.verdicts import SignOff

NAME, TARGET, CANDIDATE = "fraud-quantized", "ort-cpu", "int8-dynamic-pc@ort-cpu"
SAMPLES, BASELINE_BYTES = 1000, 10_000
SETTINGS = SessionSettings("CPUExecutionProvider", 1)
JOB = {
    "source": "models:/fraud/3",
    "target": TARGET,
    "data": {"calibration": "c.npz", "evaluation": "e.npz"},
    "candidates": [CANDIDATE],
    "gates": {"max_drop": 0.02, "min_speedup": 1.2, "min_coverage": 0.5, "max_p95_ratio": 1.0},
}


def new_signer() -> Signer:
    """A key that nothing has signed with."""
    key = Ed25519PrivateKey.generate()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
    return Signer(pem, key)


@dataclass(frozen=True)
class Version:
    """A folder as MLflow downloads a version, the members of its bundle, and the tags in the registry."""

    folder: Path
    members: dict[str, bytes]
    tags: dict[str, str]

    @property
    def artifacts(self) -> dict[str, str]:
        """The paths that MLflow hands to the consumer."""
        names = {"variant": "variant", "manifest": "manifest.json", "evidence": "evidence.zip"}
        found = {name: self.folder / "artifacts" / file for name, file in names.items()}
        return {name: str(path) for name, path in found.items() if path.exists()}

    @property
    def bundle(self) -> Path:
        return self.folder / "artifacts" / "evidence.zip"

    @property
    def manifest(self) -> Path:
        return self.folder / "artifacts" / "manifest.json"

    @property
    def record(self) -> dict[str, Any]:
        """The record as JSON, to change."""
        found: dict[str, Any] = json.loads(self.members[RECORD])
        return found

    def seal(self, record: Mapping[str, Any], signer: Signer | None) -> None:
        """Write the bundle with another record, and a statement that fits."""
        document = dict(record) | {"signer": signer.public if signer else ""}
        found = self.members | {RECORD: json.dumps(document, indent=1, sort_keys=True).encode()}
        readable = read_record(json.dumps(document | {"format": FORMAT}).encode())
        found |= {STATEMENT: sealed(statement_of(readable, found), signer)}
        self.bundle.write_bytes(archived(found))


def make_version(
    folder: Path, signer: Signer | None, *, approval: SignOff | None = None, model: str = "fraud", target: str = TARGET
) -> Version:
    """Write a version that passed every gate and was promoted as the first champion.

    With `approval` its job requires one; the digest of it is filled in.
    """
    files = folder / "artifacts" / "variant"
    files.mkdir(parents=True)
    _write_model(files / "model.onnx")
    manifest = _manifest(files / "model.onnx")
    (folder / "artifacts" / "manifest.json").write_text(manifest)
    name = f"{model}-quantized"
    (folder / "registered_model_meta").write_text(yaml.safe_dump({"model_name": name, "model_version": 4}))
    work = folder.with_name(f"{folder.name}-work")
    work.mkdir()
    digest = digest_file(files / "model.onnx")
    said = replace(approval, digest=digest, identity=identity_of(digest, SETTINGS)) if approval else None
    changes = {"source": f"models:/{model}/3", "target": target, "approval": {"required": said is not None}}
    decision = PromotionDecision(True, name, target, sign_off=said)
    members, record = _judged(work, JOB | changes, digest, manifest, decision)
    sealed_as = sealed_members(members, record, signer)
    bundle = archived(sealed_as)
    version = Version(folder, sealed_as, _tags(record, manifest, bundle))
    version.bundle.write_bytes(bundle)
    return version


def _tags(record: EvidenceRecord, manifest: str, bundle: bytes) -> dict[str, str]:
    """Tags as `tasks/champion/manifest.py` writes them."""
    assert record.trial and record.trial.variant
    said = record.decision.sign_off
    facts = {
        "source_digest": record.source.digest,
        "variant_digest": record.trial.variant.digest,
        "manifest_digest": digest_text(manifest),
        "candidate": CANDIDATE,
        "target": record.decision.target,
        "device": record.inventory.device_key,
        "verdicts": json.dumps({verdict.gate: verdict.outcome for verdict in record.trial.verdicts}),
        "evidence": "runs:/r1",
        "identity": record.trial.variant.identity,
        "evidence_digest": hashlib.sha256(bundle).hexdigest(),
    }
    facts |= {"approved_by": said.by, "approved_at": said.at, "approval_comment": said.comment} if said else {}
    return {f"quantgate.{key}": value for key, value in facts.items()}


def _write_model(path: Path) -> None:
    """`y = -x`."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negated", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def _manifest(model: Path) -> str:
    document = {
        "format": 2,
        "files": {model.name: digest_file(model)},
        "session": {"provider": "CPUExecutionProvider", "threads": 1, "optimization": "all", "entries": {}},
        "libraries": [],
        "engine": None,
        "loader": "tasks.runtimes.shipped.model",
        "artifact": model.name,
        "compiled": False,
        "runtime": "onnxruntime",
        "inputs": {"x": "float32"},
        "outputs": ["y"],
        "runtime_version": onnxruntime.__version__,
        "hardware": hardware_of(take_inventory(TARGET)),
    }
    return json.dumps(document, indent=1)


def _judged(
    work: Path, document: Mapping[str, Any], digest: str, manifest: str, decision: PromotionDecision
) -> tuple[Members, EvidenceRecord]:
    """Judge planted answers and times, on the samples that choose and on those that confirm."""
    job = parse_job(dict(document), base=Path())
    kept = np.arange(SAMPLES) % 2 == 1
    baseline = _accuracy(work, "baseline", np.arange(SAMPLES) < 800)
    data = JudgedData(job, baseline, BASELINE_BYTES, kept, {})
    variant = Variant(CANDIDATE, Path("model.onnx"), digest, 2000, SETTINGS)
    coverage = Coverage({"QGemm": 90, "Gemm": 10}, ("QGemm",), ("head",), ("CPUExecutionProvider",))
    answers = _accuracy(work, "winner", np.arange(SAMPLES) < 802)
    same = (Answers("y", "float32", (8, 3)),)
    trial = Trial(CANDIDATE, variant=variant, accuracy=answers, coverage=coverage, sanity=Sanity(8, 3, same, same))
    trial = judge_trial(data, replace(trial, latencies=(_latency(work, "point", job.gates.confidence),)))
    confidence = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
    measured, figures = confirmed_of(data, trial, confidence)
    measured = replace(measured, latency=_latency(work, "again", confidence))
    verdicts = (*trial.verdicts, *judge_gates(measured, CONFIRMED, confirming=True))
    assert overall(verdicts) == "passed", verdicts
    confirmed = Confirmed(
        figures.rows, confidence, figures.baseline_value, figures.value, figures.drop, (), measured.latency
    )
    trial = replace(trial, confirmed=confirmed, verdicts=verdicts, outcome="passed")
    members = Members()
    add_samples(members, kept, {}, None)
    source = decision.model.removesuffix("-quantized")
    record = EvidenceRecord(
        format=FORMAT,
        decision=decision,
        job=job.as_run(source, "3", ()),
        source=SourceResult(job.source, source, "3", "a" * 64),
        data={name: DataFacts(None, "d" * 64, SAMPLES) for name in ("calibration", "evaluation")},
        inventory=take_inventory(TARGET),
        code=CodeFacts("1", "c", {}, "i", {}),
        calibration=CALIBRATION,
        run_id="r1",
        finished_at="2026-11-22T10:00:00+00:00",
        baseline=members.accuracy(baseline, "baseline", with_rows=True),
        baseline_bytes=BASELINE_BYTES,
        trial=members.trial(trial, with_rows=True),
        manifest=manifest,
    )
    return members, record


def _accuracy(work: Path, name: str, right: Any) -> Accuracy:
    scores, finite = work / f"{name}.npy", work / f"{name}_finite.npy"
    np.save(scores, right.astype(np.float64)[:, None])
    np.save(finite, np.ones(len(right)))
    return Accuracy("accuracy", float(right.mean()), len(right), scores, finite)


def _latency(work: Path, name: str, confidence: float) -> Latency:
    """Twice as fast as the baseline, in three launches of two pairs of eighty requests."""
    launches, pairs, each = 3, 6, 80
    rng = np.random.default_rng(len(name))
    base = 2.0 + 0.02 * rng.random(pairs * each)
    block = np.repeat(np.arange(pairs), each)
    path = work / f"{name}.npz"
    np.savez(
        path,
        launch=np.repeat(np.arange(launches), pairs // launches),
        baseline=base,
        baseline_block=block,
        variant=base / 2 + 0.01 * rng.random(len(base)),
        variant_block=block,
        requests=np.array(each),
    )
    nothing = dict.fromkeys(("p95_ms", "p99_ms", "baseline_p95_ms", "baseline_p99_ms"))
    measured = dict.fromkeys(("load_ms", "peak_memory_mb", "baseline_load_ms", "baseline_peak_memory_mb"), 1.0)
    found: dict[str, Any] = {"batch_size": 1, "p50_ms": 1.0, "count": 1, "baseline_p50_ms": 2.0, "pairs": 6}
    empty = Latency(**found, **nothing, **measured, speedup=Estimate(2.0), samples_path=path)
    # Percentiles are counted where a latency has some.
    return recount(replace(empty, p95=_ANY, p99=_ANY), confidence)


_ANY: Any = True

"""Evidence of real runs: bundles verify where few packages are, and each change of one is found."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from driving import environment, register_models, run_jobs, write_job
from packages import linked

from tasks.champion.bundle.statement import KEY_FILE, Signer, sealed, statement_of
from tasks.champion.bundle.verify import is_sound, read_record, verify
from tasks.champion.signed_evidence.archive import archived, read_archive
from tasks.champion.signed_evidence.envelope import RECORD, STATEMENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def write_keys(folder: Path, name: str) -> tuple[Path, str]:
    """Write a private key; return its path, and the public key."""
    key = Ed25519PrivateKey.generate()
    path = folder / f"{name}.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two signed runs of one model, with slices and clusters; the second does not beat the champion of the first."""
    folder = tmp_path_factory.mktemp("evidence")
    private, public = write_keys(folder, "signer")
    state = folder / "state"
    register_models(state, tiny.model.parent)
    for which, first in (("calibration", 0), ("evaluation", 100_000)):
        with np.load(getattr(tiny, which)) as archive:
            arrays = {name: archive[name] for name in archive.files}
        rows = np.arange(len(arrays["x"]))
        arrays |= {"part": np.where(rows % 3 == 0, "a", "b"), "person": first + rows // 2}
        np.savez(folder / f"{which}.npz", **arrays)
    found: dict[str, Any] = {"state": state, "public": public, "private": private}
    calls: list[dict[str, object]] = []
    for name, candidate in (("first", "int8-static-minmax-pt"), ("second", "int8-static-minmax-pc")):
        job = tiny.job(
            source="models:/tiny/1",
            target="ort-cpu",
            candidates=[f"{candidate}@ort-cpu"],
            gates={
                "min_speedup": None,
                "max_size_ratio": None,
                "max_drop": 0.05,
                "min_metric": 0.5,
                "max_p95_ms": 1000.0,
                "max_p95_ratio": 1000.0,
            },
        )
        job["measurement"] = {**job["measurement"], "launches": 3}
        files = {which: str(folder / f"{which}.npz") for which in ("calibration", "evaluation")}
        job["data"] = files | {"label": "label", "slices": ["part"], "groups": "person"}
        calls.append({"name": name, "job": str(write_job(folder / f"{name}.yaml", job))})
    for name, answer in run_jobs(state, folder / "runs", calls, plain=True, **{KEY_FILE: str(private)}).items():
        assert answer.result is not None, answer.said
        found[name] = answer.result
    found["bundles"] = sorted(
        (state / "mlartifacts").rglob("evidence/evidence.zip"), key=lambda path: path.stat().st_mtime
    )
    return found


def folder_of_version(runs: dict[str, Any]) -> Path:
    """Artifacts of the promoted version: `variant` and `evidence.zip`."""
    (found,) = (runs["state"] / "mlartifacts" / "models").rglob("evidence.zip")
    return found.parent


def changed(bundle: Path, to: Path, members: dict[str, bytes]) -> Path:
    """The bundle with other members, packed as quantgate packs."""
    to.write_bytes(archived({**read_archive(bundle), **members}))
    return to


def failed_part(bundle: Path, **how: Any) -> str:
    """The part at which verification fails."""
    failed = [part.part for part in verify(bundle, **how) if part.is_sound is False]
    assert len(failed) == 1, failed
    return failed[0]


def forged(record: dict[str, Any], members: dict[str, bytes], signer: Signer | None = None) -> dict[str, bytes]:
    """All members with another record and a statement that fits."""
    found = members | {RECORD: json.dumps(record, indent=1, sort_keys=True).encode()}
    return found | {STATEMENT: sealed(statement_of(read_record(found[RECORD]), found), signer)}


def test_bundle_of_each_run_verifies(runs: dict[str, Any]) -> None:
    """The verdict against the champion among them, by slices and clusters."""
    assert runs["first"]["outcome"] == "promoted"
    assert len(runs["bundles"]) == 2
    decided = []
    for bundle in runs["bundles"]:
        parts = verify(bundle, key=runs["public"])
        assert is_sound(parts), [part for part in parts if part.is_sound is False]
        by_name = {part.part: part for part in parts}
        assert "bit for bit from the samples" in by_name["verdict confirmed_worst_slice"].told
        assert "by the given key" in by_name["signature"].told
        for gate in ("confirmed_metric_floor", "confirmed_p95_ratio", "p95_ms"):
            assert "from the samples" in by_name[f"verdict {gate}"].told
        decided.append(by_name["decision"].told)
    assert by_name["verdict beats_champion"].is_sound is True
    assert decided[0] == "promoted by its gates, as tiny-quantized@champion-ort-cpu"
    assert decided[1].startswith("not promoted")


def test_bundle_verifies_with_few_packages(runs: dict[str, Any], tmp_path: Path) -> None:
    """In an environment of its own, without a runtime, a server's client or torch, in less than five seconds of processor."""
    python = linked(tmp_path / "venv", (ROOT / "requirements" / "verify.in").read_text(encoding="utf-8").split())
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    absent = subprocess.run([python, "-c", "import mlflow"], capture_output=True, env=env, check=False)
    assert b"No module named 'mlflow'" in absent.stderr
    command = [str(python), "-m", "tasks.champion.bundle", str(runs["bundles"][0])]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound         verdicts" in done.stdout
    spoilt = changed(runs["bundles"][0], tmp_path / "spoilt.zip", {"winner/scores.npy": b"x"})
    again = subprocess.run([*command[:-1], str(spoilt)], capture_output=True, text=True, env=env, check=False)
    assert again.returncode == 1 and "FAILED        winner/scores.npy" in again.stdout


def test_every_flipped_byte_is_found(runs: dict[str, Any], tmp_path: Path) -> None:
    """Two hundred flips over all members, and as many anywhere; a flip within a member names it."""
    bundle = runs["bundles"][1]
    content = bundle.read_bytes()
    members = read_archive(bundle)
    with zipfile.ZipFile(bundle) as archive:
        # A local header has 30 bytes and the name.
        places = {one.filename: one.header_offset + 30 + len(one.filename) for one in archive.infolist()}
    rng = np.random.default_rng(0)
    names = sorted(members)
    path = tmp_path / "flipped.zip"
    for index in range(200):
        name = names[index % len(names)]
        at = places[name] + int(rng.integers(len(members[name])))
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        assert failed_part(path) == name
    for _ in range(200):
        flipped = bytearray(content)
        flipped[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        assert failed_part(path)


@pytest.mark.parametrize("signed", [True, False])
def test_edited_verdict_is_found(runs: dict[str, Any], tmp_path: Path, signed: bool) -> None:
    """Packed again as it was, and with a statement that fits, which only the samples and the signature tell apart."""
    members = read_archive(runs["bundles"][0])
    record = json.loads(members[RECORD])
    drop = next(verdict for verdict in record["trial"]["verdicts"] if verdict["gate"] == "drop")
    drop["value"] = drop["high"] = 0.0
    edited = {RECORD: json.dumps(record, indent=1, sort_keys=True).encode()}
    assert failed_part(changed(runs["bundles"][0], tmp_path / "a.zip", edited)) == RECORD
    record["signer"] = ""
    path = tmp_path / "b.zip"
    path.write_bytes(archived(forged(record, members)))
    if signed:
        assert failed_part(path, key=runs["public"]) == "signature"
    else:
        assert failed_part(path) == "verdict drop"


def test_removed_sample_is_found(runs: dict[str, Any], tmp_path: Path) -> None:
    """Also by someone who makes the statement anew."""
    members = read_archive(runs["bundles"][0])
    record = json.loads(members[RECORD]) | {"signer": ""}
    for name, part in (("winner/scores.npy", "samples"), ("latency/point0.npz", "latency/point0.npz")):
        buffer = io.BytesIO()
        loaded = np.load(io.BytesIO(members[name]))
        if name.endswith(".npz"):
            arrays = {one: loaded[one] for one in loaded.files}
            np.savez(
                buffer, **arrays | {"variant": arrays["variant"][:-1], "variant_block": arrays["variant_block"][:-1]}
            )
        else:
            np.save(buffer, loaded[:-1])
        path = tmp_path / "removed.zip"
        path.write_bytes(archived(forged(record, members | {name: buffer.getvalue()})))
        assert failed_part(path) == part
        assert failed_part(changed(runs["bundles"][0], path, {name: buffer.getvalue()})) == name


@pytest.mark.parametrize(
    "change", [{"manifest": "no JSON"}, {"manifest": "[]"}, {"job": {"gates": 5}}, {"baseline": None}]
)
def test_record_that_does_not_fit_together_is_found(
    runs: dict[str, Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    """A hostile record names the part, and raises nothing."""
    members = read_archive(runs["bundles"][0])
    record = json.loads(members[RECORD]) | {"signer": ""} | change
    sound = read_record(members[RECORD])
    found = members | {RECORD: json.dumps(record, indent=1, sort_keys=True).encode()}
    found |= {STATEMENT: sealed(statement_of(sound, found), None)}
    path = tmp_path / "forged.zip"
    path.write_bytes(archived(found))
    assert failed_part(path) in (RECORD, STATEMENT)


def test_exchanged_artifact_is_found(runs: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "version"
    shutil.copytree(folder_of_version(runs), folder)
    told = {part.part: part.is_sound for part in verify(folder, key=runs["public"])}
    assert told["artifacts"] is True and None not in (told["signature"], told["verdicts"])
    model = folder / "variant" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    assert failed_part(folder) == "artifact model.onnx"
    model.unlink()
    assert failed_part(folder) == "artifact model.onnx"


def test_signature_of_another_key_is_found(runs: dict[str, Any], tmp_path: Path) -> None:
    """Also where the record names that key, as someone would who signs what they forged."""
    private, public = write_keys(tmp_path, "other")
    assert failed_part(runs["bundles"][0], key=public) == "signature"
    members = read_archive(runs["bundles"][0])
    key = load_pem_private_key(private.read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    forgery = forged(json.loads(members[RECORD]) | {"signer": public}, members, Signer(public, key))
    path = tmp_path / "forged.zip"
    path.write_bytes(archived(forgery))
    assert is_sound(verify(path)) and failed_part(path, key=runs["public"]) == "signature"


def test_statement_is_what_other_tools_read(runs: dict[str, Any]) -> None:
    """in-toto's statement with SLSA's predicate; its subject is the promoted file."""
    envelope = json.loads(read_archive(runs["bundles"][0])[STATEMENT])
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    model = folder_of_version(runs) / "variant" / "model.onnx"
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert statement["subject"] == [{"name": "model.onnx", "digest": {"sha256": digest}}]
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["job"]["source"] == "models:/tiny/1"


# Loads a version once for each case, with its variables and its evidence, and prints each error, or "".
CONSUMER = """
import json, os, shutil, sys
import mlflow, numpy as np
told = []
for case in json.load(sys.stdin):
    os.environ.update(case["variables"])
    if case["evidence"]:
        shutil.copyfile(*case["evidence"])
    try:
        model = mlflow.pyfunc.load_model(sys.argv[1])
        model.predict({"x": np.load(sys.argv[2])["x"]})["logits"].shape
        told.append("")
    except Exception as error:
        told.append(str(error))
    for name in case["variables"]:
        del os.environ[name]
print(json.dumps(told))
"""


CHAMPION = "models:/tiny-quantized@champion-ort-cpu"


@dataclass(frozen=True)
class Case:
    """The variables of a consumer; before it loads the version, the first file of `evidence` is copied to the second."""

    variables: dict[str, str]
    evidence: tuple[str, str] | None = None


def consume(runs: dict[str, Any], evaluation: Path, *cases: Case, uri: str = CHAMPION) -> list[str]:
    """Return the error of each case in a consumer's process, or ""."""
    env = environment(runs["state"], MLFLOW_TRACKING_URI=f"sqlite:///{runs['state'] / 'mlflow.db'}")
    command = [sys.executable, "-W", "ignore", "-c", CONSUMER, uri, str(evaluation)]
    told = json.dumps([asdict(case) for case in cases])
    done = subprocess.run(command, env=env, input=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_consumer_can_require_evidence(runs: dict[str, Any], tiny: Tiny, tmp_path: Path) -> None:
    public, other = tmp_path / "public.pem", tmp_path / "other.pem"
    public.write_text(runs["public"])
    other.write_text(write_keys(tmp_path, "other")[1])
    wanted = {"QUANTGATE_REQUIRE_EVIDENCE": "1"}
    signed = wanted | {"QUANTGATE_EVIDENCE_KEY_FILE": str(public)}
    bundle = folder_of_version(runs) / "evidence.zip"
    kept = bundle.read_bytes()
    spoilt = changed(bundle, tmp_path / "spoilt.zip", {"winner/scores.npy": b"x"})
    unpromoted = runs["bundles"][1]
    cases = (
        Case(signed),
        Case(wanted),
        Case(wanted | {"QUANTGATE_EVIDENCE_KEY_FILE": str(other)}),
        Case({"QUANTGATE_REQUIRE_EVIDENCE": "yes"}),
        Case(signed, (str(spoilt), str(bundle))),
        Case(signed, (str(unpromoted), str(bundle))),
    )
    try:
        good, *bad = consume(runs, tiny.evaluation, *cases)
        assert failed_part(bundle.parent, key=runs["public"]) == "decision"
    finally:
        bundle.write_bytes(kept)
    assert good == ""
    words = (
        "found no QUANTGATE_EVIDENCE_KEY_FILE",
        "fails at signature: found one of the key",
        "expected 0 or 1",
        "evidence that fails at winner/scores.npy",
        "found a variant that was not promoted",
    )
    for said, expected in zip(bad, words, strict=True):
        assert expected in said


def test_evidence_is_for_one_registered_model(runs: dict[str, Any], tiny: Tiny, tmp_path: Path) -> None:
    """The same files, registered under another name, as MLflow copies versions."""
    uri = f"sqlite:///{runs['state'] / 'mlflow.db'}"
    copy = "import mlflow; mlflow.MlflowClient().copy_model_version('models:/tiny-quantized/1', 'prod')"
    env = environment(runs["state"], MLFLOW_TRACKING_URI=uri)
    done = subprocess.run([sys.executable, "-c", copy], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    public = tmp_path / "public.pem"
    public.write_text(runs["public"])
    wanted = {"QUANTGATE_REQUIRE_EVIDENCE": "1", "QUANTGATE_EVIDENCE_KEY_FILE": str(public)}
    (bad,) = consume(runs, tiny.evaluation, Case(wanted), uri="models:/prod/1")
    assert "expected that for prod" in bad, bad


def test_command_names_the_failed_part(runs: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli.app", "verify"]
    good = subprocess.run([*command, str(runs["bundles"][0])], cwd=ROOT, capture_output=True, text=True, check=False)
    assert good.returncode == 0 and "nothing failed" in good.stdout, good.stdout + good.stderr
    env = environment(runs["state"])
    for name, code, words in (
        ("champion-ort-cpu", 0, "1 files, each with the digest"),
        ("nobody", 2, "a registered version"),
    ):
        told = subprocess.run(
            [*command, f"models:/tiny-quantized@{name}"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert told.returncode == code and words in " ".join((told.stdout + told.stderr).split()), told.stderr
    spoilt = changed(runs["bundles"][0], tmp_path / "spoilt.zip", {"baseline/finite.npy": b""})
    bad = subprocess.run([*command, str(spoilt)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert bad.returncode == 1 and "FAILED at baseline/finite.npy" in " ".join(bad.stdout.split())


# What a user of MLflow writes who has never heard of quantgate.
STRANGER = """
import sys
import mlflow, numpy as np
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("quantgate")
found = client.search_logged_models(
    [experiment.experiment_id], filter_string="metrics.speedup_p50 > 0.01 AND metrics.accuracy > 0.7"
)
champion = client.get_model_version_by_alias("tiny-quantized", "champion-ort-cpu")
best = next(one for one in found if champion.source == f"models:/{one.model_id}")
print(mlflow.pyfunc.load_model(f"models:/{best.model_id}").predict({"x": np.load(sys.argv[1])["x"]})["logits"].shape[1])
print(sorted(name for name in best.tags if name.startswith("quantgate.gate.")))
judged = {one.key: one.dataset_name for one in best.metrics}
print(best.params["precision"], judged["speedup_p50"], best.tags["quantgate.version"], len(found))
"""


def test_mlflow_alone_finds_the_champion_by_its_figures(runs: dict[str, Any], tiny: Tiny, tmp_path: Path) -> None:
    """In an environment without quantgate."""
    python = linked(tmp_path / "venv", ("mlflow", "onnxruntime"))
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"sqlite:///{runs['state'] / 'mlflow.db'}",
    }
    absent = subprocess.run([python, "-c", "import tasks"], capture_output=True, env=env, cwd=tmp_path, check=False)
    assert b"No module named 'tasks'" in absent.stderr
    command = [str(python), "-W", "ignore", "-c", STRANGER, str(tiny.evaluation)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    classes, gates, facts = done.stdout.splitlines()[-3:]
    assert classes == "4" and "'quantgate.gate.confirmed_drop'" in gates
    assert facts == "int8 evaluation tiny-quantized/1 2"


def test_run_without_a_winner_has_its_record(tiny: Tiny, tmp_path: Path) -> None:
    """Of a file, with a gate that nothing passes; and with calibration data that is refused. Both are unsigned."""
    state = tmp_path / "state"
    with np.load(tiny.calibration) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(tmp_path / "constant.npz", **{name: np.zeros_like(array) for name, array in arrays.items()})
    jobs = {
        "slow": tiny.job(gates={"min_speedup": 1e6}),
        "refused": tiny.job(data={"calibration": str(tmp_path / "constant.npz"), "evaluation": str(tiny.evaluation)}),
    }
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(write_job(tmp_path / f"{name}.yaml", job))} for name, job in jobs.items()
    ]
    answers = run_jobs(state, tmp_path / "runs", calls, plain=True)
    found = {name: answer.result["outcome"] for name, answer in answers.items() if answer.result}
    assert found == {"slow": "no_variant", "refused": "refused"}
    bundles = list((state / "mlartifacts").rglob("evidence.zip"))
    assert len(bundles) == 2
    for bundle in bundles:
        told = {part.part: part.is_sound for part in verify(bundle)}
        assert told == {"archive": True, "signature": None, "calibration": True, "decision": None, "verdicts": None}

"""Both readers of a version's evidence, `quantgate verify` and the consumer: what they accept, and each edit that they find."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evidence import NAME, TARGET, Version, make_version, new_signer

from tasks.champion.bundle.verify import VerifiedPart, verify
from tasks.champion.seal_evidence import _decision
from tasks.champion.signed_evidence.archive import read_archive
from tasks.records.result_document import Findings
from validators.digests import digest_file
from validators.records.run import Champion
from validators.records.verdicts import SignOff

ROOT = Path(__file__).parents[4]
SIGNER = new_signer()
ADA = SignOff("approved", "Ada", "as agreed", "2026-11-22T10:00:00Z", "", None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Version]:
    """Signed versions: of `fraud`, of another model, of another target, and one that Ada approved."""
    folder = tmp_path_factory.mktemp("versions")
    return {
        "fraud": make_version(folder / "fraud", SIGNER),
        "other": make_version(folder / "other", SIGNER, model="topics"),
        "cpu": make_version(folder / "cpu", SIGNER, target="cpu"),
        "approved": make_version(folder / "approved", SIGNER, approval=ADA),
    }


@pytest.fixture
def version(made: dict[str, Version], tmp_path: Path) -> Version:
    """A copy of the version of `fraud`, to change."""
    return copied(made["fraud"], tmp_path)


def copied(version: Version, folder: Path) -> Version:
    return replace(version, folder=Path(shutil.copytree(version.folder, folder / "version")))


@pytest.fixture
def consume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Version], Any]:
    """Load a version by the consumer's own code, which demands evidence; return its answer to -1, 0, 1."""
    key = tmp_path / "public.pem"
    key.write_text(SIGNER.public)
    monkeypatch.setenv("QUANTGATE_REQUIRE_EVIDENCE", "1")
    monkeypatch.setenv("QUANTGATE_EVIDENCE_KEY_FILE", str(key))
    monkeypatch.syspath_prepend(str(ROOT / "tasks" / "champion"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow's, about its own type hints
        module = importlib.import_module("tasks.champion.consumer.consumer")

    def load(version: Version) -> Any:
        champion = module.OnnxChampion()
        champion.load_context(SimpleNamespace(artifacts=version.artifacts))
        return champion.predict(None, {"x": np.float32([[-1, 0, 1]])})["y"].tolist()

    return load


def failed(bundle: Path, **how: Any) -> VerifiedPart:
    """The part at which verification by the key fails."""
    (found,) = [part for part in verify(bundle, **{"key": SIGNER.public} | how) if part.is_sound is False]
    return found


@pytest.mark.parametrize("which", ["fraud", "approved"])
def test_sound_version_passes_both_readers(
    made: dict[str, Version], consume: Callable[[Version], Any], which: str
) -> None:
    version = made[which]
    parts = {part.part: part for part in verify(version.folder, key=SIGNER.public, tags=version.tags)}
    assert {name: part for name, part in parts.items() if not part.is_sound} == {}
    assert {"decision", "manifest", "artifacts", "tags", "verdict confirmed_speedup"} <= parts.keys()
    who = "approved by Ada on 2026-11-22T10:00:00Z" if which == "approved" else "promoted by its gates"
    assert who in parts["decision"].told and f"{NAME}@champion-{TARGET}" in parts["decision"].told
    assert consume(version) == [[1, 0, -1]]


def test_folder_is_verified_from_within(made: dict[str, Version], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a relative path, and by the folder of artifacts; the name in MLflow lies one folder above."""
    monkeypatch.chdir(made["fraud"].folder / "artifacts")
    assert all(part.is_sound for part in verify(Path(), key=SIGNER.public))


@pytest.mark.parametrize("text", ["", "[", "model_name", "{}"])
def test_unreadable_name_of_a_version_is_refused(
    version: Version, consume: Callable[[Version], Any], text: str
) -> None:
    (version.folder / "registered_model_meta").write_text(text)
    assert failed(version.folder).part == "registered_model_meta"
    with pytest.raises(RuntimeError, match="fails at registered_model_meta"):
        consume(version)


@pytest.mark.parametrize(
    ("champion", "promotes", "expected"),
    [
        (None, True, (True, None)),
        ("other", True, (True, "3")),
        ("same", True, (False, None)),
        ("other", False, (False, "3")),
    ],
)
def test_seal_records_what_was_decided(champion: str | None, promotes: bool, expected: tuple[bool, str | None]) -> None:
    """A champion that is the same variant stays: its version keeps the evidence that it has."""
    run: Any = SimpleNamespace(job=SimpleNamespace(target=TARGET), source=SimpleNamespace(name="fraud"))
    best: Any = SimpleNamespace(variant=SimpleNamespace(identity="same"))
    present = Champion(NAME, "3", f"champion-{TARGET}", "d", "s", "c", identity=champion) if champion else None
    decision = _decision(run, Findings(best=best, champion_before=present, sign_off=ADA), promotes=promotes)
    assert (decision.promotes, decision.replaces) == expected
    assert (decision.model, decision.target, decision.sign_off) == (NAME, TARGET, ADA)


Change = Callable[[dict[str, Any]], None]


def decided(**changes: Any) -> Change:
    return lambda record: record["decision"].update(changes)


def judged_inconclusive(record: dict[str, Any]) -> None:
    record["trial"]["outcome"] = record["trial"]["verdicts"][0]["outcome"] = "inconclusive"


DECISIONS: dict[str, tuple[str, Change, str]] = {
    "not promoted": ("fraud", decided(promotes=False), "found a variant that was not promoted"),
    "rejected": (
        "approved",
        lambda record: (
            record["decision"].update(promotes=False) or record["decision"]["sign_off"].update(decision="rejected")
        ),
        "found a variant that was rejected by Ada on 2026-11-22T10:00:00Z",
    ),
    "promoted after a rejection": (
        "approved",
        lambda record: record["decision"]["sign_off"].update(decision="rejected"),
        "found a promotion after the answer",
    ),
    "approved for another file": (
        "approved",
        lambda record: record["decision"]["sign_off"].update(digest="0" * 64),
        "found a promotion after the answer",
    ),
    "approved after another champion": ("approved", decided(replaces="3"), "found a promotion after the answer"),
    "never asked": ("approved", decided(sign_off=None), "found no approval; the job requires one"),
    "not passed": ("fraud", judged_inconclusive, "did not pass: drop"),
    "nothing won": ("fraud", lambda record: record.update(trial=None), "did not pass: none passed"),
    "simulated": ("fraud", lambda record: record["trial"]["variant"].update(proof="simulated"), "did not pass"),
    "another target than the job": ("fraud", decided(target="openvino"), "the record is about fraud, ort-cpu"),
    "another model than the source": ("fraud", decided(model="topics-quantized"), "the record is about fraud, ort-cpu"),
    "a file": ("fraud", lambda record: record["job"].update(source="/m.onnx"), "of the file /m.onnx"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_readers_refuse_what_was_not_promoted(
    made: dict[str, Version], tmp_path: Path, consume: Callable[[Version], Any], name: str
) -> None:
    """Whatever the key signed: the decision is part of it, and has to fit the job and the variant."""
    which, change, words = DECISIONS[name]
    version = copied(made[which], tmp_path)
    record = version.record
    change(record)
    version.seal(record, SIGNER)
    part = failed(version.folder)
    assert part.part == "decision" and words in part.told
    with pytest.raises(RuntimeError, match="fails at decision: ") as caught:
        consume(version)
    assert words in str(caught.value)


def test_rejected_run_keeps_sound_evidence_of_its_rejection(made: dict[str, Version], tmp_path: Path) -> None:
    """The zip alone, as its run has it, is no offer to serve anything; beside files it is."""
    version = copied(made["approved"], tmp_path)
    record = version.record
    DECISIONS["rejected"][1](record)
    version.seal(record, SIGNER)
    parts = {part.part: part for part in verify(version.bundle, key=SIGNER.public)}
    assert False not in {part.is_sound for part in parts.values()}
    assert parts["decision"].is_sound is None and "rejected by Ada" in parts["decision"].told
    assert failed(version.bundle, artifacts=version.folder / "artifacts" / "variant").part == "decision"


def keep_verdicts(record: dict[str, Any], keep: Callable[[str], bool]) -> None:
    record["trial"]["verdicts"] = [one for one in record["trial"]["verdicts"] if keep(one["gate"])]


def without_confirmation(record: dict[str, Any]) -> None:
    record["trial"]["confirmed"] = None
    keep_verdicts(record, lambda gate: not gate.startswith("confirmed_"))


def without_latencies(record: dict[str, Any]) -> None:
    record["trial"]["latencies"] = []


def untimed(record: dict[str, Any]) -> None:
    without_latencies(record)
    keep_verdicts(record, lambda gate: gate not in ("speedup", "p95_ratio"))


def bare(record: dict[str, Any]) -> None:
    without_confirmation(record)
    untimed(record)


LEFT_OUT: dict[str, tuple[Change, str, str]] = {
    "the confirmation": (without_confirmation, "verdicts", "confirmed_drop, confirmed_finite"),
    "times with their verdicts": (untimed, "verdicts", "p95_ratio, speedup is missing"),
    "times alone": (without_latencies, "verdict speedup", "no samples or figures that give it"),
    "times and the confirmation": (bare, "verdicts", "confirmed_speedup"),
    "a verdict": (
        lambda record: keep_verdicts(record, lambda gate: gate != "coverage"),
        "verdict coverage",
        "the record has none",
    ),
    "rows": (lambda record: record.update(rows_left_out=True), "samples", "the rows of accuracy are left out"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_verify_demands_what_the_job_demands(version: Version, what: str) -> None:
    """Of an unsigned record that leaves something out, and has a statement that fits."""
    change, part, words = LEFT_OUT[what]
    record = version.record
    change(record)
    version.seal(record, None)
    found = failed(version.bundle, key=None)
    assert found.part == part and words in found.told


def test_verify_demands_the_comparison_with_the_champion(version: Version) -> None:
    """Of a promotion that replaces a version."""
    record = version.record
    record["decision"]["replaces"] = "3"
    version.seal(record, None)
    found = failed(version.bundle, key=None)
    assert found.part == "verdicts" and "beats_champion, champion_device is missing" in found.told
    beaten = record["trial"]["verdicts"][0] | {"gate": "beats_champion", "value": 1.2, "outcome": "pass"}
    record["trial"]["verdicts"] += [beaten, beaten | {"gate": "champion_device"}]
    version.seal(record, None)
    assert failed(version.bundle, key=None).part == "verdict beats_champion"


@pytest.mark.parametrize(("found", "words"), [(1, "it does not say whether the run promoted"), (3, "expected 2")])
def test_other_formats_are_refused_with_the_reason(
    version: Version, consume: Callable[[Version], Any], found: int, words: str
) -> None:
    """Earlier releases wrote format 1, which does not hold what was decided."""
    version.seal(version.record | {"format": found}, SIGNER)
    for told in (failed(version.folder).told, failed(version.bundle).told):
        assert f"found format {found}; expected 2" in told and words in told
    with pytest.raises(RuntimeError, match=rf"fails at record.json: found format {found}; expected 2"):
        consume(version)


def before(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())


def after(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def packed(path: Path, *more: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Pack the members in another way, and more members."""
    members = [*read_archive(path).items(), *more]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in members:
                archive.writestr(name, content)


FORMS: dict[str, Callable[[Path], None]] = {
    "bytes before it": before,
    "bytes after it": after,
    "compressed": lambda path: packed(path, compression=zipfile.ZIP_DEFLATED),
    "other dates": packed,
    "a member twice": lambda path: packed(path, ("record.json", b"{}")),
    "a member more": lambda path: packed(path, ("more.json", b"{}")),
    "outside of its folder": lambda path: packed(path, ("../more.json", b"{}")),
    "larger than any bundle": lambda path: os.truncate(path, (4 << 30) + 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_readers_take_one_form_of_an_archive(
    version: Version, consume: Callable[[Version], Any], form: str
) -> None:
    FORMS[form](version.bundle)
    assert failed(version.bundle).part in ("archive", "record.json")
    with pytest.raises(RuntimeError, match=r"evidence that fails at (archive|record\.json)"):
        consume(version)


@dataclass(frozen=True)
class Edit:
    """What somebody changes, and where it is found: the part of `verify`, the consumer's words; empty where it is trusted."""

    change: Callable[[Version, dict[str, Version]], Version | None]
    part: str
    words: str
    wanted: str = ""


def with_file(name: str, content: bytes | None) -> Callable[[Version, dict[str, Version]], None]:
    """Write a file of the version's folder, or append to it."""

    def change(version: Version, made: dict[str, Version]) -> None:
        path = version.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if content is not None else path.read_bytes() + b"\0")

    return change


def in_manifest(version: Version, made: dict[str, Version], **changes: Any) -> None:
    manifest = json.loads(version.manifest.read_text())
    version.manifest.write_text(json.dumps(manifest | changes, indent=1))


def other_settings(version: Version, made: dict[str, Version]) -> None:
    session = json.loads(version.manifest.read_text())["session"]
    in_manifest(version, made, session=session | {"optimization": "basic"})


def file_and_digest(version: Version, made: dict[str, Version]) -> None:
    model = version.folder / "artifacts" / "variant" / "model.onnx"
    content = model.read_bytes()
    assert content.count(b"Neg") == 1
    model.write_bytes(content.replace(b"Neg", b"Abs"))
    in_manifest(version, made, files={"model.onnx": digest_file(model)})


def forged(version: Version, made: dict[str, Version]) -> None:
    version.seal(version.record | {"run_id": "r2"}, new_signer())


def unsigned(version: Version, made: dict[str, Version]) -> None:
    version.seal(version.record | {"run_id": "r2"}, None)


def of_a_run_without_promotion(version: Version, made: dict[str, Version]) -> None:
    record = version.record
    record["decision"]["promotes"] = False
    version.seal(record, SIGNER)


def one_byte(version: Version, made: dict[str, Version]) -> None:
    content = bytearray(version.bundle.read_bytes())
    content[len(content) // 2] ^= 1
    version.bundle.write_bytes(content)


def of_another_model(version: Version, made: dict[str, Version]) -> Version:
    """All artifacts at once, each sound."""
    for name in ("evidence.zip", "manifest.json", "variant/model.onnx"):
        shutil.copy(made["other"].folder / "artifacts" / name, version.folder / "artifacts" / name)
    return replace(version, tags=made["other"].tags)


def registered(version: Version, made: dict[str, Version], name: str = NAME, number: int = 4) -> None:
    (version.folder / "registered_model_meta").write_text(f"model_name: {name}\nmodel_version: {number}\n")


def other_tags(version: Version, made: dict[str, Version]) -> Version:
    return replace(version, tags=version.tags | {"quantgate.evidence": "runs:/r2"})


def of_another_target(version: Version, made: dict[str, Version]) -> Version:
    return made["cpu"]


HERE = f"{NAME}@champion-{TARGET}"
SIGNATURE = "fails at signature"
EDITS: dict[str, Edit] = {
    "a file of the variant": Edit(
        with_file("artifacts/variant/model.onnx", None), "artifact model.onnx", "found model.onnx with sha256"
    ),
    "a file more beside it": Edit(
        with_file("artifacts/variant/more.so", b""), "artifact more.so", "which the manifest does not name"
    ),
    "a file and its digest in the manifest": Edit(file_and_digest, "manifest", "fails at manifest"),
    "session settings in the manifest": Edit(other_settings, "manifest", "fails at manifest"),
    "a byte of the bundle": Edit(one_byte, "archive", "evidence that fails at"),
    "the bundle, removed": Edit(
        lambda version, _: version.bundle.unlink(), "archive", "found a version without evidence"
    ),
    "the bundle, signed by another key": Edit(forged, "signature", SIGNATURE),
    "the bundle, without a signature": Edit(unsigned, "signature", SIGNATURE),
    "the bundle, for that of a run that promoted nothing": Edit(
        of_a_run_without_promotion, "decision", "fails at decision"
    ),
    "all of it, for the version of another model": Edit(of_another_model, "decision", "fails at decision"),
    "the name, by registering the version under another": Edit(
        lambda version, made: registered(version, made, "prod"), "decision", "fails at decision"
    ),
    "the alias, to a version of another target": Edit(of_another_target, "decision", "fails at decision", HERE),
    "the alias, to an earlier version or one that was rolled back": Edit(
        lambda version, made: registered(version, made, number=2), "", ""
    ),
    "tags": Edit(other_tags, "tag quantgate.evidence", ""),
    "code that consumers run: `consumer.py`, `code`, `MLmodel`, `requirements.txt`": Edit(
        with_file("code/more.py", b"x"), "", ""
    ),
    "what people read: `README.md`, `sbom.json`, the description": Edit(with_file("artifacts/README.md", b"x"), "", ""),
}


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_is_found_or_known_to_be_trusted(
    name: str,
    version: Version,
    made: dict[str, Version],
    consume: Callable[[Version], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the table in docs/security.md says."""
    edit = EDITS[name]
    version = edit.change(version, made) or version
    if edit.wanted:
        monkeypatch.setenv("QUANTGATE_EVIDENCE_FOR", edit.wanted)
    how: dict[str, Any] = {"tags": version.tags, "wanted": edit.wanted}
    if edit.part:
        part = failed(version.folder, **how).part
        assert part == edit.part or (edit.part == "archive" and part in version.members)
    else:
        assert all(part.is_sound for part in verify(version.folder, key=SIGNER.public, **how))
    if edit.words:
        with pytest.raises(RuntimeError) as caught:
            consume(version)
        assert edit.words in str(caught.value)
    else:
        assert consume(version) == [[1, 0, -1]]


@pytest.mark.parametrize("tag", ["variant_digest", "manifest_digest", "identity", "evidence_digest", "approved_by"])
def test_every_tag_that_names_what_is_served_is_compared(made: dict[str, Version], tag: str) -> None:
    version = made["approved"]
    changed = version.tags | {f"quantgate.{tag}": "other"}
    assert failed(version.folder, tags=changed).part == f"tag quantgate.{tag}"


def test_an_answer_about_other_settings_approves_nothing(made: dict[str, Version], tmp_path: Path) -> None:
    """The file that Ada approved, in another engine or with other settings, is another variant."""
    version = copied(made["approved"], tmp_path)
    record = version.record
    record["decision"]["sign_off"]["identity"] = "other"
    version.seal(record, SIGNER)
    found = failed(version.folder)
    assert found.part == "decision" and "another engine or other settings" in found.told


def test_the_table_of_edits_says_what_was_tried() -> None:
    """docs/security.md, row by row."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = text.split("## Between a run and its consumer")[1].split("|---|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    told = {what: (verified.split(",")[0], consumed.split(",")[0]) for _, what, verified, consumed in rows}
    assert told == {
        name: ("found" if edit.part else "trusted", "found" if edit.words else "trusted")
        for name, edit in EDITS.items()
    }


@pytest.mark.parametrize(
    ("named", "pinned", "words"),
    [
        ("prod", NAME, ""),
        ("prod", HERE, ""),
        ("", "", ""),
        (NAME, f"{NAME}@champion-cpu", "expected that for fraud-quantized@champion-cpu"),
        ("prod", "", "found evidence for fraud-quantized@champion-ort-cpu; expected that for prod"),
        (NAME, "topics-quantized", "expected that for topics-quantized"),
    ],
)
def test_evidence_is_of_the_model_that_is_wanted(
    version: Version,
    consume: Callable[[Version], Any],
    monkeypatch: pytest.MonkeyPatch,
    named: str,
    pinned: str,
    words: str,
) -> None:
    """By the name that MLflow was asked for, unless the environment names the model; not for a folder without a name."""
    monkeypatch.setenv("QUANTGATE_EVIDENCE_FOR", pinned)
    if named:
        registered(version, {}, named)
    else:
        (version.folder / "registered_model_meta").unlink()
    if words:
        with pytest.raises(RuntimeError, match=words):
            consume(version)
    else:
        assert consume(version) == [[1, 0, -1]]

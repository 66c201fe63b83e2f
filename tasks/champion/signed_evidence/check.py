"""Refusal of a version without valid evidence, if the environment asks for it; and the checks that `quantgate verify` shares.

`QUANTGATE_REQUIRE_EVIDENCE=1` demands the bundle of the run that promoted the version, signed by the public key in
`QUANTGATE_EVIDENCE_KEY_FILE`. The check compares digests, the signature, the manifest and the signed decision;
`quantgate verify` computes the verdicts again. Files are compared with the manifest each time a version is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .archive import BundleUnsound, check_document, open_regular, read_archive, read_member
from .envelope import RECORD, STATEMENT, check_members, open_envelope

REQUIRE, KEY_FILE = "QUANTGATE_REQUIRE_EVIDENCE", "QUANTGATE_EVIDENCE_KEY_FILE"
# Environment variable with the model that the evidence must be for, `name` or `name@champion-target`, in place of the
# registered name by which MLflow loads the version.
WANTED = "QUANTGATE_EVIDENCE_FOR"
# Format of `record.json`. Format 1 has no decision: it cannot tell a promoted variant from a rejected one.
FORMAT = 2
# Bytes of MLflow's file with the name and the version of a model.
_LONGEST_NAMES = 10_000


def require_evidence(artifacts: Mapping[str, str]) -> None:
    """Check the evidence of a version if `QUANTGATE_REQUIRE_EVIDENCE` is 1.

    `artifacts` are the paths of `evidence`, the bundle, and `manifest`, by which the files are checked and opened.

    Raises:
        RuntimeError: the evidence is missing, damaged, not signed by the key, with another manifest, or not of a variant that
            was promoted for this model.
    """
    asked = os.environ.get(REQUIRE, "0")
    if asked not in ("0", "1"):
        raise RuntimeError(f"found {REQUIRE}={asked}; expected 0 or 1; set one of them")
    if asked == "0":
        return
    if "evidence" not in artifacts:
        raise _refused("a version without evidence", "the bundle of the run that promoted it")
    bundle, manifest = Path(artifacts["evidence"]), Path(artifacts["manifest"])
    try:
        record = _signed_record(bundle)
        check_promoted(record, os.environ.get(WANTED) or registered_as(bundle.absolute().parents[1])[0])
        check_manifest(record, manifest)
    except BundleUnsound as error:
        raise _refused(
            f"evidence that fails at {error.part}: {error.reason}", "that of the run that promoted it"
        ) from error
    except ImportError as error:
        raise _refused(f"no package {error.name}", "cryptography, which checks signatures") from error
    except Exception as error:  # fields of the right type that do not fit together
        if type(error) is RuntimeError:
            raise
        raise _refused(f"evidence that cannot be read: {error!r}"[:300], "a bundle that quantgate wrote") from error


def _signed_record(bundle: Path) -> dict[str, Any]:
    """Return the record of a bundle whose members are those that the key in `QUANTGATE_EVIDENCE_KEY_FILE` signed."""
    path = os.environ.get(KEY_FILE)
    if not path:
        raise _refused(f"no {KEY_FILE}", "the public key that evidence must be signed by")
    # Nothing else is read of a bundle that the key did not sign.
    payload, _ = open_envelope(read_member(bundle, STATEMENT), Path(path).read_text(encoding="ascii"))
    members = read_archive(bundle)
    check_members(members, payload)
    return read_document(members[RECORD])


def read_document(content: bytes) -> dict[str, Any]:
    """Return a record as JSON.

    Raises:
        BundleUnsound: it is none, or one of another format.
    """
    check_document(content, RECORD)
    try:
        document = json.loads(content)
        found = document.get("format")
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleUnsound(RECORD, f"found no record: {error}"[:300]) from error
    if found != FORMAT:
        reason = ": it does not say whether the run promoted its variant; run the job again" if found == 1 else ""
        raise BundleUnsound(RECORD, f"found format {found!r}; expected {FORMAT}{reason}")
    return dict(document)


def check_manifest(record: Mapping[str, Any], manifest: Path) -> None:
    """Compare the manifest beside a version with the one in the record of its bundle.

    Raises:
        BundleUnsound: they differ.
    """
    expected = str(record["manifest"]).encode()
    try:
        with open_regular(manifest) as (stream, size):
            is_same = size == len(expected) and stream.read(size) == expected
    except OSError as error:
        raise BundleUnsound("manifest", f"it cannot be read: {error}") from error
    if not is_same:
        raise BundleUnsound("manifest", f"{manifest.name} beside the version is not the one in the record")


def check_promoted(record: Mapping[str, Any], wanted: str) -> str:
    """Check that a run decided to promote its variant, for the model that is wanted; return the decision in words.

    `wanted` is `name`, `name@champion-target`, or empty for any.

    Raises:
        BundleUnsound: it did not, or for another model or target, or the decision contradicts the job.
    """
    told, decision = check_decision(record), record["decision"]
    if not decision["promotes"]:
        raise BundleUnsound("decision", f"found a variant that was {told}; expected one that was promoted")
    place = f"{decision['model']}@champion-{decision['target']}"
    if wanted not in ("", decision["model"], place):
        fix = f"where the version was copied to that name on purpose, name the model of its evidence in {WANTED}"
        raise BundleUnsound("decision", f"found evidence for {place}; expected that for {wanted}; {fix}")
    return told


def check_decision(record: Mapping[str, Any]) -> str:
    """Check the decision in a record against the job and the variant; return it in words.

    Raises:
        BundleUnsound: they contradict each other.
    """
    decision, job, trial = record["decision"], record["job"], record["trial"]
    said, about = decision["sign_off"], (decision["model"], decision["target"])
    # The name must agree with `tasks/registry/champion_slot.py`.
    if about != (f"{record['source']['name']}-quantized", job["target"]):
        raise BundleUnsound(
            "decision", f"found {about}; the record is about {record['source']['name']}, {job['target']}"
        )
    if not decision["promotes"]:
        if said is not None and said["decision"] == "rejected":
            return f"rejected by {said['by']} on {said['at']}"
        return "not promoted" if trial else "not promoted: none passed"
    against = (
        [verdict["gate"] for verdict in trial["verdicts"] if verdict["outcome"] != "pass"] if trial else ["none passed"]
    )
    if against or trial["outcome"] != "passed" or trial["variant"]["proof"] != "measured":
        raise BundleUnsound("decision", f"found a promotion of a variant that did not pass: {', '.join(against)}")
    if not job["source"].startswith("models:/"):
        raise BundleUnsound("decision", f"found a promotion of a variant of the file {job['source']}")
    if said is None:
        if job["approval"]["required"]:
            raise BundleUnsound("decision", "found no approval; the job requires one")
        return "promoted by its gates"
    signed_off = said["decision"], said["digest"], said["replaces"]
    if signed_off != ("approved", trial["variant"]["digest"], decision["replaces"]):
        raise BundleUnsound("decision", f"found a promotion after the answer {signed_off} of {said['by']}")
    return f"promoted, approved by {said['by']} on {said['at']}"


def registered_as(folder: Path) -> tuple[str, str]:
    """Return the registered model and version as which MLflow downloaded a folder; both empty if it was not by name.

    Raises:
        BundleUnsound: MLflow's file in the folder cannot be read.
    """
    import yaml

    path = folder / "registered_model_meta"
    try:
        with open_regular(path) as (stream, size):
            found = yaml.safe_load(stream.read(_LONGEST_NAMES)) if size <= _LONGEST_NAMES else {}
        name, version = found["model_name"], found["model_version"]
        # A list of aliases could be written out without end.
        if not isinstance(name, str) or not isinstance(version, str | int):
            raise TypeError("the name or the version is no text")
        return name, str(version)
    except FileNotFoundError:
        return "", ""
    except Exception as error:  # PyYAML raises many classes for a value that its tag does not fit
        raise BundleUnsound(path.name, f"found no name and version of a model: {error!r}"[:300]) from error


def _refused(found: str, expected: str) -> RuntimeError:
    return RuntimeError(f"found {found}; expected {expected}; load another version, or unset {REQUIRE}")

"""Refusal of a version without valid evidence, if the environment asks for it.

`QUANTGATE_REQUIRE_EVIDENCE=1` demands the bundle of the run that promoted the version, signed by the public key in
`QUANTGATE_EVIDENCE_KEY_FILE`. The check compares digests, the signature and the recorded verdicts; `quantgate verify` computes
the verdicts again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REQUIRE, KEY_FILE = "QUANTGATE_REQUIRE_EVIDENCE", "QUANTGATE_EVIDENCE_KEY_FILE"
STATEMENT, RECORD = "statement.json", "record.json"


def require_evidence(artifacts: Mapping[str, str]) -> None:
    """Check the evidence of a version if `QUANTGATE_REQUIRE_EVIDENCE` is 1.

    `artifacts` are the paths of `evidence`, the bundle, and `variant`, the folder of the files that are loaded.

    Raises:
        RuntimeError: the evidence is missing, damaged, not signed by the key, about other files, or not of a passed variant.
    """
    asked = os.environ.get(REQUIRE, "0")
    if asked not in ("0", "1"):
        raise RuntimeError(f"found {REQUIRE}={asked}; expected 0 or 1; set one of them")
    if asked == "0":
        return
    if "evidence" not in artifacts:
        raise _refused("a version without evidence", "the bundle of the run that promoted it")
    try:
        _check(Path(artifacts["evidence"]), Path(artifacts["variant"]))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise _refused(f"evidence that cannot be read: {error!r}", "a bundle that quantgate wrote") from error


def _check(bundle: Path, variant: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    envelope = json.loads(members[STATEMENT])
    payload = base64.b64decode(envelope["payload"], validate=True)
    _check_signature(envelope, payload)
    statement = json.loads(payload)
    told = _digests(statement["predicate"]["runDetails"]["byproducts"])
    found = {name: hashlib.sha256(content).hexdigest() for name, content in members.items() if name != STATEMENT}
    if found != told:
        names = sorted(name for name in found.keys() | told.keys() if found.get(name) != told.get(name))
        raise _refused(f"evidence whose {names[0]} has another digest", "the members that were signed")
    subjects = _digests(statement["subject"])
    files = {path.name: _digest(path) for path in variant.iterdir()}
    if files != subjects:
        names = sorted(name for name in files.keys() | subjects.keys() if files.get(name) != subjects.get(name))
        raise _refused(f"evidence about another {names[0]}", "that of the files of this version")
    trial = json.loads(members[RECORD])["trial"]
    against = [verdict["gate"] for verdict in trial["verdicts"] if verdict["outcome"] != "pass"]
    if trial["outcome"] != "passed" or against:
        raise _refused(f"evidence of a variant that is {trial['outcome']}: {against}", "one that passed every gate")


def _check_signature(envelope: Mapping[str, Any], payload: bytes) -> None:
    path = os.environ.get(KEY_FILE)
    if not path:
        raise _refused(f"no {KEY_FILE}", "the public key that evidence must be signed by")
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise _refused("no package cryptography", "cryptography, which checks signatures") from error
    key = load_pem_public_key(Path(path).read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise _refused(f"{path}, a key of another kind", "an Ed25519 key")
    kind = str(envelope["payloadType"]).encode("ascii")
    # DSSE signs this encoding of the payload.
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    for one in envelope["signatures"]:
        try:
            key.verify(base64.b64decode(one["sig"], validate=True), message)
        except InvalidSignature:
            continue
        return
    raise _refused("evidence without a signature of the key", f"one of {path}")


def _digests(entries: Any) -> dict[str, str]:
    return {str(one["name"]): str(one["digest"]["sha256"]) for one in entries}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refused(found: str, expected: str) -> RuntimeError:
    return RuntimeError(f"found {found}; expected {expected}; load another version, or unset {REQUIRE}")

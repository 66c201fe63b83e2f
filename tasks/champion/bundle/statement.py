"""Statement of a bundle: SLSA provenance in an in-toto statement, in a DSSE envelope, signed by Ed25519 if there is a key.

Formats: in-toto Attestation Framework v1, SLSA Provenance v1, Dead Simple Signing Envelope (secure-systems-lab/dsse).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.champion.signed_evidence.check import FORMAT
from tasks.champion.signed_evidence.envelope import (
    RECORD,
    STATEMENT,
    compact_json,
    encoded,
    envelope_of,
    key_id,
    public_key,
)
from validators.errors import JobError
from validators.records.bundle import EvidenceRecord

if TYPE_CHECKING:
    # Unsigned evidence needs no such package.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BUILD_TYPE = f"urn:quantgate:evidence:v{FORMAT}"
KEY_FILE, COMMAND, PUBLIC_FILE = (
    "QUANTGATE_SIGNING_KEY_FILE",
    "QUANTGATE_SIGNING_COMMAND",
    "QUANTGATE_SIGNING_PUBLIC_KEY_FILE",
)
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class Signer:
    """A key: the private one, or a command that signs standard input; `public` is its public key in PEM."""

    public: str
    private: Ed25519PrivateKey | None = None
    command: str = ""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes.

        Raises:
            JobError: the command fails, or its signature is not one of the public key.
        """
        if self.private is not None:
            return self.private.sign(message)
        from cryptography.exceptions import InvalidSignature

        try:
            done = subprocess.run(
                shlex.split(self.command), input=message, capture_output=True, timeout=_COMMAND_SECONDS, check=True
            )
            signature = done.stdout if len(done.stdout) == 64 else base64.b64decode(done.stdout.strip(), validate=True)
            public_key(self.public).verify(signature, message)
        except (OSError, ValueError, subprocess.SubprocessError, InvalidSignature) as error:
            raise JobError(
                found=f"{COMMAND} gives no signature of {PUBLIC_FILE}: {type(error).__name__} {error}"[:300],
                expected="a command that reads a message and writes its Ed25519 signature, as 64 bytes or in base64",
                fix=f"correct {COMMAND} or {PUBLIC_FILE}",
            ) from error
        return signature


def signer_here() -> Signer | None:
    """Return the signer that the environment names, or None.

    Raises:
        JobError: a key cannot be read, or is not an Ed25519 key, or the package cryptography is missing.
    """
    if path := os.environ.get(KEY_FILE):
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

            private = load_pem_private_key(Path(path).read_bytes(), password=None)
        except (ImportError, OSError, ValueError, TypeError) as error:
            raise _no_key(KEY_FILE, path, error) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise _no_key(KEY_FILE, path, "a key of another kind")
        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
        return Signer(public, private)
    if command := os.environ.get(COMMAND):
        path = os.environ.get(PUBLIC_FILE, "")
        try:
            public = Path(path).read_text(encoding="ascii")
            public_key(public)
        except (ImportError, OSError, ValueError) as error:
            raise _no_key(PUBLIC_FILE, path, error) from error
        return Signer(public, command=command)
    return None


def statement_of(record: EvidenceRecord, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the statement on a bundle; it names each member but itself with its digest.

    Its subjects are the files that consumers load, or the record where nothing was made.
    """
    digests = {name: hashlib.sha256(members[name]).hexdigest() for name in sorted(members) if name != STATEMENT}
    files = json.loads(record.manifest)["files"] if record.manifest else {RECORD: digests[RECORD]}
    found = [("source", record.source.uri, record.source.digest)]
    found += [(name, facts.uri or "", facts.digest) for name, facts in sorted(record.data.items())]
    resolved = [{"name": name, "uri": uri, "digest": {"sha256": digest}} for name, uri, digest in found]
    resolved += [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(record.code.locks.items())]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"job": record.job},
                "internalParameters": {
                    "candidate": record.trial.candidate if record.trial else None,
                    "decision": asdict(record.decision),
                },
                "resolvedDependencies": resolved,
            },
            "runDetails": {
                "builder": {
                    "id": BUILD_TYPE,
                    "version": {"quantgate": record.code.version, "code": record.code.digest},
                },
                "metadata": {"invocationId": record.run_id, "finishedOn": record.finished_at},
                "byproducts": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
            },
        },
    }


def sealed(statement: Mapping[str, Any], signer: Signer | None) -> bytes:
    """Return the envelope of a statement as JSON, with a signature if there is a signer."""
    payload = compact_json(statement)
    signatures = [(key_id(signer.public), signer.sign(encoded(payload)))] if signer is not None else []
    return envelope_of(payload, signatures)


def _no_key(variable: str, path: str, error: object) -> JobError:
    return JobError(
        found=f"{variable}={path}: {error}",
        expected="a file with an Ed25519 key in PEM, as `openssl genpkey -algorithm ed25519` writes one",
        fix=f"correct {variable}, or unset it: the evidence is then unsigned",
    )

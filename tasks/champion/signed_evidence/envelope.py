"""DSSE envelope of a bundle's statement: writing, strict reading, and its Ed25519 signature.

Format: Dead Simple Signing Envelope (secure-systems-lab/dsse).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .archive import BundleUnsound, check_document

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT, RECORD = "statement.json", "record.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def envelope_of(payload: bytes, signatures: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the envelope of a payload as JSON, with signatures by the ids of their keys."""
    return compact_json(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode("ascii"),
            "signatures": [{"keyid": name, "sig": base64.b64encode(one).decode("ascii")} for name, one in signatures],
        }
    )


def open_envelope(content: bytes, key: str) -> tuple[bytes, str]:
    """Return the payload of an envelope, and the id of the key that signed it; with `key` empty it must be unsigned.

    `key` is the public key in PEM that must have signed it.

    Raises:
        BundleUnsound: it is no envelope as `envelope_of` writes it, or the signature is missing, wrong, or of another key.
        ImportError: a signature is to be checked, and the package cryptography is missing.
    """
    check_document(content, STATEMENT)
    try:
        document = json.loads(content)
        payload = base64.b64decode(document["payload"], validate=True)
        signatures = [(one["keyid"], base64.b64decode(one["sig"], validate=True)) for one in document["signatures"]]
        again = envelope_of(payload, signatures)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleUnsound(STATEMENT, f"found no envelope: {error!r}"[:300]) from error
    if content != again:
        raise BundleUnsound(STATEMENT, "it is written in another way than quantgate writes it")
    if not key and not signatures:
        return payload, ""
    if not key or len(signatures) != 1:
        raise BundleUnsound("signature", f"found {len(signatures)} signatures; expected one of the named key")
    _check_signature(*signatures[0], payload, key)
    return payload, str(signatures[0][0])


def _check_signature(name: str, signature: bytes, payload: bytes, key: str) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        if key_id(key) != name:
            raise BundleUnsound("signature", f"found one of the key {name}; expected one of {key_id(key)}")
        public_key(key).verify(signature, encoded(payload))
    except InvalidSignature as error:
        raise BundleUnsound("signature", f"it is none of the key {name} on this statement") from error
    except ValueError as error:
        raise BundleUnsound("signature", f"found a key that is none: {error}") from error


def check_members(members: Mapping[str, bytes], payload: bytes) -> None:
    """Compare each member of a bundle with its digest in the statement, so that the error names the member.

    Raises:
        BundleUnsound: a member is missing, unknown, or has another digest; or the payload is no statement.
    """
    try:
        byproducts = json.loads(payload)["predicate"]["runDetails"]["byproducts"]
        told = {one["name"]: one["digest"]["sha256"] for one in byproducts}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleUnsound(STATEMENT, f"found no statement: {error!r}"[:300]) from error
    for name in sorted(told.keys() | members.keys() - {STATEMENT}):
        if name not in members:
            raise BundleUnsound(name, "the member is missing")
        if name not in told:
            raise BundleUnsound(name, "the statement does not name this member")
        if hashlib.sha256(members[name]).hexdigest() != told[name]:
            raise BundleUnsound(name, "its digest is not that of the statement")


def public_key(pem: str) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        ValueError: it is no Ed25519 key in PEM.
        ImportError: the package cryptography is missing.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = load_pem_public_key(pem.encode("ascii"))
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("found a public key of another kind; expected Ed25519")
    return key


def key_id(pem: str) -> str:
    """Return the sha256 of a public key's 32 bytes, in hexadecimal."""
    return hashlib.sha256(public_key(pem).public_bytes_raw()).hexdigest()


def encoded(payload: bytes) -> bytes:
    """Return what DSSE signs: its pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def compact_json(value: Any) -> bytes:
    """Return a value as JSON in ASCII, with sorted keys and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")

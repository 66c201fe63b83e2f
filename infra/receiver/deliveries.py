"""What a delivery of MLflow's registry webhook must be: signed, of now, JSON, about a model version. Pure functions.

The signature is `"v1," + base64(HMAC-SHA256(secret, "<delivery id>.<timestamp>.<body>"))`, over the bytes as they came.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIGNATURE, TIMESTAMP, DELIVERY = "x-mlflow-signature", "x-mlflow-timestamp", "x-mlflow-delivery-id"
# MLflow signs once and tries again for about a minute; clocks of two machines differ by seconds.
WINDOW_SECONDS = 300
OWN_TAG = "quantgate.variant_digest"
MAX_NAME = 256

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SECONDS = re.compile(r"[0-9]{1,12}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
# What `quantgate webhook` makes MLflow send to see whether anybody answers.
_EXAMPLE = {
    "name": "example_model",
    "version": "1",
    "source": "models:/123",
    "run_id": "abcd1234abcd5678",
    "tags": {"example_key": "example_value"},
    "description": "An example model version",
}


class Refused(Exception):
    """A delivery that is not taken: the HTTP status, and why in words that tell a forger nothing new."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Stamp:
    """What the headers of a delivery say; `timestamp` is in seconds since 1970, as text since the signature covers the text."""

    delivery: str
    timestamp: str
    signature: bytes


@dataclass(frozen=True)
class NewVersion:
    """The registered version that a delivery is about; `ignored` says why it starts nothing."""

    name: str
    version: str
    ignored: str | None = None


def read_stamp(headers: Mapping[str, str]) -> Stamp:
    """The three headers that MLflow signs with.

    Raises:
        Refused: one is missing or of another form (401).
    """
    delivery, timestamp = headers.get(DELIVERY, ""), headers.get(TIMESTAMP, "")
    # With fixed forms for both, the dots between what is signed cannot be moved.
    if not _UUID.fullmatch(delivery) or not _SECONDS.fullmatch(timestamp) or SIGNATURE not in headers:
        raise Refused(401, "not signed as MLflow signs: delivery id, timestamp and signature are needed")
    return Stamp(delivery, timestamp, headers[SIGNATURE].encode("latin-1"))


def sign(secret: str, delivery: str, timestamp: str, body: bytes) -> bytes:
    """The signature of a delivery under one secret."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    return b"v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())


def check_signature(stamp: Stamp, body: bytes, secrets: Sequence[str], now: float) -> None:
    """Hold a delivery against the secrets, any of which may have signed it, and against the clock (seconds since 1970).

    Raises:
        Refused: nobody who knows a secret signed it, or not in these minutes (401).
    """
    matches = [
        hmac.compare_digest(sign(one, stamp.delivery, stamp.timestamp, body), stamp.signature) for one in secrets
    ]
    if not any(matches):
        raise Refused(401, "the signature does not match")
    if abs(now - int(stamp.timestamp)) > WINDOW_SECONDS:
        raise Refused(401, f"the timestamp is more than {WINDOW_SECONDS} s from now: check the clocks of both machines")


def read_delivery(body: bytes) -> NewVersion:
    """The version that a body is about.

    Raises:
        Refused: no JSON (400), or not what MLflow says of a created model version (422).
    """
    try:
        told = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "not JSON") from error
    if not isinstance(told, dict) or not isinstance(told.get("data"), dict):
        raise Refused(422, "expected an object with entity, action and data")
    if (told.get("entity"), told.get("action")) != ("model_version", "created"):
        raise Refused(422, "only model_version.created is taken")
    return _new_version(told["data"])


def _new_version(data: dict[str, Any]) -> NewVersion:
    name, version, tags = data.get("name"), data.get("version"), data.get("tags")
    if not isinstance(name, str) or not _is_name(name):
        raise Refused(422, "`name` is no name of a registered model")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise Refused(422, "`version` is no number of a version")
    tags = {} if tags is None else tags
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise Refused(422, "`tags` are not texts by name")
    if OWN_TAG in tags:
        return NewVersion(name, version, ignored="quantgate made this version")
    if data == _EXAMPLE:
        return NewVersion(name, version, ignored="this is MLflow's example")
    return NewVersion(name, version)


def _is_name(name: str) -> bool:
    """Whether MLflow would take it, and a person could read it: no path, no control characters, no end of line."""
    plain = name.isprintable() and name.strip() == name and not set(name) & set("/:\\")
    return plain and 0 < len(name) <= MAX_NAME and name not in (".", "..")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once: of two, another reader may take the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

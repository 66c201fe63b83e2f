"""Takes secrets out of text before it is shown or kept: credentials by their form, and the environment's secrets by value."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

HIDDEN = "***"
# Shorter values stand in ordinary words: taking them out would make texts unreadable and hide nothing.
LEAST_CHARACTERS = 6

_WORDS = "SECRET|TOKEN(?!IZ)|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|SIGNING|API_?KEY|ACCESS_?KEY|_KEY$|_PASS$|_PWD$|_AUTH"
_SECRET_NAME = re.compile(rf"(?i)({_WORDS})(?!.*_(FILE|PATH|DIR|ID|URL|HOST|PORT|SOCK)$)")
_PARAMETER = (
    "x-amz-signature|x-amz-credential|x-amz-security-token|awsaccesskeyid|signature|sig|access_token|token|password"
    "|passwd|pwd|client_secret|secret|api_?key|access_?key|secret_?key|secret_access_key"
)
_FORMS = (
    # scheme://user:password@host, and scheme://token@host
    (re.compile(r"(?<=://)[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # the same where a path's normal form has taken one slash
    (re.compile(r"(?<=:/)[^/\s@'\"<>:]+:[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # what presigned addresses, forms and connection strings of PostgreSQL hold
    (re.compile(rf"(?i)(?<![a-z0-9])({_PARAMETER})=[^&\s'\"<>]+"), rf"\1={HIDDEN}"),
    (re.compile(rf"(?i)(['\"](?:{_PARAMETER})['\"]: *['\"])[^'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:[a-z]+\s+)?)[^\s'\",]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[a-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
)
_PASSWORD = re.compile(r"://[^/\s@:]*:([^\s]+)@")


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets; `environment` is that of the process unless it is given.

    >>> redact("cannot reach https://ann:hunter2@host/api?token=abc", {})
    'cannot reach https://***@host/api?token=***'
    >>> redact("refused: wrong horse", {"DB_PASSWORD": "wrong horse"})
    'refused: ***'
    """
    for value in sorted(set(_values(os.environ if environment is None else environment)), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def holds_credentials(text: str) -> bool:
    """Whether a text has credentials by its form, whatever the environment holds."""
    return redact(text, {}) != text


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a child process may have that runs code of models, data or tools."""
    return {
        name: value
        for name, value in environment.items()
        if not _SECRET_NAME.search(name) and not holds_credentials(value)
    }


def _values(environment: Mapping[str, str]) -> Iterator[str]:
    """The environment's secrets, in each way that a text may hold them."""
    for name, value in environment.items():
        found = [value, *value.splitlines()] if _SECRET_NAME.search(name) else []
        found += list(_PASSWORD.findall(value))
        for secret in found:
            for form in (secret, unquote(secret)):
                if len(form.strip()) >= LEAST_CHARACTERS:
                    yield from {form, quote(form, safe=""), quote(form), html.escape(form), json.dumps(form)[1:-1]}

"""Redaction of secrets from text before it is shown or kept: credentials by pattern, the environment's secrets by value."""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

HIDDEN = "***"
# Shorter values occur in ordinary words: redacting them would make texts unreadable and hide nothing.
LEAST_CHARACTERS = 8
LEAST_PASSWORD = 6
# Entropy of the whole value, from its character frequencies: "aaaaaaaa" has 0, "kerberos" 20, eight different ones 24.
LEAST_BITS = 16.0
# A count or a bound; a number of twelve or more digits may be a secret.
_NUMBER = re.compile(r"[+-]?[0-9][0-9_,.]{0,10}(e[+-]?[0-9]+)?", re.IGNORECASE)

_WORDS = (
    "SECRET|TOKEN(?!IZ)|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|SIGNING|API_?KEY|ACCESS_?KEY|_KEY$|_PASS$|_PWD$|_AUTH(?!OR)"
)
_PASSWORD_NAME = re.compile(r"(?i)SECRET|PASSW|PASSPHRASE|_PASS$|_PWD$")
_SECRET_NAME = re.compile(rf"(?i)({_WORDS})(?!.*_(FILE|PATH|DIR|ID|URL|HOST|PORT|SOCK)$)")
_PARAMETER = (
    "x-amz-signature|x-amz-credential|x-amz-security-token|awsaccesskeyid|signature|sig|access_token|token|password"
    "|passwd|pwd|client_secret|secret|api_?key|access_?key|secret_?key|secret_access_key"
)
_FORMS = (
    # scheme://user:password@host, and scheme://token@host
    (re.compile(r"(?<=://)[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # the same after path normalization removed one slash
    (re.compile(r"(?<=:/)[^/\s@'\"<>:]+:[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # parameters of presigned URLs, forms and PostgreSQL connection strings
    (re.compile(rf"(?i)(?<![a-z0-9])({_PARAMETER})=[^&\s'\"<>]+"), rf"\1={HIDDEN}"),
    (re.compile(rf"(?i)(['\"](?:{_PARAMETER})['\"]: *['\"])[^'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:[a-z]+\s+)?)[^\s'\",]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[a-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # keys with a known prefix: AWS, GitHub, GitLab, Hugging Face, Slack, Google, OpenAI, Anthropic; JSON web tokens
    (
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"
            r"|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{24,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}"
            r"|sk-(?:[A-Za-z0-9]{32,}|(?:proj|ant)-[A-Za-z0-9_-]{20,})"
            r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})(?![A-Za-z0-9])"
        ),
        HIDDEN,
    ),
)
_PASSWORD = re.compile(r"://[^/\s@:]*:([^\s]+)@")


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the text without secrets; `environment` defaults to that of the process.

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
    """Return True if a text contains credentials by pattern, regardless of the environment."""
    return redact(text, {}) != text


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without secrets, for a child process that runs code of models, data or tools."""
    return {
        name: value
        for name, value in environment.items()
        if not _SECRET_NAME.search(name) and not holds_credentials(value)
    }


def _values(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the environment's secrets, in each encoding that a text may contain."""
    for name, value in environment.items():
        told = [value, *value.splitlines()] if _SECRET_NAME.search(name) else []
        found = [part for part in told if _looks_secret(name, part)]
        found += [part for part in _PASSWORD.findall(value) if len(part.strip()) >= LEAST_PASSWORD]
        for secret in found:
            for form in (secret, unquote(secret)):
                if len(form.strip()) >= LEAST_PASSWORD:
                    yield from {form, quote(form, safe=""), quote(form), html.escape(form), json.dumps(form)[1:-1]}


def _looks_secret(name: str, value: str) -> bool:
    """Return True if the value of a variable that is named like a secret can be one.

    >>> _looks_secret("MAX_TOKENS", "100000"), _looks_secret("MAX_TOKENS", "16777216"), _looks_secret("HF_TOKEN", "disabled")
    (False, False, True)
    >>> _looks_secret("DB_PASSWORD", "83629174"), _looks_secret("API_TOKEN", "00000000-0000")
    (True, False)
    """
    text = value.strip()
    if len(text) < LEAST_CHARACTERS or (_NUMBER.fullmatch(text) and not _PASSWORD_NAME.search(name)):
        return False
    counts = Counter(text)
    return sum(count * math.log2(len(text) / count) for count in counts.values()) >= LEAST_BITS

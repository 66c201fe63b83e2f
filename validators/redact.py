"""Redaction of secrets from text before it is shown or kept: credentials by pattern, the environment's secrets by value.

The patterns are of this module, not of a library: detect-secrets 1.5.0 knows 6 of the 12 forms of credentials that
`tests/unit/validators/test_redact.py` adds to the common ones, reports them by line without a place in the text, and takes
0.45 s to import, in every process that writes a log.
"""

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
    "SECRET|TOKEN(?!IZ)|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|SIGNING|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY|CONNECTION_?STRING"
    "|_KEY$|_PASS$|_PWD?$|_PAT$|_PSK$|_SAS$|_AUTH(?!OR)"
)
_PASSWORD_NAME = re.compile(r"(?i)SECRET|PASSW|PASSPHRASE|_PASS$|_PWD?$")
# The address of a webhook and the second half of an AppRole login are secrets in spite of their names' ends.
_SECRET_NAME = re.compile(rf"(?i)({_WORDS})(?!.*_(FILE|PATH|DIR|ID|URL|HOST|PORT|SOCK)$)|SECRET_ID$|WEBHOOK_?URL$")
# Names of parameters, keys of JSON and headers, in each spelling: secret_access_key, secretAccessKey, x-secret-key.
_PARAMETER = (
    "x-amz-signature|x-amz-credential|x-amz-security-token|awsaccesskeyid|signature|sig|token|pwd|pw|passwd|pat"
    "|[a-z0-9_-]{0,30}(?:password|secret(?:[_-]?id)?|(?:secret|api|account|access|private|subscription)[_-]?key)"
    "|(?:access|refresh|id|auth|session|bearer)[_-]?token"
)
_HEADER = r"(?:proxy-)?authorization|x-(?:[a-z]+-)*(?:key|token|secret)|(?:api|private|job|deploy)-(?:key|token)"
# Keys with a prefix that their issuer documents.
_PREFIXED = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}",  # GitHub
    r"gl(?:pat|ptt|dt|rt|soat|cbt|imt|ft|agent)-[A-Za-z0-9_-]{16,}",  # GitLab
    r"hf_[A-Za-z0-9]{24,}|api_org_[A-Za-z0-9]{24,}",  # Hugging Face
    r"xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}",  # Slack
    r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9._-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}",  # Google
    r"sk-(?:[A-Za-z0-9]{32,}|(?:proj|ant|svcacct|or-v1)-[A-Za-z0-9_-]{20,})",  # OpenAI, Anthropic, OpenRouter
    r"nvapi-[A-Za-z0-9_-]{24,}|gsk_[A-Za-z0-9]{32,}|r8_[A-Za-z0-9]{30,}",  # NVIDIA, Groq, Replicate
    r"npm_[A-Za-z0-9]{30,}|pypi-(?=[a-z-]*[A-Z0-9])[A-Za-z0-9_-]{30,}",  # registries of packages
    r"dapi[0-9a-f]{32}(?:-[0-9])?",  # Databricks
    r"[rps]k_(?:live|test|prod)_[A-Za-z0-9]{10,}|sq0[a-z]{3}-[A-Za-z0-9_-]{20,}",  # Stripe, Square
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|key-[0-9a-f]{32}|[0-9a-f]{32}-us[0-9]{1,2}",  # SendGrid, Mailgun, Mailchimp
    r"SK[0-9a-f]{32}|[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}",  # Twilio, Telegram
    r"do[opr]_v1_[0-9a-f]{64}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # DigitalOcean, Shopify
    r"hv[sbr]\.[A-Za-z0-9_-]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{40,}",  # Vault, age
    r"ATATT3[A-Za-z0-9_=-]{20,}|AKC[a-zA-Z0-9]{60,}",  # Atlassian, Artifactory
    r"[A-Za-z0-9_~.]{3}8Q~[A-Za-z0-9_~.-]{31,}",  # Microsoft Entra
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # JSON web tokens
)
_FORMS = (
    # scheme://user:password@host, and scheme://token@host
    (re.compile(r"(?<=://)[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # the same after path normalization removed one slash
    (re.compile(r"(?<=:/)[^/\s@'\"<>:]+:[^/\s@'\"<>]+@"), f"{HIDDEN}@"),
    # addresses of webhooks: whoever knows one may post
    (
        re.compile(
            r"(?i)(https?://(?:hooks\.slack\.com|(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks|[a-z0-9-]+\.webhook\.office\.com)/)[^\s'\"<>]+"
        ),
        rf"\1{HIDDEN}",
    ),
    # parameters of presigned URLs, forms and connection strings
    (re.compile(rf"(?i)(?<![a-z0-9])({_PARAMETER})=[^&\s'\"<>]+"), rf"\1={HIDDEN}"),
    (re.compile(rf"(?i)(\\?['\"](?:{_PARAMETER})\\?['\"]\s*:\s*\\?['\"])[^'\"\\]+"), rf"\1{HIDDEN}"),
    (
        re.compile(
            rf"(?i)(?<![a-z0-9-])((?:{_HEADER})['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token|digest)\s+)?)[^\s'\",]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)(\bbearer\s+)[a-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        HIDDEN,
    ),
    (re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_PREFIXED)})(?![A-Za-z0-9])"), HIDDEN),
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

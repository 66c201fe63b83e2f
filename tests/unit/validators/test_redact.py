"""Secrets are taken out of text, of log records and of errors; what is no secret stays."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.run.log_redaction import Redacted, redact_logs, shielded
from tasks.runtimes.confined import confined_environment
from validators.child_environment import HOOKS, child_environment
from validators.errors import CandidateRefused, InfrastructureError
from validators.job.read_job import parse_job
from validators.records.result import Result
from validators.redact import holds_credentials, redact, without_secrets

SECRET = 'Tr0ub4dor&3/"<zebra>'
JOB = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}
KEY = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7"
# Made up, in the forms that issuers document.
KNOWN_KEYS = [
    f"npm_{KEY}aB3dE6gH9",
    f"pypi-AgEIcHlwaS5vcmc{KEY}",
    f"dapi{'0123456789abcdef' * 2}",
    f"sk_live_{KEY}",
    f"ya29.a0{KEY}_-",
    f"SG.{KEY}.{KEY}",
    f"hvs.{KEY}",
    f"glrt-{KEY}",
    f"GOCSPX-{KEY}",
    f"nvapi-{KEY}",
    f"shpat_{'0123456789abcdef' * 2}",
    f"123456789:AA{KEY}aB3dE6gH9",
    f"sk-proj-{KEY}",
]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql+psycopg2://ann:pw@db:5432/mlflow is down", "postgresql+psycopg2://***@db:5432/mlflow is down"),
        ("git+https://ghp_0123456789@github.com/a/b", "git+https://***@github.com/a/b"),
        ("host=db user=ann password=hunter2 dbname=x", "host=db user=ann password=*** dbname=x"),
        (
            "https://s3/b/k?X-Amz-Credential=AK%2F1&X-Amz-Date=2&X-Amz-Signature=ab12",
            "https://s3/b/k?X-Amz-Credential=***&X-Amz-Date=2&X-Amz-Signature=***",
        ),
        ("headers: {'Authorization': 'Bearer eyJhbGciOi'}", "headers: {'Authorization': 'Bearer ***'}"),
        ("Authorization: Basic YW5uOnB3", "Authorization: Basic ***"),
        ("sent bearer eyJhbGciOi.abc-_x= to it", "sent bearer *** to it"),
        ('{"password": "hunter2", "a": 1}', '{"password": "***", "a": 1}'),
        ("refused AKIAIOSFODNN7EXAMPLE", "refused ***"),
        (f"cloned with ghp_{'a' * 36}, as told", "cloned with ***, as told"),
        (f"HF: hf_{'A' * 34}", "HF: ***"),
        (f"sent eyJ{'a' * 10}.{'b' * 10}.{'c' * 10} twice", "sent *** twice"),
        (f"AccountName=x;AccountKey={KEY}=", "AccountName=x;AccountKey=***"),
        (f"Endpoint=sb://x/;SharedAccessKey={KEY}=", "Endpoint=sb://x/;SharedAccessKey=***"),
        (f"VAULT_SECRET_ID={KEY} GH_PAT={KEY} DB_PW=hunter2", "VAULT_SECRET_ID=*** GH_PAT=*** DB_PW=***"),
        (f"x-api-key: {KEY}", "x-api-key: ***"),
        (f"{{'X-Auth-Token': '{KEY}', 'a': 1}}", "{'X-Auth-Token': '***', 'a': 1}"),
        (f"PRIVATE-TOKEN: {KEY}", "PRIVATE-TOKEN: ***"),
        (f'{{"secretAccessKey":"{KEY}","a":1}}', '{"secretAccessKey":"***","a":1}'),
        (f'"{{\\"clientSecret\\": \\"{KEY}\\"}}"', '"{\\"clientSecret\\": \\"***\\"}"'),
        (f"https://hooks.slack.com/services/T0/B0/{KEY} failed", "https://hooks.slack.com/*** failed"),
        *((f"sent {key} twice", "sent *** twice") for key in KNOWN_KEYS),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK-----.", "***."),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----.", "***."),
    ],
)
def test_credentials_are_known_by_their_form(text: str, clean: str) -> None:
    assert redact(text, {}) == clean
    assert redact(clean, {}) == clean and holds_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        "models:/tiny@champion-ort-cpu",
        "http://127.0.0.1:5000/api/2.0/mlflow",
        "sqlite:////srv/state/mlflow.db",
        "s3://bucket/prefix/key=1/part.npz",
        "the bearer of this, at 3 tokens a second",
        "mail ann@example.org or see https://example.org/~ann",
        "token_type_ids: int64[batch, 128]; tokens=12; significance=0.05; design=3",
        "int8-static-minmax-pc@ort-cpu",
        f"digest {'0123456789abcdef' * 4}, model sha256:{'0123456789abcdef' * 4}, 8f14e45fceea167a5a36dedd4bea2543",
        "run 0f8fad5b-d9cb-469f-a165-70867728950e of int4-g32-rtn@ort-cpu, fp8-amax-pc@tensorrt, int8-static-percentile-pc@cpu",
        "pypi-mirror-of-the-company-in-europe, npm_config_cache, key-value-cache-of-the-decoder, ya29, dapi",
        '{"bos_token": "<s>", "pad_token": "</s>", "tokens": 12, "cache_key": "linear-3", "key": "value"}',
        "tokenizer.json, model.safetensors, key_padding_mask: bool[batch], attention.k_proj.weight, secret_santa.onnx",
        "quantgate.ort-cpu.status: promoted; found x float32[-1, 64]; p99 at most 12.5; launch 3 of 6, batch 8",
        "hf_text_classification_model, sk-learn-pipeline-of-the-year, AKIA",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text, {}) == text


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD", "PGPASSWORD", "PREFECT_API_KEY"),
        *("PREFECT_API_AUTH_STRING", "HF_TOKEN", "db_passwd", "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY"),
        *(
            "QUANTGATE_WEBHOOK_SECRET",
            "VAULT_SECRET_ID",
            "SLACK_WEBHOOK_URL",
            "GH_PAT",
            "DB_PW",
            "AZURE_STORAGE_CONNECTION_STRING",
        ),
        *("AZURE_STORAGE_KEY", "AccountKey", "NPM_TOKEN", "WIFI_PSK"),
    ],
)
def test_the_values_of_secret_variables_are_taken_out(name: str) -> None:
    """As they are, and as addresses, JSON and HTML write them."""
    told = ["Tr0ub4dor%263%2F%22%3Czebra%3E", "Tr0ub4dor&amp;3/&quot;&lt;zebra&gt;", 'Tr0ub4dor&3/\\"<zebra>', SECRET]
    for form in told:
        assert redact(f"a{form}b", {name: SECRET}) == "a***b"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "TOKENIZERS_PARALLELISM", "AWS_WEB_IDENTITY_TOKEN_FILE", "HOME"])
def test_values_of_other_variables_stay(name: str) -> None:
    assert redact("it is /somewhere", {name: "/somewhere"}) == "it is /somewhere"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("MAX_TOKENS", value) for value in ("100000", "16777216", "1_000_000", "1e9", "0.25")),
        *(("HF_TOKEN", value) for value in ("none", "aaaaaaaa", "--------", "12345", "short12")),
        *(("GIT_AUTHOR_NAME", value) for value in ("Ada Lovelace",)),
    ],
)
def test_values_that_are_no_secrets_stay(name: str, value: str) -> None:
    """Counts, placeholders and names in variables that are named like secrets: the text would be unreadable without them."""
    text = f"models:/tiny/1: {value} samples, {value}0 bytes"
    assert redact(text, {name: value}) == text


@pytest.mark.parametrize("value", ["83629174", "swordfish", "Winter24", "correct horse", "hf_" + "a" * 30])
def test_weak_passwords_are_taken_out(value: str) -> None:
    """Words and numbers of eight characters in variables for passwords, and keys of a known form whatever they hold."""
    assert redact(f"denied: {value}", {"DB_PASSWORD": value}) == "denied: ***"


def test_password_in_an_address_of_environment_is_known_alone() -> None:
    """Drivers tell it without the address."""
    environment = {"MLFLOW_TRACKING_URI": "postgresql://ann:zebra%2Fcrossing@db/mlflow"}
    assert redact("no such role: zebra/crossing, zebra%2Fcrossing", environment) == "no such role: ***, ***"


@given(
    st.text(min_size=8).filter(lambda text: text.strip() == text and len(set(text) - {"*"}) >= 8), st.text(), st.text()
)
def test_no_secret_survives_wherever_it_stands(secret: str, before: str, after: str) -> None:
    """And a second time changes nothing."""
    environment = {"THE_SECRET": secret}
    clean = redact(before + secret + after, environment)
    assert secret not in clean and redact(clean, environment) == clean


def test_errors_are_born_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of their texts, and of refusals too."""
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    for kind in (InfrastructureError, lambda **texts: CandidateRefused(kind="invalid", **texts)):
        error = kind(found=f"found {SECRET}", expected=f"expected {SECRET}", fix=f"fix {SECRET}")
        told = [str(error), repr(error), error.found, error.expected, error.fix]
        assert not any(SECRET in text for text in told) and error.found == "found ***"


@given(st.lists(st.sampled_from([0, 10, 665, 666, 700, 1900, 2000, 400_000]), min_size=3, max_size=3))
def test_a_message_has_at_most_2000_characters(lengths: list[int]) -> None:
    """The longest texts are cut, once; a message that fits stays as it is."""
    texts = {key: "x" * length for key, length in zip(("found", "expected", "fix"), lengths, strict=True)}
    error = InfrastructureError(**texts)
    assert len(str(error)) <= 2000 and str(InfrastructureError(**error.fields)) == str(error)
    assert sum(lengths) > 1950 or error.fields == texts


def test_an_unforeseen_error_is_told_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its class and text; one that holds none passes as it is."""
    monkeypatch.setenv("DB_PASSWORD", SECRET)

    @shielded
    def fails(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(Redacted, match=r"KeyError: 'role \*\*\*'") as caught:
        fails(f"role {SECRET}")
    assert caught.value.__suppress_context__ and any(entry.name == "fails" for entry in caught.traceback)
    with pytest.raises(KeyError, match="harmless"):
        fails("harmless")


def test_log_records_are_born_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message, arguments and traceback with all its causes, whoever logs."""
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    redact_logs()
    redact_logs()
    said = io.StringIO()
    logger = logging.getLogger("another.library")
    handler = logging.StreamHandler(said)
    logger.addHandler(handler)
    try:
        logger.warning("password %s of %d", SECRET, 3)
        logger.warning("%d", f"not a number {SECRET}")
        try:
            try:
                raise ValueError(SECRET)
            except ValueError as error:
                raise RuntimeError("outer") from error
        except RuntimeError:
            logger.exception("it failed")
    finally:
        logger.removeHandler(handler)
    text = said.getvalue()
    assert "password *** of 3" in text and SECRET not in text
    assert "ValueError: ***" in text and "RuntimeError: outer" in text


@pytest.mark.parametrize(
    "change",
    [
        {"source": "https://ann:pw@host/model.onnx"},
        {"data": {"calibration": "s3://key:secret@bucket/c.npz", "evaluation": "e.npz"}},
        {"data": {"calibration": "c.npz?X-Amz-Signature=12", "evaluation": "e.npz"}},
        {"provider_options": {"password": "hunter2"}},
    ],
)
def test_a_job_with_credentials_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    """They would become parameters; the refusal does not repeat them."""
    from validators.errors import JobError

    with pytest.raises(JobError, match=r"holds credentials|bucket name is invalid") as caught:
        parse_job(JOB | change, base=tmp_path)
    for secret in ("pw@", "secret@", "Signature=12", "hunter2"):
        assert secret not in str(caught.value)


def test_children_that_run_foreign_code_get_no_secrets() -> None:
    environment = {
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "abc",
        "MLFLOW_TRACKING_URI": "http://ann:pw@host",
        "PREFECT_API_URL": "http://127.0.0.1:4200/api",
    }
    assert without_secrets(environment) == {"PATH": "/bin", "PREFECT_API_URL": "http://127.0.0.1:4200/api"}


def test_children_get_an_allow_list_of_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the addresses of servers, nor a secret without a name or a form that tells it; code of a job gets its permissions."""
    kept = {"LC_ALL": "C", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": "/lib"}
    dropped = {
        "PREFECT_API_URL": "http://host/api",
        "AWS_PROFILE": "team",
        "OPAQUE": KEY,
        "OMP_TOKEN": KEY,
        "MLFLOW_X": "1",
    }
    permissions = {"QUANTGATE_ALLOWED_HOOKS": "mine:f1", "QUANTGATE_HOOK_TABLE": "/srv/table.csv"}
    environment = kept | dropped | permissions | {"QUANTGATE_STORE": "s3://bucket/x"}
    assert child_environment(environment=environment) == kept
    assert child_environment(*HOOKS, environment=environment) == kept | permissions
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment.keys() & confined_environment(tmp_path).keys() == kept.keys()


def test_no_child_gets_the_environment_without_secrets_alone() -> None:
    """Every process that computes takes its variables from the allow-list."""
    root = Path(__file__).parents[3]
    users = {
        path.relative_to(root).as_posix()
        for folder in ("flows", "tasks", "validators")
        for path in (root / folder).rglob("*.py")
        if "without_secrets(" in path.read_text(encoding="utf-8")
    }
    assert users == {"validators/redact.py", "validators/child_environment.py", "tasks/run/log_redaction.py"}


def test_the_result_document_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.records.result_document import conclude_error
    from tasks.run.clock import Clock

    monkeypatch.setenv("DB_PASSWORD", SECRET)
    error = InfrastructureError(found=SECRET, expected="x", fix="y")
    result: Result = conclude_error(None, error, Clock())
    assert "zebra" not in result.model_dump_json()

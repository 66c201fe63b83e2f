"""What a command sets before Prefect and MLflow are imported: a folder of its user's own, a password of its server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.run.settings import make_state_folder, prepare_environment
from tasks.service.generated_secrets import access_file, prefect_auth, recorded_auth

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if "PREFECT" not in name})


def test_a_new_state_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    """One that is there keeps its rights."""
    assert make_state_folder(tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    assert make_state_folder(tmp_path / "shared").stat().st_mode & 0o777 == 0o755


def test_the_server_of_a_command_has_a_password_of_its_own(tmp_path: Path) -> None:
    prepare_environment(tmp_path / "state")
    first = os.environ[SERVER]
    assert len(first) > 40 and os.environ[CLIENT] == first
    for name in (SERVER, CLIENT):
        del os.environ[name]
    prepare_environment(tmp_path / "state")
    assert os.environ[SERVER] != first


@pytest.mark.parametrize("given", ["PREFECT_API_URL", "profile"])
def test_a_server_that_is_named_gets_no_made_up_password(tmp_path: Path, given: str) -> None:
    """Its own may be in a profile, over which the environment would win."""
    if given == "profile":
        (tmp_path / "prefect").mkdir()
        (tmp_path / "prefect" / "profiles.toml").write_text('active = "team"')
        os.environ["PREFECT_HOME"] = str(tmp_path / "prefect")
    else:
        os.environ[given] = "http://127.0.0.1:1/api"
    prepare_environment(tmp_path / "state")
    assert SERVER not in os.environ and CLIENT not in os.environ


def test_recorded_password_is_for_the_server_it_was_made_for(tmp_path: Path) -> None:
    auth = prefect_auth(tmp_path, "http://127.0.0.1:4200/api")
    assert auth.startswith("quantgate:") and access_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert prefect_auth(tmp_path, "http://127.0.0.1:4201/api") == auth
    assert recorded_auth(tmp_path, "http://127.0.0.1:4201/api/") == auth
    for api in (None, "", "http://127.0.0.1:4200/api", "https://evil.example/api"):
        assert recorded_auth(tmp_path, api) is None
    assert recorded_auth(tmp_path / "another", "http://127.0.0.1:4201/api") is None


def test_prefect_clients_retry_a_failed_server(tmp_path: Path) -> None:
    from prefect.settings import Settings

    prepare_environment(tmp_path / "state")
    assert {500, 504} <= Settings().client.retry_extra_codes

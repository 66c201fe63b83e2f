"""`quantgate deploy` against a real Prefect server: what it makes, leaves alone, says, and what the automations then do."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml
from driving import environment
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from rich.console import Console
from stack import AUTH, Stack, free_port, wait_until

from flows.service.deploy import deploy
from tasks.workers.deployments import FORMER_NAMES, DeployedObject, apply_automation, apply_deployments
from tasks.workers.run_pool import apply_pool, stuck_automation, zombie_automation
from validators.errors import InfrastructureError, JobError
from validators.job.job import Job

ROOT = Path(__file__).parents[2]
SPECS: list[dict[str, Any]] = yaml.safe_load((ROOT / "infra" / "prefect.yaml").read_text())["deployments"]
# The shortest that Prefect takes for events that do not come.
MISSING_SECONDS = 10.0
TRIGGER = "planted trigger"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Prefect server."""
    stack = Stack(tmp_path_factory.mktemp("deploy"))
    try:
        stack.start_prefect()
        yield stack
    finally:
        stack.close()


@pytest.fixture
def client(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    """A client of the server, which is also where `deploy` deploys to."""
    monkeypatch.setenv("PREFECT_API_URL", stack.api)
    with (
        temporary_settings({PREFECT_API_URL: stack.api, PREFECT_API_AUTH_STRING: AUTH}),
        get_client(sync_client=True) as client,
    ):
        yield client


def deployed() -> tuple[dict[str, DeployedObject], str]:
    """What one call came to, by name, and what it printed."""
    said = io.StringIO()
    made = deploy(Console(file=said, width=400))
    return {one.name: one for one in made}, said.getvalue()


def planted_file(folder: Path, **changes: Any) -> Path:
    """A file with one deployment of the tests' own flow, in other respects that of the webhook."""
    (spec,) = (one for one in SPECS if one["entrypoint"] == "flows.new_versions.new_version")
    (nightly,) = (one for one in SPECS if one["entrypoint"] == "flows.new_versions.sweep")
    triggers = [trigger | {"name": TRIGGER} for trigger in spec["triggers"]]
    planted = {"entrypoint": "served_flows.planted", "name": "planted", "schedules": nightly["schedules"]}
    spec = spec | planted | {"triggers": triggers} | changes
    path = folder / "prefect.yaml"
    path.write_text(yaml.safe_dump({"deployments": [spec]}))
    return path


def switch_trigger(client: SyncPrefectClient, *, is_on: bool) -> None:
    """As the switch in the UI does."""
    (found,) = client.read_automations_by_name(TRIGGER)
    client.request(
        "PATCH", "/automations/{id}", path_params={"id": found.id}, json={"enabled": is_on}
    ).raise_for_status()


def test_the_file_is_one_that_prefect_reads() -> None:
    """By Prefect's own models; entrypoints dotted, all in the pool, none named twice, schedules with a zone and a limit."""
    from prefect.cli.deploy._models import PrefectYamlModel

    read = PrefectYamlModel.model_validate(yaml.safe_load((ROOT / "infra" / "prefect.yaml").read_text()))
    assert len(read.deployments) == len(SPECS) == 7
    assert len({spec["name"] for spec in SPECS}) == 7  # the list of deployments shows the flow in small letters below
    for spec in SPECS:
        assert re.fullmatch(r"flows\.[a-z_]+\.[a-z_]+", spec["entrypoint"])
        assert spec["work_pool"]["name"] == "quantgate" and spec["enforce_parameter_schema"] is True
        for schedule in spec.get("schedules", ()):
            assert schedule["timezone"] and schedule["slug"]
            assert spec["concurrency_limit"]["limit"] == 1


def importless(entrypoints: set[str], env: dict[str, str]) -> set[str]:
    """Those of which the module does not import, in a process like that of the command."""
    code = """
import importlib, sys
for entrypoint in sys.argv[1:]:
    try:
        importlib.import_module(entrypoint.rpartition(".")[0])
    except ImportError:
        print(entrypoint)
"""
    command = [sys.executable, "-c", code, *sorted(entrypoints)]
    return set(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.slow
def test_one_command_makes_all_and_a_second_changes_nothing(
    stack: Stack, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """From any folder; the pool with its limits, every deployment whose flow is there, the automation; with their addresses."""
    env = environment(
        tmp_path / "state", PREFECT_API_URL=stack.api, PREFECT_API_AUTH_STRING=AUTH, PYTHONPATH=str(ROOT), COLUMNS="300"
    )
    command = [sys.executable, "-m", "flows.cli.app", "deploy"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    left_out = importless({spec["entrypoint"] for spec in SPECS}, env)
    assert done.returncode == (1 if left_out else 0), done.stderr
    assert set(re.findall(r"^left out +(\S+) ", done.stdout, re.MULTILINE)) == left_out
    assert len(re.findall(r"^made ", done.stdout, re.MULTILINE)) >= 3 + len(SPECS) - len(left_out)
    addresses = re.findall(rf"http://127.0.0.1:{stack.port('prefect')}/\S+", done.stdout)
    assert len(addresses) == len(re.findall(r"^made ", done.stdout, re.MULTILINE))

    pool = client.read_work_pool("quantgate")
    assert (pool.type, pool.concurrency_limit) == ("process", 16)
    assert client.read_work_queue_by_name("runs", "quantgate").concurrency_limit == 1
    quantize = client.read_deployment_by_name("quantize/quantize-model")
    assert (quantize.entrypoint, quantize.work_queue_name) == ("flows.quantize.quantize", "runs")
    again, said = deployed()
    assert {made.outcome for made in again.values()} <= {"as it was", "left out"}, said
    assert len([made for made in again.values() if made.deployment]) == len(SPECS) - len(left_out)


@pytest.mark.slow
def test_the_job_is_a_form_that_the_server_holds_runs_to(client: SyncPrefectClient) -> None:
    """Descriptions, enums, bounds and defaults of nested settings; what does not fit is refused before it is a run."""
    deployed()
    quantize = client.read_deployment_by_name("quantize/quantize-model")
    schema = quantize.parameter_openapi_schema
    assert schema is not None and quantize.enforce_parameter_schema
    assert schema["properties"]["job"]["description"] and schema["properties"]["promote"]["default"] is True
    job = schema["definitions"]["Job"]["properties"]
    assert "ort-cpu" in job["target"]["enum"] and "accuracy" in str(job["metric"])
    budgets = schema["definitions"]["Budgets"]["properties"]
    assert budgets["recovery"]["minimum"] == 0 and budgets["seconds"]["exclusiveMinimum"] == 0
    assert list(job) == list(Job.model_fields) == sorted(job, key=lambda key: job[key]["position"])
    assert list(job)[:2] == ["source", "data"] == schema["definitions"]["Job"]["required"]
    without = [
        f"{name}.{key}"
        for name, model in schema["definitions"].items()
        for key, value in model.get("properties", {}).items()
        if not value.get("description") and "$ref" not in str(value)
    ]
    assert without == []
    data = {"calibration": "/c.npz", "evaluation": "/e.npz"}
    for change in ({"target": "abacus"}, {"budgets": {"recovery": -1}}, {"no_such_key": 1}, {"data": None}):
        with pytest.raises(PrefectHTTPStatusError, match=r"409|422"):
            client.create_flow_run_from_deployment(
                quantize.id, parameters={"job": {"source": "models:/m/1", "data": data} | change}
            )


@pytest.mark.slow
def test_what_an_operator_switched_off_stays_off(client: SyncPrefectClient, tmp_path: Path) -> None:
    """A schedule, a trigger, the deployment itself; what the file says otherwise is put right, and named."""
    list(apply_pool(client, None, None))
    made = list(apply_deployments(client, planted_file(tmp_path)))
    assert [one.outcome for one in made] == ["made", "made"]
    there = client.read_deployment_by_name("planted/planted")
    client.update_deployment_schedule(there.id, there.schedules[0].id, active=False)
    client.pause_deployment(there.id)
    switch_trigger(client, is_on=False)

    made = list(apply_deployments(client, planted_file(tmp_path, description="Other words.", tags=["a", "b"])))
    assert [(one.outcome, one.detail) for one in made] == [("changed", "description, tags"), ("as it was", "")]
    now = client.read_deployment_by_name("planted/planted")
    assert (now.id, now.description, now.paused, now.schedules[0].active) == (there.id, "Other words.", True, False)
    assert not client.read_automations_by_name(TRIGGER)[0].enabled
    triggers = [{"name": TRIGGER, "type": "event", "expect": ["another"]}]
    made = list(apply_deployments(client, planted_file(tmp_path, description="Other words.", triggers=triggers)))
    assert [(one.outcome, one.detail) for one in made] == [("changed", "tags"), ("changed", "")]
    (automation,) = client.read_automations_by_name(TRIGGER)
    assert (automation.enabled, automation.trigger.expect) == (False, {"another"})


@pytest.mark.slow
def test_former_name_hands_over_what_was_switched_off(
    stack: Stack, client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept without schedules for a suspended run, which needs it to go on, and removed once none is left."""
    list(apply_pool(client, None, None))
    former = next(apply_deployments(client, planted_file(tmp_path, name="former", triggers=[]))).deployment
    assert former is not None
    client.update_deployment_schedule(former, client.read_deployment(former).schedules[0].id, active=False)
    client.pause_deployment(former)
    run = client.create_flow_run_from_deployment(former, parameters={"name": "waits"}).id

    def put(kind: str, label: str) -> None:
        stack.ask(f"/flow_runs/{run}/set_state", {"state": {"type": kind, "name": label}, "force": True})

    def renamed() -> list[tuple[str, str]]:
        made = apply_deployments(client, planted_file(tmp_path, name="renamed", triggers=[]))
        return [(one.name, one.outcome) for one in made]

    put("PAUSED", "Suspended")
    monkeypatch.setitem(FORMER_NAMES, "planted", "former")
    assert renamed() == [("planted/renamed", "made"), ("planted/former", "kept")]
    now = client.read_deployment_by_name("planted/renamed")
    assert (now.paused, [one.active for one in now.schedules]) == (True, [False])
    assert client.read_deployment(former).schedules == []
    put("COMPLETED", "Promoted")
    assert renamed() == [("planted/renamed", "as it was"), ("planted/former", "removed")]
    with pytest.raises(ObjectNotFound):
        client.read_deployment(former)
    assert renamed() == [("planted/renamed", "as it was")]


@pytest.mark.slow
def test_receiver_event_starts_the_deployment_with_its_model(
    stack: Stack, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """By the trigger of the file; another event starts nothing."""
    list(apply_pool(client, None, None))
    made = list(apply_deployments(client, planted_file(tmp_path, name="triggered", schedules=[])))
    switch_trigger(client, is_on=True)
    for event, model in (("quantgate.model-version.deleted", "gone"), ("quantgate.model-version.created", "a/b c")):
        body = event_of(event, f"quantgate.model-version.{model}.7", {"name": model, "version": "7"})
        assert httpx.post(f"{stack.api}/events", json=[body], auth=tuple(AUTH.split(":"))).is_success
    mine = {"deployments": {"id": {"any_": [str(made[0].deployment)]}}}
    wait_until(lambda: bool(stack.ask("/flow_runs/filter", mine)), seconds=60)
    (run,) = stack.ask("/flow_runs/filter", mine)
    assert run["parameters"] == {"name": "a/b c", "version": "7"}


def event_of(event: str, resource: str, payload: dict[str, Any], related: Any = ()) -> dict[str, Any]:
    """An event of now."""
    return {
        "id": str(uuid4()),
        "event": event,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": resource},
        "related": list(related),
        "payload": payload,
    }


@pytest.mark.slow
def test_only_a_run_that_fell_silent_is_crashed(stack: Stack, client: SyncPrefectClient, tmp_path: Path) -> None:
    """Of those heard of once: none that goes on beating, ended in a state of any name, was suspended, or is another's.

    Of those that a worker took: the one that never started, not one that waits for its turn or runs.
    """
    list(apply_pool(client, None, None))
    ours = next(apply_deployments(client, planted_file(tmp_path, name="zombies", triggers=[], schedules=[]))).deployment
    theirs = next(
        apply_deployments(client, planted_file(tmp_path, name="others", triggers=[], schedules=[]))
    ).deployment
    assert ours and theirs
    apply_automation(client, zombie_automation([ours], MISSING_SECONDS))
    apply_automation(client, stuck_automation([ours], MISSING_SECONDS))
    runs = {
        name: client.create_flow_run_from_deployment(
            theirs if name == "foreign" else ours, parameters={"name": name}
        ).id
        for name in ("silent", "beating", "ended", "suspended", "foreign", "late", "taken", "submitting")
    }

    def put(name: str, kind: str, label: str) -> None:
        stack.ask(f"/flow_runs/{runs[name]}/set_state", {"state": {"type": kind, "name": label}, "force": True})

    def beat(name: str) -> None:
        deployment = theirs if name == "foreign" else ours
        related = [{"prefect.resource.id": f"prefect.deployment.{deployment}", "prefect.resource.role": "deployment"}]
        body = event_of("prefect.flow-run.heartbeat", f"prefect.flow-run.{runs[name]}", {}, related)
        assert httpx.post(f"{stack.api}/events", json=[body], auth=tuple(AUTH.split(":"))).is_success

    def state(name: str) -> str:
        return str(stack.ask(f"/flow_runs/{runs[name]}", method="GET")["state"]["name"])

    put("taken", "PENDING", "Pending")
    put("submitting", "PENDING", "Submitting")
    for name in ("silent", "beating", "ended", "suspended", "foreign"):
        put(name, "PENDING", "Pending")
        put(name, "RUNNING", "Running")
        beat(name)
    # A busy server may take two events of one moment in either order, and a heartbeat that comes last is waited on.
    time.sleep(3)
    put("ended", "COMPLETED", "NoVariant")
    put("suspended", "PAUSED", "Suspended")
    # What lives on for twice as long as the silent one was given is not going to be crashed for the same silence.
    end = time.monotonic() + 2 * MISSING_SECONDS
    while time.monotonic() < end or any(state(name) != "Crashed" for name in ("silent", "taken", "submitting")):
        assert time.monotonic() < end + 60, "a silent run was never crashed"
        beat("beating")
        time.sleep(2)
    states = {name: state(name) for name in runs}
    # The server calls it late when it comes to it.
    assert states.pop("late") in ("Late", "Scheduled")
    assert states == {
        "silent": "Crashed",
        "beating": "Running",
        "ended": "NoVariant",
        "suspended": "Suspended",
        "foreign": "Running",
        "taken": "Crashed",
        "submitting": "Crashed",
    }


@pytest.mark.slow
def test_pool_of_another_kind_and_invalid_template_are_refused(client: SyncPrefectClient, tmp_path: Path) -> None:
    """With what to do; and how many runs measure at a time is set where it is asked for, and kept."""
    list(apply_pool(client, None, None))
    with pytest.raises(JobError, match="of type process"):
        list(apply_pool(client, ROOT / "infra" / "kubernetes" / "job-template.json", None))
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(JobError, match="base job template"):
        list(apply_pool(client, tmp_path / "x.json", None))
    assert [made.outcome for made in apply_pool(client, None, 3)] == ["as it was", "changed"]
    assert [made.detail for made in apply_pool(client, None, None)][1] == "3 at a time"


def test_no_server_is_an_error_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named or not."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(InfrastructureError, match="PREFECT_API_URL is not set"):
        deployed()
    nowhere = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", nowhere)
    with temporary_settings({PREFECT_API_URL: nowhere}), pytest.raises(InfrastructureError, match=re.escape(nowhere)):
        deployed()

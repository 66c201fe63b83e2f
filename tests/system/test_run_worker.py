"""`quantgate worker` without a target, against a real Prefect server: how many runs it takes at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from stack import AUTH, Stack, wait_until

from tasks.workers.deployments import apply_deployments
from tasks.workers.run_pool import POOL, apply_pool

SUPPORT = Path(__file__).parents[1] / "support"
QUEUES = {"waiting": "runs", "planted": "default"}


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, dict[str, str]]]:
    """A Prefect server whose queue lets two runs measure, and the ids of a deployment in each queue."""
    stack = Stack(tmp_path_factory.mktemp("worker"))
    specs = [
        {
            "entrypoint": f"served_flows.{flow}",
            "name": flow,
            "description": "",
            "tags": [],
            "enforce_parameter_schema": False,
        }
        | {"work_pool": {"name": POOL, "work_queue_name": queue}}
        for flow, queue in QUEUES.items()
    ]
    file = stack.root / "prefect.yaml"
    file.write_text(yaml.safe_dump({"deployments": specs}))
    try:
        stack.start_prefect()
        with (
            temporary_settings({PREFECT_API_URL: stack.api, PREFECT_API_AUTH_STRING: AUTH}),
            get_client(sync_client=True) as client,
        ):
            list(apply_pool(client, None, 2))
            made = list(apply_deployments(client, file))
        yield stack, {one.name.partition("/")[0]: str(one.deployment) for one in made}
    finally:
        stack.close()


@pytest.mark.parametrize(("dispatch", "at_once"), [("process", 1), ("pools", 2)])
def test_worker_takes_one_run_if_runs_measure(
    dispatch: str, at_once: int, deployments: tuple[Stack, dict[str, str]], tmp_path: Path
) -> None:
    """However many the queue allows: the next one is for another machine. A flow of the other queue does not wait for it."""
    stack, ids = deployments

    def start(flow: str, **parameters: str) -> str:
        path = f"/deployments/{ids[flow]}/create_flow_run"
        return str(stack.ask(path, {"parameters": parameters})["id"])

    def state(run: str) -> str:
        return str(stack.ask(f"/flow_runs/{run}", method="GET")["state"]["type"])

    go_on = tmp_path / "go on"
    waiting = [start("waiting", until=str(go_on)) for _ in range(2)]
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    stack.start_python("worker", "flows.cli.app", "worker", QUANTGATE_DISPATCH=dispatch, PYTHONPATH=path)
    wait_until(lambda: sum(state(run) == "RUNNING" for run in waiting) >= at_once, stack.processes["worker"])
    # Taken and ended after the runs were there to be taken.
    other = start("planted", name="tiny")
    wait_until(lambda: state(other) == "COMPLETED", stack.processes["worker"])
    try:
        assert sorted(map(state, waiting)) == ["RUNNING"] * at_once + ["SCHEDULED"] * (2 - at_once)
    finally:
        go_on.touch()
        wait_until(lambda: all(state(run) == "COMPLETED" for run in waiting), stack.processes["worker"])
        assert stack.stop("worker") == 0
    found = stack.ask(f"/work_pools/{POOL}/workers/filter")
    assert [one["name"] for one in found] == []

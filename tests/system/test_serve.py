"""`quantgate serve`: the whole service as processes of this machine, a real run through it, and what is left when it ends."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from browser import browser, page
from conftest import Tiny
from driving import environment
from stack import answers, free_port, headers_of, listens, send, wait_until

from flows.service.worker import _settle

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@dataclass
class Service:
    """A served state folder; `family` is every process that was seen of it."""

    root: Path
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("mlflow", "prefect", "receiver")}
    )
    family: set[psutil.Process] = field(default_factory=set)
    process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """`quantgate serve` on ports of its own."""
        ports = [part for name, port in self.ports.items() for part in (f"--{name}-port", str(port))]
        return [sys.executable, "-m", "flows.cli.app", "serve", *ports]

    def environment(self) -> dict[str, str]:
        """Deaths are noticed in seconds; nothing that a user would not have."""
        return environment(self.root / "state", PYTHONPATH=str(ROOT), COLUMNS="300", PREFECT_WORKER_QUERY_SECONDS="2")

    def start(self) -> None:
        """Until it says that it waits."""
        with (self.root / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(
                self.command(), env=self.environment(), stdout=said, stderr=said, cwd=self.root
            )
        wait_until(lambda: "Ctrl-C" in self.said(), self.process, 300)

    def said(self) -> str:
        """What it printed."""
        return (self.root / "said.txt").read_text()

    def look(self) -> set[psutil.Process]:
        """The processes that live now, all generations."""
        assert self.process is not None
        living = set(psutil.Process(self.process.pid).children(recursive=True))
        self.family |= living
        return living

    def parts(self) -> set[int]:
        """The ids of the programs that it started itself."""
        assert self.process is not None
        return {one.pid for one in psutil.Process(self.process.pid).children()}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what Prefect answers to a POST, or without a body to a GET."""
        url = f"http://127.0.0.1:{self.ports['prefect']}/api{path}"
        return send("GET" if body is None else "POST", url, self.auth, body)

    @property
    def auth(self) -> str:
        """What callers of Prefect must send."""
        told = (self.root / "state" / "secrets" / "prefect.env").read_text()
        return str(re.findall("^PREFECT_API_AUTH_STRING=(.*)$", told, re.MULTILINE)[0])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service, up."""
    service = Service(tmp_path_factory.mktemp("served"))
    try:
        service.start()
        service.look()
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            service.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.process.wait(60)
            service.process.kill()
        for one in service.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def test_it_prints_where_things_are_and_prepares_its_folder(service: Service) -> None:
    """Both pages answer there; the folder of jobs; secrets for their user alone, and nowhere else."""
    addresses = dict(re.findall(r"^(MLflow|Prefect) +(http://127.0.0.1:\d+)$", service.said(), re.MULTILINE))
    assert addresses.keys() == {"MLflow", "Prefect"} and all(answers(url) for url in addresses.values())
    # What the pages ask, which is another port unless they are told.
    settings = httpx.get(f"{addresses['Prefect']}/ui-settings", timeout=30).json()
    assert settings["api_url"] == f"{addresses['Prefect']}/api"
    state = service.root / "state"
    assert (state / "jobs").is_dir()
    secrets = {path.name: path.read_text() for path in (state / "secrets").iterdir()}
    assert secrets.keys() == {"mlflow-webhooks.key", "prefect", "prefect.env", "webhook"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (state / "secrets").iterdir())
    said = service.said() + "".join(path.read_text() for path in (state / "logs").glob("*.log"))
    commands = " ".join(" ".join(one.cmdline()) for one in service.look())
    assert len(said) > 500 and len(commands) > 100
    assert not [name for name, value in secrets.items() if value in said or value in commands]


def test_a_run_that_is_asked_for_by_the_api_runs(service: Service, tiny: Tiny) -> None:
    """As the form in the UI asks: taken by the worker, with its record in MLflow, its state named, and heard of meanwhile."""
    deployment = service.ask("/deployments/name/quantize/quantize-model")
    job = tiny.job(objective="size")
    run = service.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"job": job, "promote": True}})

    def is_over() -> bool:
        service.look()
        return bool(service.ask(f"/flow_runs/{run['id']}")["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED"))

    wait_until(is_over, service.process, 300)
    state = service.ask(f"/flow_runs/{run['id']}")["state"]
    assert (state["type"], state["name"]) == ("COMPLETED", "Winner"), state["message"]
    assert list((service.root / "state" / "store" / "variant").glob("[0-9a-f]*/record.json"))
    search = f"http://127.0.0.1:{service.ports['mlflow']}/api/2.0/mlflow/experiments/search?max_results=10"
    experiments = httpx.get(search, timeout=30).json()["experiments"]
    assert "quantgate" in {one["name"].partition("/")[0] for one in experiments}

    def is_heard() -> bool:
        found = {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run['id']}"]},
        }
        (*_, last) = service.ask("/events/filter", {"filter": found, "limit": 1})["events"] or [None]
        return last is not None

    wait_until(is_heard, service.process, 60)


ATTACK = """<!doctype html><title>elsewhere</title><script>
async function attack(server) {
  const body = "{}", json = {"content-type": "application/json"}, seen = [];
  for (const more of [{headers: json}, {headers: json, credentials: "include"}, {mode: "no-cors"}]) {
    try { seen.push((await fetch(server + "/api/deployments/filter", {method: "POST", body, ...more})).status); }
    catch (error) { seen.push(error.name); }
  }
  const socket = new WebSocket(server.replace("http", "ws") + "/api/events/in", "prefect");
  seen.push(await new Promise((done) => { socket.onopen = () => done("open"); socket.onerror = () => done("closed"); }));
  return seen;
}
</script>"""


def test_a_page_of_another_origin_reaches_nothing(service: Service, tmp_path: Path) -> None:
    """By a real browser, in which the operator is signed in; the server's own pages work there."""
    (tmp_path / "index.html").write_text(ATTACK)
    prefect = f"http://127.0.0.1:{service.ports['prefect']}"
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere, browser() as opened:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        with page(opened, tmp_path / "failed.png") as tab:
            tab.goto(f"{prefect}/sign-in#{service.auth}")
            tab.get_by_text("Active Work Pools").wait_for()
            for host in ("127.0.0.1", "localhost"):
                tab.goto(f"http://{host}:{elsewhere.server_port}/")
                # The status 0 of an opaque answer: the page cannot see that it was refused.
                assert tab.evaluate("attack", prefect) == ["TypeError", "TypeError", 0, "closed"]
        elsewhere.shutdown()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Basic cXVhbnRnYXRlOmd1ZXNz"}, 401),
        ({"host": "evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
    ],
)
def test_wrong_password_and_foreign_host_are_refused(service: Service, headers: dict[str, str], status: int) -> None:
    sent = headers if status == 401 else headers_of(service.auth) | headers
    url = f"http://127.0.0.1:{service.ports['prefect']}/api/deployments/filter"
    assert httpx.post(url, json={}, headers=sent).status_code == status


@pytest.mark.parametrize("name", ["command", "env", "working_dir", "stream_output", "anything"])
def test_a_caller_sets_no_job_variable(service: Service, name: str) -> None:
    deployment = service.ask("/deployments/name/rollback/roll-back-champion")["id"]
    body = {"parameters": {"model": "m", "target": "ort-cpu"}, "job_variables": {name: {} if name == "env" else "true"}}
    with pytest.raises(httpx.HTTPStatusError) as refused:
        service.ask(f"/deployments/{deployment}/create_flow_run", body)
    assert refused.value.response.status_code == 422 and name in refused.value.response.text


def test_no_run_gets_the_secret_of_the_webhook(service: Service) -> None:
    (worker,) = [one for one in service.look() if "worker" in one.cmdline() and "flows.cli.app" in one.cmdline()]
    assert "PREFECT_API_AUTH_STRING" in worker.environ()
    assert "QUANTGATE_WEBHOOK_SECRET" not in worker.environ()


def test_runs_get_the_variables_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a worker, before it takes work."""
    given = {"DEPLOY_TOKEN": "x", "PREFECT_SERVER_API_AUTH_STRING": "a:b", "QUANTGATE_WEBHOOK_SECRET": "w"}
    kept = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "PREFECT_API_AUTH_STRING": "a:b",
        "QUANTGATE_HOOK_TABLE": "t",
        "no_proxy": "h",
    }
    monkeypatch.setattr(os, "environ", os.environ | given | kept)
    _settle(tmp_path / "state")
    assert os.environ.items() >= kept.items() and not given.keys() & os.environ.keys()
    assert os.environ["QUANTGATE_STATE"] == str(tmp_path / "state")


def test_a_second_service_on_its_ports_says_so(service: Service) -> None:
    """And starts nothing, and harms nothing."""
    # Its own parts: what a worker has going on comes to its end meanwhile.
    before = service.parts()
    env = service.environment() | {"QUANTGATE_STATE": str(service.root / "other")}
    done = subprocess.run(service.command(), env=env, capture_output=True, text=True, cwd=service.root, check=False)
    assert done.returncode == 1
    assert f"port {service.ports['mlflow']} is taken" in done.stderr and "--mlflow-port" in done.stderr
    assert service.parts() == before


def test_a_server_that_is_killed_comes_back(service: Service) -> None:
    """On its port, with what it had, although its children held the port when it died."""
    assert service.process is not None
    (mlflow,) = (
        one for one in psutil.Process(service.process.pid).children() if {"mlflow", "server"} <= set(one.cmdline())
    )
    os.kill(mlflow.pid, signal.SIGKILL)
    wait_until(lambda: "MLflow ended by itself (-9)" in service.said(), service.process, 60)
    wait_until(lambda: answers(f"http://127.0.0.1:{service.ports['mlflow']}/health"), service.process, 180)


def test_a_signal_ends_all_of_it(service: Service) -> None:
    """In seconds, with a run going on: no process and no port is left, and the run is not left running."""
    service.look()
    deployment = service.ask("/deployments/name/validate/judge-calibration")
    service.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"job": late_job(service.root)}})
    assert service.process is not None
    before = len(service.look())
    wait_until(lambda: len(service.look()) > before, service.process, 120)
    service.process.terminate()
    assert service.process.wait(60) == 0
    assert service.said().splitlines()[-1] == "stopped"
    left = [one for one in service.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert left == []
    assert not any(map(listens, service.ports.values()))


def late_job(folder: Path) -> dict[str, Any]:
    """A job that the server takes, and that a run of it fails at."""
    data = {"calibration": str(folder / "none.npz"), "evaluation": str(folder / "none.npz")}
    return {"source": str(folder / "none.onnx"), "data": data}

"""How work spreads over workers of one machine, and what the server, its database and the artifact store bear.

`workers`: flow runs that sleep, and flow runs that compute, by 1, 2 and 4 workers of one at a time each, as target workers are.
`server`: flow runs created and moved through their states by 1 and 4 clients, on SQLite and on PostgreSQL. `store`: entries of
the store of finished work, put on S3 and read back by 1, 2 and 4 processes. Each in turn in one call.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import psutil
import typer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from figures import save
from stack import AUTH, BUCKET, Stack, headers_of, wait_until

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
POOL, FLOW_RUNS, WORK_SECONDS = "scaling", 8, 10.0
WORKERS = (1, 2, 4)
CLIENTS, REQUEST_SECONDS = (1, 4), 15.0
MACHINES, ENTRIES, SIZES_MIB = (1, 2, 4), 8, (1, 64)


@app.command()
def workers() -> None:
    """Wall time of the same flow runs by 1, 2 and 4 workers."""
    rows = []
    with _stack(on_postgres=True) as stack:
        os.environ["PREFECT_API_URL"] = stack.api
        stack.start_prefect()
        deployment = _deploy(stack)
        for kind, count in product(("sleeps", "computes"), WORKERS):
            rows.append(_spread(stack, deployment, kind, count))
            print(rows[-1], flush=True)
    save("scaling_workers", {"flow_runs": FLOW_RUNS, "work_seconds": WORK_SECONDS, "rows": rows})


@app.command()
def server() -> None:
    """State changes a second that a Prefect server takes, and what a request takes meanwhile."""
    rows = []
    for on_postgres in (False, True):
        with _stack(on_postgres=on_postgres) as stack:
            stack.start_prefect()
            for clients in CLIENTS:
                rows.append({"database": "PostgreSQL" if on_postgres else "SQLite"} | _load(stack, clients))
                print(rows[-1], flush=True)
    save("scaling_server", {"seconds": REQUEST_SECONDS, "rows": rows})


@app.command()
def store() -> None:
    """What entries of the store cost on S3, to put and to fetch."""
    rows = []
    with _stack(on_s3=True) as stack:
        stack.start_s3()
        for mib, count in product(SIZES_MIB, MACHINES):
            rows.append(_move(stack, count, mib))
            print(rows[-1], flush=True)
    save("scaling_store", {"entries": ENTRIES, "rows": rows})


@contextmanager
def _stack(**servers: bool) -> Iterator[Stack]:
    """Yield servers in a folder that goes with them."""
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        stack = Stack(Path(folder), **servers)
        try:
            yield stack
        finally:
            stack.close()


def _move(stack: Stack, count: int, mib: int) -> dict[str, Any]:
    """So many processes with a state folder each, all putting their own entries, then all fetching them."""
    machines = []
    for number in range(count):
        name = f"{mib}-{count}-{number}"
        told = {"QUANTGATE_STATE": str(stack.root / name), "QUANTGATE_STORE": f"s3://{BUCKET}/scaling"}
        command = [sys.executable, str(HERE / "scaling_store.py"), name, str(ENTRIES), str(mib << 20)]
        machines.append(
            subprocess.Popen(
                command, env=stack.settings(**told), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        )
    row: dict[str, Any] = {"entry_mib": mib, "processes": count}
    for part in ("put", "fetched"):
        for machine in machines:
            assert _said(machine) == "ready"
        for machine in machines:
            assert machine.stdin is not None
            machine.stdin.write("go\n")
        seconds = [float(_said(machine).removeprefix(part)) for machine in machines]
        row[f"{part}_seconds_an_entry"] = round(statistics.median(seconds) / ENTRIES, 3)
        row[f"{part}_mib_a_second"] = round(count * ENTRIES * mib / max(seconds), 1)
    for machine in machines:
        with machine:
            assert machine.wait(60) == 0
    return row


def _said(machine: subprocess.Popen[str]) -> str:
    assert machine.stdout is not None
    return machine.stdout.readline().strip()


def _deploy(stack: Stack) -> str:
    """The deployment of the flow in a pool of processes, by its dotted name."""
    environment = stack.settings() | {"PYTHONPATH": str(HERE)}
    run = [sys.executable, "-m", "prefect", "--no-prompt"]
    subprocess.run([*run, "work-pool", "create", POOL, "--type", "process"], env=environment, check=True)
    from prefect import Flow
    from prefect.client.orchestration import get_client
    from scaling_work import work

    assert isinstance(work, Flow)
    with get_client(sync_client=True) as client:
        flow = client.create_flow(work)
        made = client.create_deployment(flow, "scaling", work_pool_name=POOL, entrypoint="scaling_work.work")
    return str(made)


def _spread(stack: Stack, deployment: str, kind: str, count: int) -> dict[str, Any]:
    """All flow runs, asked for at once, until the last has ended."""
    names = [f"{kind}-{count}-{number}" for number in range(count)]
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    for name in names:
        arguments = ("prefect", "worker", "start", "--pool", POOL, "--limit", "1", "--name", name)
        stack.start_python(name, *arguments, PYTHONPATH=path)
    for name in names:
        wait_until(lambda name=name: "started!" in stack.said(name), stack.processes[name])  # type: ignore[misc]  # a default makes it one of this turn of the loop
    busy = psutil.Process(stack.processes["prefect"].pid)
    before, started = _processor_seconds(busy), time.monotonic()
    parameters = {"kind": kind, "seconds": WORK_SECONDS}
    path = f"/deployments/{deployment}/create_flow_run"
    found = [stack.ask(path, {"parameters": parameters})["id"] for _ in range(FLOW_RUNS)]

    def ended() -> bool:
        # Seldom: each question is work for the server that is measured.
        time.sleep(1)
        states = [one["state_type"] for one in stack.ask("/flow_runs/filter", {"flow_runs": {"id": {"any_": found}}})]
        assert not {"FAILED", "CRASHED"} & set(states)
        return states == ["COMPLETED"] * FLOW_RUNS

    wait_until(ended, seconds=900)
    wall = time.monotonic() - started
    server_seconds = _processor_seconds(busy) - before
    for name in names:
        stack.stop(name)
    return {
        "work": kind,
        "workers": count,
        "wall_seconds": round(wall, 1),
        # What each flow run cost its worker beyond its work: to be found, a process, its imports, its states.
        "overhead_seconds_a_flow_run": round(wall * count / FLOW_RUNS - WORK_SECONDS, 1),
        "server_processor_seconds_a_flow_run": round(server_seconds / FLOW_RUNS, 2),
    }


def _processor_seconds(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def _load(stack: Stack, clients: int) -> dict[str, Any]:
    """Flow runs created, started and completed over and over by so many clients."""
    flow = stack.ask("/flows/", {"name": "load"})["id"]
    end = time.monotonic() + REQUEST_SECONDS
    taken: list[float] = []
    busy: list[str] = []
    silent: list[str] = []

    def ask(path: str, body: dict[str, Any]) -> Any:
        while True:
            started = time.monotonic()
            try:
                answer = httpx.post(f"{stack.api}{path}", json=body, headers=headers_of(AUTH), timeout=30)
            except httpx.TimeoutException:
                silent.append(path)
                continue
            # What Prefect's own client waits for and asks again: the database was locked for too long.
            if answer.status_code == 503:
                busy.append(path)
                time.sleep(0.5)
                continue
            answer.raise_for_status()
            taken.append(time.monotonic() - started)
            return answer.json()

    def life(_: int) -> int:
        ended = 0
        while time.monotonic() < end:
            made = ask("/flow_runs/", {"flow_id": flow, "state": {"type": "PENDING"}})["id"]
            for state in ("RUNNING", "COMPLETED"):
                ask(f"/flow_runs/{made}/set_state", {"state": {"type": state}, "force": True})
            ended += 1
        return ended

    with ThreadPoolExecutor(clients) as pool:
        ended = sum(pool.map(life, range(clients)))
    return {
        "clients": clients,
        "flow_runs_a_second": round(ended / REQUEST_SECONDS, 1),
        "refused_as_busy": len(busy),
        "no_answer_in_30_s": len(silent),
        "request_p50_ms": round(1000 * statistics.median(taken), 1),
        "request_p99_ms": round(1000 * statistics.quantiles(taken, n=100)[98], 1),
    }


if __name__ == "__main__":
    app()

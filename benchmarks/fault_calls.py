"""Fail every HTTP call of a run once in each of six ways, and compare what the run comes to with an undisturbed one.

    python benchmarks/fault_calls.py --minutes 120

Real servers on PostgreSQL and S3, and small runs that promote, each in a process that the script starts as a worker would.
Proxies before Prefect, MLflow and S3 number the calls of a run. One run meets many faults of one way: each call of a group
fails once. A group that is not promoted is split until the single calls are known. A call that the run did not come to goes
into another group. A run that ended as an error is retried without faults. `benchmarks/results/fault_calls.json` has a row a
call and way; rows that are there already stay.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from figures import earlier, save

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

from conftest import make_tiny
from fault_checks import Reference, ending_of, entries, problems_of
from fault_plant import Plant
from fault_proxy import WAYS, Call, FaultProxy, faults
from faults import CANDIDATES
from stack import BUCKET, Stack

from tasks.storage.s3_retry import Patience

SERVERS = ("mlflow", "prefect", "s3")
# A run and its retry; one that takes longer hangs.
LONGEST_SECONDS = 420.0
# A call that comes in some runs alone is left after so many groups that did not come to it.
MOST_MISSES = 2
RUN = """
import runpy
from tasks.run.settings import prepare_environment, state_folder
from tasks.storage.s3_retry import Patience
# Clients give up a silent connection sooner than they would (after 120 s of MLflow, 60 s of Prefect, 30 s of S3).
Patience.__init__.__defaults__ = (*Patience.__init__.__defaults__[:-1], {answer_seconds})
prepare_environment(state_folder())
runpy.run_module("prefect.engine", run_name="__main__")
"""
SHORT_SECONDS = 5
SHORT = {name: str(SHORT_SECONDS) for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "PREFECT_API_REQUEST_TIMEOUT")}
Key = tuple[str, str, str, int]


@dataclass
class Bench:
    """The servers, the proxies before them, and what is known so far."""

    plant: Plant
    known: dict[str, Any]
    proxies: dict[str, FaultProxy] = field(default_factory=dict)
    reference: Reference = field(init=False)

    def start(self, stack: ExitStack) -> None:
        """Start servers and proxies, and record the calls of an undisturbed run."""
        servers = self.plant.stack
        for server in SERVERS:
            counts = _is_of_a_run if server == "s3" else lambda _: True
            self.proxies[server] = stack.enter_context(faults(servers.port(server), {}, 0, counts))
        # MLflow's server signs the addresses from which runs download.
        self.plant.start_servers(AWS_ENDPOINT_URL=self.proxies["s3"].endpoint)
        begin = time.monotonic()
        flow_run, _ = self.attempt("undisturbed", "", [])
        self.known["usual_seconds"] = round(time.monotonic() - begin, 1)
        self.reference = Reference(ending_of(self.plant, "undisturbed", flow_run))
        assert self.reference.ending.state == "Promoted", servers.said("run")[-3000:]
        if not self.known["calls"]:
            self.known["calls"] = [[server, *call] for server in SERVERS for call in self.proxies[server].calls]

    def attempt(self, name: str, way: str, group: list[Key], flow_run: str = "") -> tuple[str, list[Key]]:
        """Run once, or retry, with a group of calls failing; return the flow run's id and the calls that failed."""
        for server, proxy in self.proxies.items():
            proxy.follow({Call(*key[1:]): way for key in group if key[0] == server}, name)
        if flow_run:
            self.plant.retry(flow_run)
        else:
            flow_run = self.plant.submit(name, CANDIDATES, is_shared=True)
        program = RUN.format(answer_seconds=SHORT_SECONDS if way == "hang" else Patience().answer_seconds)
        process = self.plant.stack.start("run", [sys.executable, "-c", program], **self._settings(name, way, flow_run))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_SECONDS)
        self.plant.stack.kill("run")
        return flow_run, [(server, *call) for server, proxy in self.proxies.items() for call in proxy.failed]

    def _settings(self, name: str, way: str, flow_run: str) -> dict[str, str]:
        return {
            "MLFLOW_TRACKING_URI": self.proxies["mlflow"].endpoint,
            "PREFECT_API_URL": f"{self.proxies['prefect'].endpoint}/api",
            "AWS_ENDPOINT_URL": self.proxies["s3"].endpoint,
            "QUANTGATE_STATE": str(self.plant.state(name)),
            "QUANTGATE_STORE": self.plant.shared_store(name),
            "PREFECT__FLOW_RUN_ID": flow_run,
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        } | (SHORT if way == "hang" else {})

    def judge(self, way: str, group: list[Key]) -> tuple[list[Key], str, list[str]]:
        """Run with a group failing; return the calls that failed, the outcome, and what is wrong."""
        self.known["runs"] += 1
        name = f"calls-{self.known['runs']}"
        flow_run, failed = self.attempt(name, way, group)
        found, problems, outcome = self.plant.flow_run(flow_run), [], "promoted"
        kept = entries(self.plant.state(name))
        if found["state_name"] != "Promoted":
            outcome = "error"
            if found["state_type"] != "FAILED" or found["state_name"] not in ("Failed", "Error"):
                message = str(found["state"].get("message"))
                problems = [f"first state: {found['state_name']}: {message[:300]}, expected Promoted or Failed"]
            self.attempt(name, "", [], flow_run)
        ending, after = ending_of(self.plant, name, flow_run), entries(self.plant.state(name))
        problems += problems_of(ending, self.reference, versions_before=0)
        redone = sum(after.get(path) != stamp for path, stamp in kept.items())
        bundles = len(list(self.plant.state(name).glob("store*/evidence/*")))
        problems += [f"entries written again: {redone}"] * bool(redone)
        problems += [f"evidence bundles: {bundles}, expected 1"] * (bundles != 1)
        print(json.dumps([name, way, len(group), len(failed), outcome, problems]), flush=True)
        return failed, "wrong" if problems else outcome, [str(found["state"].get("message"))[:300], *problems]

    def settle(self, way: str, group: list[Key]) -> None:
        """Find the outcome of each call of a group, and save it."""
        failed, outcome, problems = self.judge(way, group)
        for key in set(group) - set(failed):
            self.known["missed"][_name(way, key)] = self.known["missed"].get(_name(way, key), 0) + 1
        if outcome == "promoted" or len(failed) == 1:
            for server, method, path, nth in failed:
                row = {"server": server, "method": method, "path": path, "nth": nth, "way": way, "outcome": outcome}
                self.known["rows"].append(row | ({} if outcome == "promoted" else {"problems": problems}))
        save("fault_calls", self.known, quiet=True)
        if outcome != "promoted" and len(failed) > 1:
            self.settle(way, failed[::2])
            self.settle(way, failed[1::2])

    def next_group(self, way: str, size: int) -> list[Key]:
        """Return calls that did not fail in this way yet, spread over the run."""
        settled = {
            (row["server"], row["method"], row["path"], row["nth"]) for row in self.known["rows"] if row["way"] == way
        }
        keys: list[Key] = [tuple(call) for call in self.known["calls"]]
        left = [
            key for key in keys if key not in settled and self.known["missed"].get(_name(way, key), 0) < MOST_MISSES
        ]
        return left[:: max(1, -(-len(left) // size))]


def _name(way: str, key: Key) -> str:
    return " ".join(map(str, (way, *key)))


def _is_of_a_run(head: bytes) -> bool:
    """Return True unless the request is MLflow's own: it keeps artifacts on the same server."""
    target = head.split(b" ", 2)[1]
    return b"X-Amz-Signature=" in target or not target.startswith(f"/{BUCKET}/mlflow".encode())


def table(known: dict[str, Any]) -> list[str]:
    """Return the lines of the table of docs/faults.md: calls tried, promoted, ended as an error, wrong."""
    counts = Counter((row["server"], row["way"], row["outcome"]) for row in known["rows"])
    lines = []
    for server, title in zip(SERVERS, ("MLflow", "Prefect", "S3"), strict=True):
        cells = [[counts[server, way, outcome] for outcome in ("promoted", "error", "wrong")] for way in WAYS]
        lines.append(f"| {title} | " + " | ".join(f"{sum(cell)}: {', '.join(map(str, cell))}" for cell in cells) + " |")
    return lines


def summary(known: dict[str, Any]) -> str:
    """Return the sentence of docs/faults.md on how much was tried."""
    tried, all_of_them = len(known["rows"]), len(known["calls"]) * len(WAYS)
    return f"{tried:,} of {all_of_them:,} pairs of a call and a way were tried, in {known['runs']:,} runs"


def main(
    minutes: Annotated[float, typer.Option(help="Start no run after so long.")] = 120.0,
    size: Annotated[int, typer.Option(help="Calls that fail in one run; a quarter of them if they hang.")] = 96,
) -> None:
    """Fail calls until all have failed in all ways, or so much time is over."""
    end = time.monotonic() + 60 * minutes
    known: dict[str, Any] = {"runs": 0, "calls": [], "missed": {}, "rows": []} | earlier("fault_calls")
    with tempfile.TemporaryDirectory(prefix="quantgate-calls-") as folder, ExitStack() as stack:
        plant = Plant(Stack(Path(folder, "service"), on_postgres=True, on_s3=True), make_tiny(Path(folder)))
        stack.callback(plant.close)
        bench = Bench(plant, known)
        bench.start(stack)
        print(json.dumps(Counter(call[0] for call in known["calls"])), flush=True)
        ways = list(WAYS)
        while ways and time.monotonic() < end:
            # In turn, so that what is there at any time covers all ways.
            if group := bench.next_group(ways[0], size // 4 if ways[0] == "hang" else size):
                bench.settle(ways[0], group)
                ways = [*ways[1:], ways[0]]
            else:
                ways.pop(0)
    print("\n".join([*table(known), summary(known)]))


if __name__ == "__main__":
    typer.run(main)

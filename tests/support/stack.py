"""The servers that quantgate stands on, as real processes of a test: PostgreSQL, an S3 server, MLflow, Prefect, workers.

Each is started on first use with a port and a folder of its own, so that one that was killed comes back to what it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from databases import lend_mlflow, lend_prefect
from driving import environment

from tasks.service.processes import die_with_parent

READY_SECONDS = 180.0
S3_KEY, S3_SECRET, BUCKET = "quantgate-test", "quantgate-test-secret", "quantgate"
POSTGRES_USER = "postgres"
AUTH = "quantgate:of-the-test-server"


def free_port() -> int:
    """A port that nothing uses, with the one 10,000 above it free too: SeaweedFS speaks gRPC there."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1]) % 20_000 + 20_000
        if not listens(port) and not listens(port + 10_000):
            return port


def listens(port: int) -> bool:
    """Whether something does there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Whether a server answers there, were it with a refusal."""
    try:
        return httpx.get(url, timeout=5).status_code < 500
    except httpx.HTTPError:
        return False


def send(method: str, url: str, auth: str, body: object = None) -> Any:
    """Return what Prefect answers, or None.

    It repeats on 503, Prefect's answer while SQLite is locked (as its client does). Any other refusal raises
    httpx.HTTPStatusError, whose answer is read: it holds no socket.
    """
    for wait_s in (1, 2, 4, 8):
        answer = httpx.request(method, url, json=body, headers=headers_of(auth), timeout=120)
        if answer.status_code != 503:
            answer.raise_for_status()
            return answer.json() if answer.content else None
        time.sleep(wait_s)
    raise AssertionError(f"four times 503 from {url}")


def wait_until(
    holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, seconds: float = READY_SECONDS
) -> None:
    """Wait for something to hold while a process lives."""
    end = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, "the process ended"
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.2)


@dataclass
class Stack:
    """The servers below one folder; `postgres` puts MLflow and Prefect on it, `s3` MLflow's artifacts.

    `host` is the address of MLflow, Prefect and S3: another one than loopback for workers with a network of their own.

    Every process leads a group of its own: `kill` ends it with all that it started. None outlives a test that is killed.
    """

    root: Path
    on_postgres: bool = False
    on_s3: bool = False
    host: str = "127.0.0.1"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The state folder of runs and workers."""
        return self.root / "state"

    @property
    def api(self) -> str:
        """Prefect's address."""
        return f"http://{self.host}:{self.port('prefect')}/api"

    @property
    def registry(self) -> str:
        """MLflow's address."""
        return f"http://{self.host}:{self.port('mlflow')}"

    @property
    def endpoint(self) -> str:
        """The S3 server's address."""
        return f"http://{self.host}:{self.port('s3')}"

    def port(self, name: str) -> int:
        """The port of a server, the same for as long as the stack is."""
        return self.ports.setdefault(name, free_port())

    def settings(self, **extra: str) -> dict[str, str]:
        """The environment of runs, workers and servers; deaths are noticed in seconds in place of minutes."""
        told = {
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": AUTH,
            "PREFECT_SERVER_API_AUTH_STRING": AUTH,
            "PREFECT_HOME": str(self.root / "prefect"),
            "PREFECT_WORKER_HEARTBEAT_SECONDS": "2",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "2",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "DO_NOT_TRACK": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PYTHONWARNINGS": "ignore",
            "QUANTGATE_WORKER_WAIT_SECONDS": "20",
        }
        if "mlflow" in self.processes:
            told["MLFLOW_TRACKING_URI"] = self.registry
        if "s3" in self.ports:
            told |= {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET, "AWS_ENDPOINT_URL": self.endpoint}
            told |= {"AWS_DEFAULT_REGION": "us-east-1"}
        return environment(self.state, **(told | extra))

    def start(self, name: str, command: list[str], **extra: str) -> subprocess.Popen[bytes]:
        """A process with a log of its own, in a group of its own."""
        self.state.mkdir(parents=True, exist_ok=True)
        (self.root / "prefect").mkdir(exist_ok=True)
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.settings(**extra),
                stdout=log,
                stderr=log,
                cwd=self.root,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return self.processes[name]

    def start_python(self, name: str, *arguments: str, **extra: str) -> subprocess.Popen[bytes]:
        """`python -m ...` of this interpreter's."""
        return self.start(name, [sys.executable, "-m", *arguments], **extra)

    def start_prefect(self) -> None:
        """A Prefect server, on PostgreSQL where the stack is."""
        extra = {"QUANTGATE_PREFECT_HOSTS": self.host}
        if self.on_postgres:
            url = f"postgresql+asyncpg://{POSTGRES_USER}@127.0.0.1:{self._postgres()}/prefect"
            extra["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = url
        else:
            lend_prefect(self.root / "prefect")
        arguments = ("uvicorn", "--factory", "tasks.service.prefect_app:create_app", "--host", self.host)
        server = self.start_python("prefect", *arguments, "--port", str(self.port("prefect")), **extra)
        wait_until(lambda: answers(f"{self.api}/health"), server)

    def start_mlflow(self, **extra: str) -> None:
        """An MLflow server, its database and artifacts as the stack says; `extra` for its environment."""
        store = f"sqlite:///{self.root / 'mlflow.db'}"
        artifacts = (self.root / "mlartifacts").as_uri()
        if self.on_postgres:
            store = f"postgresql+psycopg2://{POSTGRES_USER}@127.0.0.1:{self._postgres()}/mlflow"
        else:
            lend_mlflow(self.root / "mlflow.db")
        if self.on_s3:
            if "s3" not in self.processes:
                self.start_s3()
            artifacts = f"s3://{BUCKET}/mlflow"
        arguments = ["mlflow", "server", "--backend-store-uri", store, "--artifacts-destination", artifacts]
        arguments += ["--host", self.host, "--port", str(self.port("mlflow")), "--workers", "1"]
        server = self.start_python("mlflow", *arguments, **({"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | extra))
        wait_until(lambda: answers(f"{self.registry}/health"), server)

    def start_s3(self) -> None:
        """A SeaweedFS server with the bucket `quantgate`."""
        folder = self.root / "s3"
        folder.mkdir(parents=True, exist_ok=True)
        rights = {"accessKey": S3_KEY, "secretKey": S3_SECRET}
        identity = {"name": "test", "credentials": [rights], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        command = [str(Path(sys.executable).with_name("weed")), "server", f"-ip={self.host}", f"-ip.bind={self.host}"]
        command += [f"-dir={folder}", "-filer", "-s3", f"-s3.config={config}", f"-s3.port={self.port('s3')}"]
        command += [f"-{part}.port={self.port(f's3-{part}')}" for part in ("master", "volume", "filer")]
        command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=64", "-s3.port.iceberg=0"]
        # Off, too: its port is fixed, and two stacks on one machine would meet there.
        command += ["-s3.port.lance=0"]
        server = self.start("s3", command)
        wait_until(lambda: answers(self.endpoint), server)
        client = self.s3_client()

        def has_bucket() -> bool:
            with contextlib.suppress(Exception):
                if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                    client.create_bucket(Bucket=BUCKET)
                client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
                return True
            return False

        wait_until(has_bucket, server)

    def s3_client(self) -> Any:
        """boto3's client of the S3 server."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=S3_KEY,
            aws_secret_access_key=S3_SECRET,
            region_name="us-east-1",
        )

    def _postgres(self) -> int:
        """The port of PostgreSQL, which is started, with a database for each server, if it does not run."""
        if "postgres" not in self.processes:
            self.start_postgres()
        return self.port("postgres")

    def start_postgres(self) -> None:
        """PostgreSQL; as root by the user of its package, since it refuses to run as root."""
        programs = postgres_programs()
        folder = self.root / "postgres"
        user = POSTGRES_USER if os.geteuid() == 0 else None
        if not (folder / "PG_VERSION").exists():
            folder.mkdir(parents=True, exist_ok=True)
            if user:
                shutil.chown(folder, user)
                _let_pass(folder, pwd.getpwnam(user).pw_uid)
            init = [programs / "initdb", "-D", folder, "-U", POSTGRES_USER, "--auth=trust", "--no-sync"]
            subprocess.run(init, check=True, capture_output=True, user=user, cwd="/")
        command = [str(programs / "postgres"), "-D", str(folder), "-h", "127.0.0.1", "-p", str(self.port("postgres"))]
        # What a killed process has written stays without fsync: only a machine that stops would lose it.
        command += ["-c", "unix_socket_directories=", "-c", "fsync=off"]
        with (self.root / "postgres.log").open("ab") as log:
            self.processes["postgres"] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                user=user,
                cwd="/",
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        wait_until(self._has_databases, self.processes["postgres"])

    def _has_databases(self) -> bool:
        made = []
        for name in ("prefect", "mlflow"):
            command = [postgres_programs() / "createdb", "-h", "127.0.0.1", "-p", str(self.port("postgres"))]
            done = subprocess.run([*command, "-U", POSTGRES_USER, name], capture_output=True, text=True, check=False)
            made.append(done.returncode == 0 or "already exists" in done.stderr)
        return all(made)

    def said(self, name: str) -> str:
        """What a process has printed so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """End a process by a signal to itself, and wait for it."""
        process = self.processes[name]
        process.send_signal(number)
        code = process.wait(READY_SECONDS)
        # Not before: what does not end is left for `close` to kill.
        del self.processes[name]
        return code

    def kill(self, name: str) -> None:
        """End a process, and all that it started, by SIGKILL."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def end(self, name: str) -> None:
        """End a process in whatever way it takes: asked first, which has it end its own; then by force, with what is left."""
        process = self.processes[name]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        self.kill(name)

    def close(self) -> None:
        """End everything, what was started last first."""
        for name in reversed(list(self.processes)):
            self.end(name)

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """What the Prefect server answers."""
        return send(method, f"{self.api}{path}", AUTH, None if method == "GET" else body or {})


def headers_of(auth: str) -> dict[str, str]:
    """The headers of a request to Prefect's API."""
    return {"content-type": "application/json", "authorization": f"Basic {b64encode(auth.encode()).decode()}"}


def postgres_programs() -> Path:
    """The folder of PostgreSQL's programs, which Debian keeps off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    on_path = shutil.which("initdb")
    assert found or on_path, "no PostgreSQL: apt-get install postgresql"
    return found[-1] if found else Path(str(on_path)).resolve().parent


def _let_pass(folder: Path, uid: int) -> None:
    """Let a user reach a folder below one that pytest made for its own user alone."""
    for parent in folder.parents:
        if parent.stat().st_uid != uid and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)

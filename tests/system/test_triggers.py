"""From a registered version to a run, on real servers: MLflow's webhook, the receiver, Prefect's event, trigger and flow."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Tiny
from driving import write_job
from flood import Delivery, Outcome, make_flood, send_flood
from mlflow import MlflowClient
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from stack import AUTH, Stack, wait_until
from triggering import (
    OLDER_SECRET,
    ROOT,
    SECRET,
    events,
    quantgate,
    receiver_of,
    register,
    runs,
    start_receiver,
    start_servers,
)

from tasks.registry.source_status import digest_job
from tasks.service import new_versions as intake
from tasks.service.job_files import at_version, read_jobs

pytestmark = pytest.mark.slow

DELIVERIES = int(os.environ.get("QUANTGATE_TEST_DELIVERIES", "240"))
# What MLflow takes for a name; whatever is between here and the flow must leave it as it is.
HOSTILE = "{{ event.id }} {% raw %} 'é' \"*\" ${HOME} "
TRUE = 60 if DELIVERIES >= 1000 else 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The servers of this module; on sqlite an overloaded Prefect fails to make some of the runs that events trigger."""
    stack = Stack(tmp_path_factory.mktemp("triggers"), on_postgres=True)
    try:
        start_servers(stack)
        yield stack
    finally:
        stack.close()


def test_a_registered_version_becomes_a_run(stack: Stack, tiny: Tiny) -> None:
    """`quantgate webhook` registers and tries it, twice without a second one; then a version comes through, and not our own."""
    jobs = stack.state / "jobs"
    jobs.mkdir()
    write_job(jobs / "nightly.yaml", tiny.job(source="models:/ranker/1"))
    url = f"{receiver_of(stack)}/webhook"
    for _ in range(2):
        done = quantgate(stack, "webhook", url, QUANTGATE_WEBHOOK_SECRET=f"{SECRET},{OLDER_SECRET}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ignored: this is MLflow's example" in done.stdout and done.stdout.count(url) == 1
        assert SECRET not in done.stdout + done.stderr
    register(stack, "ranker-quantized", {"quantgate.variant_digest": "ab"})
    register(stack, "ranker")
    version = register(stack, "ranker", {"note": "the second one"})
    worker = ("prefect", "worker", "start", "--pool", "quantgate", "--limit", "1")
    stack.start_python("worker", *worker, PYTHONPATH=str(ROOT))
    try:
        wait_until(lambda: len(runs(stack, "quantize")) >= 2)
        wait_until(lambda: Counter(run["state_name"] for run in runs(stack, "new version")) == {"Started": 2})
    finally:
        # Asked to end just when a run of its own ends, a worker of Prefect 3.8 forgets it, and goes on.
        stack.end("worker")
    taken = {run["parameters"]["version"]: run["state"]["message"] for run in runs(stack, "new version")}
    assert taken[version] == f"started: ranker version {version} with nightly (no status)"
    sources = {run["parameters"]["job"]["source"]: run["parameters"]["promote"] for run in runs(stack, "quantize")}
    assert sources == {"models:/ranker/1": True, "models:/ranker/2": True}
    tables = stack.ask("/artifacts/filter", {"artifacts": {"key": {"any_": ["new-version"]}}})
    assert sorted(json.loads(table["data"])[0]["version"] for table in tables) == ["1", "2"]
    assert '"model": "ranker-quantized"' in stack.said("receiver"), "the receiver has seen our own version, too"


def send(stack: Stack, flood: list[Delivery], faults: dict[int, Callable[[], None]]) -> Outcome:
    """Send a flood, with something done to the servers after so many requests."""

    def act(done: int) -> None:
        if done in faults:
            faults[done]()

    outcome = send_flood(f"{receiver_of(stack)}/webhook", flood, act)
    for kind, statuses in sorted(outcome.by_kind.items()):
        print(f"{kind:30} {len(statuses):5} {dict(Counter(statuses))}")
    assert outcome.wrong == []
    return outcome


def came_through(stack: Stack, prefix: str, before: int) -> None:
    """Each true one has one event and one run, and nothing else has any."""
    wait_until(lambda: len(runs(stack, "new version")) >= before + TRUE)
    wait_until(lambda: len(events(stack)) >= before + TRUE)
    expected = {f"{prefix}{number}": 1 for number in range(TRUE)}
    made = runs(stack, "new version")
    names = Counter(run["parameters"]["name"] for run in made)
    assert {name: count for name, count in names.items() if name.startswith(prefix)} == expected
    assert len(made) == before + TRUE, "something else started a run"
    told = Counter(event["payload"]["name"] for event in events(stack))
    assert {name: count for name, count in told.items() if name.startswith(prefix)} == expected
    assert len(events(stack)) == before + TRUE


def test_of_many_deliveries_each_true_one_starts_one_run(stack: Stack) -> None:
    """Prefect hangs in the middle, until a sender was told to come again; what it had taken meanwhile, it knows again."""
    server = stack.processes["prefect"].pid

    def wake() -> None:
        try:
            wait_until(lambda: '"status": 503' in stack.said("receiver"))
        finally:
            os.killpg(server, signal.SIGCONT)

    faults = {DELIVERIES // 3: lambda: os.killpg(server, signal.SIGSTOP), DELIVERIES // 2: wake}
    before = len(runs(stack, "new version"))
    outcome = send(stack, make_flood(SECRET, DELIVERIES, TRUE, 7, HOSTILE), faults)
    for statuses in outcome.by_id.values():
        assert sorted(statuses) == [200] + [409] * (len(statuses) - 1)
    came_through(stack, HOSTILE, before)


def test_killed_receiver_takes_no_replay_and_loses_nothing(stack: Stack) -> None:
    """Killed twice among deliveries; those whose answer was lost come again and are known."""

    def kill() -> None:
        stack.kill("receiver")
        start_receiver(stack)

    before = len(runs(stack, "new version"))
    flood = make_flood(SECRET, DELIVERIES, TRUE, 8, "killed")
    outcome = send(stack, flood, {DELIVERIES // 3: kill, DELIVERIES // 2: kill})
    assert all(statuses.count(200) <= 1 for statuses in outcome.by_id.values())
    came_through(stack, "killed", before)
    kill()
    replayed = send_flood(f"{receiver_of(stack)}/webhook", [one for one in flood if one.kind == "true"])
    assert {status for statuses in replayed.by_id.values() for status in statuses} == {409}
    came_through(stack, "killed", before)


@pytest.fixture
def here(stack: Stack, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process as one of the stack's, with a folder of job files of its own."""
    monkeypatch.setenv("QUANTGATE_JOBS", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.registry)
    monkeypatch.setattr(intake, "PAGE", 3)
    with temporary_settings({PREFECT_API_URL: stack.api, PREFECT_API_AUTH_STRING: AUTH}):
        yield tmp_path


def swept() -> dict[tuple[str, str, str], tuple[str, str]]:
    """What a sweep makes of the registry, without the runs' names."""
    taken = intake.sweep_registry.fn(read_jobs())
    return {
        (one.name, one.version, one.job): (one.outcome, one.why.split(" is in progress")[0].split(":")[0])
        for one in taken
    }


def tag(stack: Stack, name: str, version: str, **tags: str) -> None:
    """Tags of a version, as a run leaves them for ort-cpu."""
    for key, value in tags.items():
        MlflowClient(stack.registry, stack.registry).set_model_version_tag(
            name, version, f"quantgate.ort-cpu.{key}", value
        )


def end(stack: Stack, source: str, state: str) -> None:
    """Give the runs of a source that go on an end."""
    ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    for run in runs(stack, "quantize"):
        if run["parameters"]["job"]["source"] == source and run["state_type"] not in ended:
            stack.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": state}, "force": True})


def test_a_sweep_starts_what_no_run_has_brought_to_an_end(stack: Stack, tiny: Tiny, here: Path) -> None:
    """The table of its rules, on a registry of several pages; then again, with nothing left to start."""
    write_job(here / "cpu.yaml", tiny.job(source="models:/s-plain/1"))
    write_job(here / "rtx.yaml", tiny.job(source="models:/s-nobody/1", target="tensorrt", candidates="default"))
    write_job(here / "out.yaml", tiny.job(source="models:/s-out/1"))
    (here / "broken.yaml").write_text("source: [")
    client = MlflowClient(stack.registry, stack.registry)
    for _ in range(3):
        register(stack, "s-plain")
    client.set_registered_model_alias("s-plain", "prod", "1")
    register(stack, "s-out", **{"quantgate.jobs": "none"})
    register(stack, "s-two", **{"quantgate.jobs": "rtx, cpu"})
    register(stack, "s-wrong", **{"quantgate.jobs": "../../etc/passwd"})
    register(stack, "s-broken", **{"quantgate.jobs": "broken"})
    register(stack, "s-own", {"quantgate.variant_digest": "ab"}, **{"quantgate.jobs": "cpu"})
    for name, tags in {
        "promoted": {"status": "promoted"},
        "no-variant": {"status": "no_variant"},
        "refused": {"status": "refused"},
        "failed": {"status": "error", "error": "infrastructure"},
        "gone": {"status": "running", "flow_run": "00000000-0000-4000-8000-000000000000"},
    }.items():
        register(stack, f"s-{name}", **{"quantgate.jobs": "cpu"})
        tag(stack, f"s-{name}", "1", **tags)
    first = swept()
    assert first == {
        ("s-plain", "3", "cpu"): ("started", "no status"),
        ("s-plain", "1", "cpu"): ("started", "no status"),
        ("s-two", "1", "cpu"): ("started", "no status"),
        ("s-two", "1", "rtx"): ("started", "no status"),
        ("s-failed", "1", "cpu"): ("started", "status error"),
        ("s-gone", "1", "cpu"): ("started", "status running"),
        ("s-wrong", "", ""): first["s-wrong", "", ""],
        ("s-broken", "", ""): first["s-broken", "", ""],
        ("s-own", "1", "cpu"): ("skipped", "quantgate made this version"),
        ("s-promoted", "1", "cpu"): ("skipped", "status promoted"),
        ("s-no-variant", "1", "cpu"): ("skipped", "status no_variant"),
        ("s-refused", "1", "cpu"): ("skipped", "status refused"),
    }
    for name, said in (("s-wrong", "names the job '../../etc/passwd'"), ("s-broken", "broken.yaml")):
        outcome, why = first[name, "", ""]
        assert outcome == "failed" and said in why
    again = swept()
    assert {place for place, (outcome, _) in again.items() if outcome == "started"} == set()
    assert again["s-plain", "3", "cpu"][1].startswith("the run ")


def test_a_failed_run_is_tried_again_and_a_cancelled_one_is_not(stack: Stack, tiny: Tiny, here: Path) -> None:
    """Once each time; not while a run goes on, not after five, and not where only a person can help."""
    write_job(here / "cpu.yaml", tiny.job(source="models:/r/1"))
    register(stack, "r")
    place = ("r", "1", "cpu")
    assert swept()[place] == ("started", "no status")
    (run,) = [one for one in runs(stack, "quantize") if one["parameters"]["job"]["source"] == "models:/r/1"]
    tag(stack, "r", "1", status="running", flow_run=run["id"])
    assert swept()[place] == ("skipped", "status running")
    for attempt in range(2, 6):
        end(stack, "models:/r/1", "CRASHED" if attempt == 2 else "FAILED")
        assert swept()[place] == ("started", "status running"), attempt
        assert swept()[place][0] == "skipped", attempt
    end(stack, "models:/r/1", "FAILED")
    assert swept()[place] == ("skipped", "5 runs failed")
    # Another job is another matter.
    write_job(here / "cpu.yaml", tiny.job(source="models:/r/1", seed=8))
    assert swept()[place] == ("started", "status running")
    end(stack, "models:/r/1", "CANCELLED")
    assert swept()[place][1].endswith("was cancelled")
    job = at_version(read_jobs().found["cpu"], "r", "1")
    tag(stack, "r", "1", status="error", error="input", job=digest_job(job))
    assert swept()[place] == ("skipped", "status error, and the job has not changed")
    write_job(here / "cpu.yaml", tiny.job(source="models:/r/1", seed=9))
    assert swept()[place] == ("started", "status error")


def test_one_version_taken_in_twice_at_once_has_one_run(stack: Stack, tiny: Tiny, here: Path) -> None:
    """Also one that was deleted and registered anew has a run of its own; versions that are not there have none."""
    write_job(here / "cpu.yaml", tiny.job(source="models:/twice/1"))

    def take(_: int) -> list[intake.VersionOutcome]:
        with temporary_settings({PREFECT_API_URL: stack.api, PREFECT_API_AUTH_STRING: AUTH}):
            return intake.take_version.fn("twice", "1", read_jobs())

    for number in (1, 2):
        register(stack, "twice")
        with ThreadPoolExecutor(4) as pool:
            taken = [one for many in pool.map(take, range(4)) for one in many]
        assert len({one.flow_run for one in taken if one.outcome == "started"}) == 1
        made = [one for one in runs(stack, "quantize") if one["parameters"]["job"]["source"] == "models:/twice/1"]
        assert len(made) == number
        MlflowClient(stack.registry, stack.registry).delete_registered_model("twice")
    for name, version in (("twice", "1"), ("../../x", "1"), ("nobody' OR name LIKE '%", "1"), ("r", "99")):
        (one,) = intake.take_version.fn(name, version, read_jobs())
        assert (one.outcome, one.why) == ("skipped", "the registry has no such version")
    register(stack, "unknown")
    (one,) = intake.take_version.fn("unknown", "1", read_jobs())
    assert one.why == f"no job in {here} is of this model"

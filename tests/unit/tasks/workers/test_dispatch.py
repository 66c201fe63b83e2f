"""Handing work to workers, without a server: what crosses the border, who may do it, what is held, when a run gives up."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Tiny
from prefect.states import Completed, Crashed, Failed, Pending, Running, Scheduled
from pydantic import TypeAdapter

from flows.service.worker import check_worker
from flows.target_step import candidate
from tasks.run.context import Run, start_run
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.run.settings import hands_to_workers, worker_wait_seconds
from tasks.storage.store import Store
from tasks.trials.gather import trial_of
from tasks.workers import device_limits as worker_guard
from tasks.workers import dispatch
from tasks.workers import order_tracking as dispatch_wait
from tasks.workers import steps as worker_steps
from tasks.workers.device_limits import device_phase, limit_of, timing_phase
from tasks.workers.orders import (
    MARKER_FILE,
    Order,
    _Answer,
    _Failure,
    _failure_of,
    code_version,
    keep_answer,
    keep_arguments,
    marker_of,
    read_answer,
    read_arguments,
)
from tasks.workers.steps import BASELINE, CHAMPION, CONFIRMATION, PROMOTION, RECOVERY, fulfil
from tasks.workers.target_pool import worker_name
from validators.errors import (
    CandidateRefused,
    InfrastructureError,
    JobError,
    LockTaken,
    ObjectMissing,
    QuantgateError,
    SourceError,
    StorageFull,
    WorkLost,
)
from validators.gates.approval import Approval
from validators.job.read_job import parse_job
from validators.records.measurements import Accuracy
from validators.records.run import AbsentEngine, Champion, Gpu, Inventory, Refusal, SessionSettings, Trial, Variant
from validators.records.verdicts import Verdict

ROOT = Path(__file__).parents[4]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
INVENTORY = Inventory(
    target="ort-cpu",
    cpu="Some CPU",
    isa=("avx2",),
    cores=2,
    memory_bytes=1,
    platform="Linux",
    python="3.11",
    runtimes={"onnxruntime": "1.31.1"},
    providers=("CPUExecutionProvider",),
    load_average=0.5,
)
GPU = Gpu("Some GPU", "GPU-5F1E0A2B-0000-1111-2222-333344445555", "9.0", "580.1", 1)
ON_GPU = replace(INVENTORY, target="tensorrt", gpu=GPU)

# Verdicts that every variant gets.
ALWAYS = frozenset({"drop", "finite", "same_outputs"})


def order_of(state: Path, **changes: str) -> Order:
    """An order that a worker of this process may do."""
    state.mkdir(parents=True, exist_ok=True)
    order = Order("baseline", "baseline", str(state), marker_of(state), code_version(), INVENTORY.device_key, "", "key")
    return replace(order, **changes)


def some_trial(path: Path) -> Trial:
    """A trial with paths, tuples, mappings and a number that is none."""
    variant = Variant(
        "int8-dynamic-pc@ort-cpu", path, "abc", 7, SessionSettings("CPUExecutionProvider", 2), notes=("a",)
    )
    return Trial("int8-dynamic-pc@ort-cpu", variant=variant, cached=True, seconds=math.inf)


def test_records_cross_the_border_as_they_are(tmp_path: Path) -> None:
    """Arguments and answers, by their types: what one process keeps, another one on the same store reads."""
    trial = some_trial(tmp_path / "é.onnx")
    types: tuple[Any, ...] = (tuple[Trial, ...], str, Trial | None)
    records = ((trial, replace(trial, variant=None, refusal=Refusal("invalid", "x"))), "name", None)
    digest = keep_arguments(Store(tmp_path / "store"), records, types)
    assert read_arguments(Store(tmp_path / "store"), digest, types) == list(records)
    assert keep_arguments(Store(tmp_path / "other"), records, types) == digest
    order = order_of(tmp_path)
    keep_answer(Store(tmp_path / "store"), order, trial, Trial)
    assert read_answer(Store(tmp_path / "store"), order, Trial) == trial


def test_an_approval_crosses_the_border(tmp_path: Path) -> None:
    """Promotion is done where the variant was judged: what it takes arrives whole, and is checked again when it is read."""
    verdicts = tuple(Verdict(gate, "pass", 0.0, 0.0, "at_most") for gate in sorted(ALWAYS))
    trial = replace(some_trial(tmp_path / "m.onnx"), outcome="passed", verdicts=verdicts)
    champion = Champion("m-quantized", "3", "champion-ort-cpu", "d", "s", "fp32-fused@ort-cpu", previous="2")
    records = (Approval(trial, "a device", ALWAYS), champion, "run id")
    digest = keep_arguments(Store(tmp_path), records, PROMOTION.takes)
    assert read_arguments(Store(tmp_path), digest, PROMOTION.takes) == list(records)


def all_errors() -> list[type[QuantgateError]]:
    """Every class of error of the product: found by syntax, since to import every module takes long."""
    names, homes, seen = {"QuantgateError"}, set[str](), 0
    files = [path for folder in ("flows", "tasks", "validators") for path in (ROOT / folder).rglob("*.py")]
    classes = [
        (node.name, {ast.unparse(base).rpartition(".")[2] for base in node.bases}, path)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    while seen < len(names):
        seen = len(names)
        for name, bases, path in classes:
            if bases & names:
                names.add(name)
                homes.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for home in homes:
        importlib.import_module(home)
    found: list[type[QuantgateError]] = [QuantgateError]
    for kind in found:
        found += kind.__subclasses__()
    ours = [kind for kind in found if kind.__module__.startswith(("flows.", "tasks.", "validators."))]
    assert {kind.__name__ for kind in ours} == names
    return ours


def some_error(kind: type[QuantgateError], log: Path | None) -> QuantgateError:
    """An error of the class with a value of its own in every field."""
    values: dict[str, Any] = {"kind": "unsupported", "log": log}
    return kind(**{name: values.get(name, name) for name in inspect.signature(kind).parameters})


def test_every_error_crosses_the_border_as_itself(tmp_path: Path) -> None:
    """With its class and fields; a path in the state folder arrives as the reader's path."""
    kinds = all_errors()
    assert len(kinds) > 15 and {StorageFull, LockTaken, ObjectMissing, CandidateRefused, WorkLost} <= set(kinds)
    here, there = tmp_path / "here", tmp_path / "there"
    for number, kind in enumerate(kinds):
        order = order_of(here, answer=f"{number}")
        keep_answer(Store(here / "store"), order, some_error(kind, here / "build.log"), Trial)
    here.rename(there)
    for number, kind in enumerate(kinds):
        with pytest.raises(kind) as caught:
            read_answer(Store(there / "store"), order_of(there, answer=f"{number}"), Trial)
        assert type(caught.value) is kind and caught.value.fields == some_error(kind, there / "build.log").fields
        copy = pickle.loads(pickle.dumps(caught.value))  # made in the line itself
        assert type(copy) is kind and copy.fields == caught.value.fields


def test_an_error_of_an_unknown_class_is_its_nearest_base(tmp_path: Path) -> None:
    """A worker of another version may raise a class that the run does not have."""

    class Fuller(StorageFull):
        def __init__(self, *, found: str, expected: str, fix: str, free_mb: float) -> None:
            super().__init__(found=found, expected=expected, fix=fix)
            self.free_mb = free_mb

    store, order = Store(tmp_path / "store"), order_of(tmp_path)
    text = json.dumps(asdict(_failure_of(store, Fuller(found="a", expected="b", fix="c", free_mb=1.5))))
    failure = TypeAdapter(_Failure).validate_json(text.replace("Fuller", "NewerThanThis"))
    store.keep("answer", (order.answer,), _Answer, _Answer(failure=failure))
    with pytest.raises(StorageFull) as caught:
        read_answer(store, order, Trial)
    assert type(caught.value) is StorageFull and caught.value.fields == {"found": "a", "expected": "b", "fix": "c"}


FULL = StorageFull(found="no space left", expected="room", fix="free space")


def loaded(run: Run, inventory: Inventory) -> LoadedRun:
    """The run on a device; what is asked of others reads neither its source nor its samples here."""
    nothing: Any = None
    return with_inputs(run, nothing, nothing, inventory)


@pytest.mark.parametrize("in_workers", [False, True])
def test_full_disk_ends_the_run_wherever_it_is_met(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_workers: bool
) -> None:
    """In a worker as in one process: no candidate is refused for it."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    job = parse_job(tiny.job(), base=tmp_path)
    run = start_run(job)

    def fill(*_: Any) -> Any:
        raise FULL

    monkeypatch.setattr(worker_steps, "take_target_inventory", lambda _: INVENTORY)
    monkeypatch.setattr(worker_steps, "resolve_source", fill)

    def hand_over(job: Any, orders: list[Order]) -> list[Order]:
        for order in orders:
            fulfil(job, order)
        return orders

    monkeypatch.setattr(dispatch, "hand_over", hand_over)
    monkeypatch.setattr(dispatch, "wait_for", lambda _run, handed, _: dict.fromkeys((o.answer for o in handed), None))
    baseline = Accuracy("top1", 1.0, 1, tmp_path, tmp_path)
    with pytest.raises(StorageFull) as caught:
        dispatch.try_candidates(loaded(run, INVENTORY), baseline) if in_workers else trial_of("a candidate", FULL)
    assert caught.value.fields == FULL.fields


@pytest.mark.parametrize(
    ("candidates", "absent", "asked"),
    [
        (["fp32-fused@ort-cpu", "bf16@openvino"], (), 2),
        ("default", (AbsentEngine("openvino", "openvino is not installed", "install it"),), 8),
    ],
)
def test_workers_of_a_class_try_the_candidates_of_its_engines(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    candidates: Any,
    absent: tuple[AbsentEngine, ...],
    asked: int,
) -> None:
    """All go to the workers of the class; candidates of an engine that is not there go nowhere."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    run = start_run(parse_job(tiny.job(target="cpu", candidates=candidates), base=tmp_path))

    def gather(_run: Any, _step: Any, orders: list[Order]) -> list[Trial]:
        return [Trial(order.label) for order in orders]

    monkeypatch.setattr(dispatch, "_gathered", gather)
    baseline = Accuracy("top1", 1.0, 1, tmp_path, tmp_path)
    trials = dispatch.try_candidates(loaded(run, replace(INVENTORY, target="cpu", absent=absent)), baseline)
    assert len(trials) == asked


def test_full_disk_is_known_without_room_for_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker cannot even store its answer: the state of its flow run says why."""

    def fill(*_: Any) -> None:
        raise FULL

    monkeypatch.setattr("flows.target_step.fulfil", fill)
    state = candidate.fn(Any, order_of(tmp_path))  # type: ignore[arg-type]  # a job that nothing reads
    handed = dispatch_wait._Handed(order_of(tmp_path), "ort-cpu", uuid.uuid4())
    run: Any = SimpleNamespace(name="a run", state=state)
    failure = dispatch_wait._failed(handed, run)
    assert type(failure) is StorageFull and "no space left" in failure.found
    with pytest.raises(StorageFull):
        dispatch._trial("a candidate", failure)


def test_an_answer_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="no answer to baseline in"):
        read_answer(Store(tmp_path), order_of(tmp_path), Trial)


def test_a_state_folder_has_one_marker_whoever_comes_first(tmp_path: Path) -> None:
    """Eight at once read the same, whole; another folder has another, and a copy of the folder the same."""
    start, seen = threading.Barrier(8), []

    def race() -> None:
        start.wait(30)
        seen.append(marker_of(tmp_path))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1 and len(seen[0]) == 32
    assert [path.name for path in tmp_path.iterdir()] == [MARKER_FILE]
    (tmp_path / "other").mkdir()
    assert marker_of(tmp_path / "other") != seen[0]


def test_worker_takes_only_orders_of_its_state_code_and_device(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is named with what was found and expected; nothing is computed before."""
    state = tmp_path / "state"
    order, job = order_of(state), parse_job(tiny.job(), base=tmp_path)
    monkeypatch.setenv("QUANTGATE_STATE", str(state))
    monkeypatch.setattr(worker_steps, "take_target_inventory", lambda _: INVENTORY)
    called: list[str] = []
    monkeypatch.setattr(worker_steps, "resolve_source", lambda _: called.append("source"))
    with pytest.raises(InfrastructureError, match="another version of quantgate"):
        fulfil(job, replace(order, code="0" * 64))
    with pytest.raises(InfrastructureError, match=r"found: a worker with another state folder"):
        fulfil(job, replace(order, marker="0" * 32))
    with pytest.raises(InfrastructureError, match=r"found: a worker on Some CPU(.|\n)*expected: .*Other CPU"):
        fulfil(job, replace(order, device=replace(INVENTORY, cpu="Other CPU").device_key))
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "elsewhere"))
    with pytest.raises(InfrastructureError) as caught:
        fulfil(job, order)
    assert str(tmp_path / "elsewhere") in caught.value.found and str(state) in caught.value.expected
    assert called == [] and not (tmp_path / "elsewhere").exists()


def test_what_a_step_raises_is_its_answer(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run gets the error of the source with its own exit code, not a flow that failed."""
    order, job = order_of(tmp_path), parse_job(tiny.job(source="nowhere.onnx"), base=tmp_path)
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    monkeypatch.setattr(worker_steps, "take_target_inventory", lambda _: INVENTORY)

    def refuse(_: Run) -> None:
        raise SourceError(found="no such file", expected="a model", fix="correct it")

    monkeypatch.setattr(worker_steps, "resolve_source", refuse)
    fulfil(job, order)
    with pytest.raises(SourceError, match="no such file"):
        read_answer(Store(tmp_path / "store"), order, Accuracy)


@pytest.mark.parametrize(
    ("inventory", "limit", "device", "timing"),
    [
        (INVENTORY, f"cpu-{BOOT_ID}", False, True),
        (replace(INVENTORY, target="openvino"), f"cpu-{BOOT_ID}", False, True),
        # A machine with a GPU that serves the processor's target.
        (replace(INVENTORY, gpu=GPU), f"cpu-{BOOT_ID}", False, True),
        (ON_GPU, "gpu-5F1E0A2B-0000-1111-2222-333344445555", True, False),
        (replace(ON_GPU, target="ort-cuda"), "gpu-5F1E0A2B-0000-1111-2222-333344445555", True, False),
    ],
)
def test_each_target_holds_its_device_once(
    inventory: Inventory, limit: str, device: bool, timing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU for all that is done on it, a host while something is timed; both at once would wait for itself for ever."""
    held: list[tuple[Any, ...]] = []

    @contextmanager
    def concurrency(name: str, *, occupy: int, lease_duration: int, strict: bool) -> Iterator[None]:
        held.append((name, occupy, lease_duration, strict))
        yield

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    expected = (limit, 1, 60, True)
    with device_phase(inventory):
        assert held == [expected] * device
        with timing_phase(inventory):
            assert held == [expected]
    assert limit_of(inventory) == limit
    assert device != timing


def test_containers_of_one_kernel_hold_the_same_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each has a host name of its own; without a boot id that is all there is."""
    limits = set()
    for name in ("3f2a", "9c1d"):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        limits.add(limit_of(INVENTORY))
    assert limits == {f"cpu-{BOOT_ID}"}
    monkeypatch.setattr(worker_guard, "BOOT_ID", tmp_path / "absent")
    assert limit_of(INVENTORY) == "cpu-9c1d"


def test_a_gpu_target_without_a_gpu_holds_nothing_and_says_so() -> None:
    with (
        pytest.raises(InfrastructureError, match="no GPU for the target tensorrt"),
        device_phase(replace(ON_GPU, gpu=None)),
    ):
        raise AssertionError


def test_a_worker_is_named_by_host_target_gpu_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In characters that a Prefect variable may have; the variable is the name without the process."""
    monkeypatch.setattr("socket.gethostname", lambda: "Node_7.example.Org")
    name = worker_name(ON_GPU)
    assert name == f"quantgate-worker-node-7-example-org-tensorrt-5f1e0a2b-{os.getpid()}"
    assert dispatch_wait.variable_of(name) == "quantgate-worker-node-7-example-org-tensorrt-5f1e0a2b"


def test_the_switch_is_read_at_call_time_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUANTGATE_DISPATCH", "PREFECT_API_URL", "QUANTGATE_WORKER_WAIT_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    assert hands_to_workers() is False and worker_wait_seconds() == 120
    monkeypatch.setenv("QUANTGATE_DISPATCH", "pools")
    with pytest.raises(JobError, match="without PREFECT_API_URL"):
        hands_to_workers()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert hands_to_workers() is True
    monkeypatch.setenv("QUANTGATE_DISPATCH", "pool")
    with pytest.raises(JobError, match="QUANTGATE_DISPATCH=pool"):
        hands_to_workers()
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv("QUANTGATE_WORKER_WAIT_SECONDS", wrong)
        with pytest.raises(JobError, match="seconds above 0"):
            worker_wait_seconds()


def test_a_worker_refuses_a_target_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(JobError, match="target 'ort-gpu'"):
        check_worker("ort-gpu")
    with pytest.raises(InfrastructureError, match="PREFECT_API_URL is not set"):
        check_worker("ort-cpu")
    rows = [("Target", "Here", "Why"), ("tensorrt", "no", "there is no GPU")]
    monkeypatch.setattr("flows.service.worker.target_rows", lambda: rows)
    with pytest.raises(InfrastructureError, match="target tensorrt cannot run here: there is no GPU"):
        check_worker("tensorrt")


def test_a_step_with_nothing_to_do_asks_no_worker(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No champion, one that is the best itself, nothing that passed, nothing to recover."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    run = start_run(parse_job(tiny.job(), base=tmp_path))
    best = some_trial(tmp_path)
    assert best.variant is not None
    champion = SimpleNamespace(identity=best.variant.identity)
    assert BASELINE.needed(run)
    assert not CHAMPION.needed(run, None, best, None) and not CHAMPION.needed(run, None, best, champion)
    assert CHAMPION.needed(run, None, best, SimpleNamespace(identity="other", digest=best.variant.digest))
    assert not CONFIRMATION.needed(run, None, (best,)) and not RECOVERY.needed(run, None, (best,))
    assert CONFIRMATION.needed(run, None, (replace(best, outcome="passed", latencies=(_latency(),)),))
    monkeypatch.setattr(dispatch, "hands_to_workers", lambda: True)
    monkeypatch.setattr(dispatch, "hand_over", lambda *_: pytest.fail("a worker was asked"))
    idle = worker_steps.Step("idle", lambda run, one: one + 1, (int,), int, needed=lambda run, one: False)
    assert dispatch.at_target(idle, loaded(run, INVENTORY), 1) == 2


def _latency() -> Any:
    return SimpleNamespace(speedup=SimpleNamespace(value=2.0), p50_ms=1.0, disturbance=None)


def test_each_hand_over_has_an_idempotency_key(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's client repeats requests; the same order retried is another flow run."""
    keys: list[Any] = []

    def run_deployment(_: str, **options: Any) -> Any:
        keys.append(options.get("idempotency_key"))
        return SimpleNamespace(id=uuid.uuid4())

    monkeypatch.setattr(dispatch_wait, "run_deployment", run_deployment)
    job, order = parse_job(tiny.job(), base=tmp_path), order_of(tmp_path)
    for _ in range(2):
        dispatch_wait.hand_over(job, [order])
    assert None not in keys and len(set(keys)) == 2


class Server:
    """A Prefect client of one flow run and one pool, and what was asked of it."""

    def __init__(self, state: Any, worker: str | None) -> None:
        self.labels = {"prefect.worker.name": worker} if worker else {}
        self.state = state
        self.set: list[Any] = []

    def read_flow_run(self, _: uuid.UUID) -> Any:
        return SimpleNamespace(state=self.state, labels=self.labels, name="a run")

    def set_flow_run_state(self, _: uuid.UUID, state: Any, force: bool) -> None:
        assert force
        self.set.append(state)


@pytest.mark.parametrize(
    ("state", "worker", "online", "elapsed", "ends", "reason", "cancelled"),
    [
        (Completed(), "a", {"a"}, 0, [0], None, None),
        (Crashed(message="out of memory"), "a", {"a"}, 0, [0], "out of memory", None),
        (Failed(message="a bug"), "a", {"a"}, 0, [0], "a bug", None),
        # Nobody works for the target: after the patience of 10 s.
        (Scheduled(), None, set(), 0, [10], "no worker of ort-cpu for 10 s", "CANCELLED"),
        # It waits behind others for a worker that lives, until the budget of 100 s is spent.
        (Scheduled(), None, {"a"}, 0, [], None, None),
        (Scheduled(), None, {"a"}, 101, [0], "budget of 100 s was spent", "CANCELLED"),
        # Its own worker died, though another one lives.
        (Running(), "a", {"b"}, 0, [10], "the worker a took the order", "CANCELLING"),
        (Pending(), "a", {"b"}, 0, [10], "the worker a took the order", "CANCELLED"),
        # It runs, and may run on though the budget is spent meanwhile; not for longer than that itself.
        (Running(), "a", {"a"}, 101, [101], "the step has run for 100 s on a", "CANCELLING"),
    ],
)
def test_a_run_waits_no_longer_than_there_is_hope(
    state: Any,
    worker: str | None,
    online: set[str],
    elapsed: float,
    ends: list[float],
    reason: str | None,
    cancelled: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked at every second of a clock of its own: it ends at the second said, for the reason said."""
    now = 1000.0
    monkeypatch.setattr(dispatch_wait, "time", SimpleNamespace(monotonic=lambda: now))
    run: Any = SimpleNamespace(
        job=SimpleNamespace(budgets=SimpleNamespace(seconds=100.0)), clock=SimpleNamespace(spent_seconds=elapsed)
    )
    server: Any = Server(state, worker)
    handed = dispatch_wait._Handed(order_of(tmp_path), "ort-cpu", uuid.uuid4())
    ended = []
    for second in range(99 if not ends else 102):
        now = 1000.0 + second
        if not handed.ended:
            dispatch_wait._look(server, run, handed, online, 10.0)
            ended += [second] * handed.ended
    assert ended == ends
    assert (
        (handed.failure is None) if reason is None else (handed.failure is not None and reason in handed.failure.found)
    )
    assert [one.type.value for one in server.set] == ([cancelled] if cancelled else [])
    # Another worker may bring it to its end.
    assert isinstance(handed.failure, WorkLost) == (reason in ("out of memory", "the worker a took the order"))


LOST = WorkLost(found="died", expected="life", fix="try again")
LATE = InfrastructureError(found="late", expected="an end", fix="wait")


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([{"a": None, "b": None}], {"a": "done", "b": "done"}),
        ([{"a": LOST, "b": None}, {"a": None}], {"a": "done", "b": "done"}),
        ([{"a": LOST, "b": LOST}, {"a": None, "b": LATE}], {"a": "done", "b": "died; retried: late"}),
        ([{"a": LOST, "b": LATE}, {"a": LOST}], {"a": "died; retried: died", "b": "late"}),
    ],
)
def test_work_that_was_lost_is_handed_over_once_more(
    ends: list[dict[str, InfrastructureError | None]],
    said: dict[str, str],
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That alone, and not a third time; what failed otherwise would fail again."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    run = start_run(parse_job(tiny.job(), base=tmp_path))
    orders = [order_of(tmp_path, answer=answer) for answer in ("a", "b")]
    left = list(ends)
    monkeypatch.setattr(dispatch, "hand_over", lambda _, asked: [order.answer for order in asked])

    def wait_for(_run: Run, handed: list[str], _seconds: float) -> dict[str, InfrastructureError | None]:
        assert handed == list(left[0])
        return left.pop(0)

    monkeypatch.setattr(dispatch, "wait_for", wait_for)
    monkeypatch.setattr(dispatch, "read_answer", lambda *_: "done")
    answers = dispatch._gathered(run, BASELINE, orders)
    assert not left
    told = {order.answer: getattr(answer, "found", answer) for order, answer in zip(orders, answers, strict=True)}
    assert told == said


def test_patience_starts_anew_when_a_worker_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine seconds without one, one second with it, nine without: not ten in a row."""
    now = 0.0
    monkeypatch.setattr(dispatch_wait, "time", SimpleNamespace(monotonic=lambda: now))
    run: Any = SimpleNamespace(
        job=SimpleNamespace(budgets=SimpleNamespace(seconds=100.0)), clock=SimpleNamespace(spent_seconds=0)
    )
    server: Any = Server(Scheduled(), None)
    handed = dispatch_wait._Handed(order_of(tmp_path), "ort-cpu", uuid.uuid4())
    for second in range(20):
        now = 50.0 + second
        dispatch_wait._look(server, run, handed, {"a"} if second == 10 else set(), 10.0)
    assert not handed.ended


def test_a_server_that_is_slow_to_answer_costs_no_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of a minute each: in the meantime it recorded no heartbeat either."""
    now = 0.0
    monkeypatch.setattr(dispatch_wait, "time", SimpleNamespace(monotonic=lambda: now))
    run: Any = SimpleNamespace(
        job=SimpleNamespace(budgets=SimpleNamespace(seconds=1000.0)), clock=SimpleNamespace(spent_seconds=0)
    )
    handed = dispatch_wait._Handed(order_of(tmp_path), "ort-cpu", uuid.uuid4())
    server: Any = Server(Scheduled(), None)
    for look in range(10):
        now = 60.0 * look
        dispatch_wait._look(server, run, handed, set(), 10.0)
    assert not handed.ended
    dispatch_wait._look(server, run, handed, set(), 10.0)
    assert handed.ended


def test_orders_are_small_and_plain(tmp_path: Path) -> None:
    """What Prefect keeps of them is text of a few hundred characters."""
    text = json.dumps(asdict(order_of(tmp_path)))
    assert len(text) < 1000
    assert all(isinstance(value, str) for value in json.loads(text).values())


def test_guard_and_pool_speak_of_the_same_limit() -> None:
    """What the worker makes at its start is what its steps hold."""
    assert worker_guard.limit_of(INVENTORY).startswith("cpu-")

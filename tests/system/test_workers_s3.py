"""A run and a worker of two machines, played by two state folders: what they share is a store on a real S3 server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import Answer, run_jobs, write_job
from s3_server import client, s3_stack, some_place
from stack import BUCKET, Stack, wait_until

from validators.untrusted.s3_uris import S3Uri

STATIC, DYNAMIC = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prefect and S3."""
    with s3_stack(tmp_path_factory.mktemp("stack")) as stack:
        try:
            stack.start_prefect()
            yield stack
        finally:
            for name in ("worker", "stranger", "prefect"):
                if name in stack.processes:
                    stack.stop(name)


@pytest.fixture(scope="module")
def data(stack: Stack, tiny: Tiny) -> dict[str, str]:
    """The samples, on S3 as well."""
    s3, found = client(stack.endpoint), {}
    for role in ("calibration", "evaluation"):
        uri = S3Uri(BUCKET, f"data/{role}.npz")
        s3.write(uri, getattr(tiny, role).read_bytes())
        found[role] = str(uri)
    return found


@pytest.fixture(scope="module")
def job(stack: Stack, tiny: Tiny, data: dict[str, str]) -> Path:
    """A job of two candidates, whose winner hangs on no time, with data that neither machine has."""
    told = tiny.job(candidates=[STATIC, DYNAMIC], objective="size", data=data)
    return write_job(stack.root / "job.yaml", told)


def started(stack: Stack, name: str, **extra: str) -> None:
    """A worker of ort-cpu, when it asks for work."""
    process = stack.start_python(name, "flows.cli.app", "worker", "--target", "ort-cpu", **extra)
    wait_until(lambda: "started!" in stack.said(name), process)


def run(stack: Stack, name: str, job: Path, *, plain: bool = False, **extra: str) -> Answer:
    """A run of this stack with a state folder of its own name; a `plain` one hands nothing to workers."""
    told = {key: value for key, value in stack.settings().items() if key.startswith(("PREFECT_", "QUANTGATE_W"))}
    call: dict[str, object] = {"name": name, "job": str(job)}
    return run_jobs(stack.root / name, stack.root / f"{name}-runs", [call], plain=plain, **told | extra)[name]


def by_name(answer: Answer) -> dict[str, Any]:
    """The candidates of a result."""
    assert answer.result is not None, answer.said
    return {candidate["name"]: candidate for candidate in answer.result["candidates"]}


def records(state: Path, kind: str) -> dict[str, str]:
    """The records of a kind that a machine has, by digest."""
    return {path.parent.name: path.read_text() for path in state.glob(f"store*/{kind}/[0-9a-f]*/record.json")}


def test_two_machines_come_to_what_one_comes_to(stack: Stack, job: Path) -> None:
    """The same artifacts under the same keys and the same figures; no path of one is in a record of the other."""
    shared = {"QUANTGATE_STORE": str(some_place())}
    there = stack.root / "there"
    started(stack, "worker", QUANTGATE_STATE=str(there), **shared)
    ours = run(stack, "here", job, QUANTGATE_DISPATCH="pools", **shared)
    alone = run(stack, "alone", job, plain=True)
    assert ours.result is not None and alone.result is not None, ours.said + alone.said
    assert (ours.code, ours.result["chosen"]) == (alone.code, alone.result["chosen"]) == (0, DYNAMIC)
    for name in (STATIC, DYNAMIC):
        for figure in ("size_bytes", "metric_value", "coverage_macs", "changes"):
            assert by_name(ours)[name][figure] == by_name(alone)[name][figure], (name, figure)
    here = stack.root / "here"
    for kind in ("variant", "accuracy", "coverage", "statistics"):
        # Statistics stay with the worker: no record that comes back names them.
        assert records(there, kind).keys() == records(stack.root / "alone", kind).keys(), kind
        assert records(here, kind).items() <= records(there, kind).items()
    assert records(here, "variant") and not records(here, "statistics")
    told = [text for state in (here, there) for kind in ("variant", "answer") for text in records(state, kind).values()]
    assert told and not any(str(stack.root) in text for text in told)
    assert not (there / "store").exists()


def test_nothing_is_made_again_by_a_third_machine(stack: Stack, job: Path) -> None:
    """One process with an empty state folder, on the store that the two filled, makes nothing: it is all there."""
    (place,) = {path.name for path in (stack.root / "there").glob("store-*")}
    uri = next(line for line in _orders(stack) if line.startswith("s3://"))
    before = {kind: records(stack.root / "there", kind) for kind in ("variant", "accuracy", "coverage", "statistics")}
    third = run(stack, "third", job, plain=True, QUANTGATE_STORE=uri.removesuffix("/store"))
    assert by_name(third).keys() == {STATIC, DYNAMIC}
    assert (stack.root / "third" / place).is_dir()
    for kind in ("variant", "accuracy", "coverage"):
        assert records(stack.root / "third", kind) == before[kind], kind


def _orders(stack: Stack) -> list[str]:
    found = [run["parameters"] for run in stack.ask("/flow_runs/filter") if "order" in run["parameters"]]
    assert all(len(json.dumps(told)) < 10_000 for told in found)
    return [told["order"]["place"] for told in found]


def test_a_worker_with_another_store_says_so(stack: Stack, job: Path) -> None:
    """Both are named, and nothing is made."""
    if "worker" in stack.processes:
        assert stack.stop("worker") == 0
    mine, other = str(some_place()), str(some_place())
    started(stack, "stranger", QUANTGATE_STATE=str(stack.root / "elsewhere"), QUANTGATE_STORE=other)
    answer = run(stack, "strange", job, QUANTGATE_DISPATCH="pools", QUANTGATE_STORE=mine)
    assert answer.code == 1
    assert f"{other}/store" in answer.said and f"{mine}/store" in answer.said
    assert records(stack.root / "elsewhere", "variant") == {}

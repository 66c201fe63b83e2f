"""Latency of models whose time depends on their input: both sides answer the same mix of requests, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tasks.measure.latency import worker as latency_worker
from tasks.measure.latency.compare import compare_latency, mix_size
from tasks.measure.latency.process import Block, Contestant, Worker, save_requests
from validators.job.job_measurement import Measurement
from validators.records.run import SessionSettings

CPU = SessionSettings("CPUExecutionProvider", 1)
QUICK = Measurement(
    launches=1,
    blocks=3,
    block_seconds=0.01,
    block_count=4,
    warmup_seconds=0,
    warmup_limit_seconds=0,
    max_other_load=None,
)
# The hook of both measuring processes: which request was answered, in a file for each process.
NOTES = """
import os
from pathlib import Path
def note(outputs):
    with Path(__file__).with_name(f"{os.getpid()}.txt").open("a") as file:
        file.write(f"{int(outputs[0][0])}\\n")
"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that counts to its input, one by one."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["go"], ["goes"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.INT64, [1]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["x"], ["times"]),
            helper.make_node("Loop", ["times", "", "zero"], ["n"], body=body),
        ],
        "loop",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [
            helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        ],
    )
    path = tmp_path_factory.mktemp("loop") / "loop.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def counts(*values: int) -> list[dict[str, Any]]:
    return [{"x": np.array([value])} for value in values]


def test_both_sides_answer_the_same_sequence(loop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the two processes note it: whole rounds of the requests, in their order, and nothing else."""
    (tmp_path / "noting.py").write_text(NOTES)
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"noting:note@{tmp_path}")
    values = [3, 200, 1, 50, 7]
    sides = Contestant(loop, CPU), Contestant(loop, CPU)
    measurement = QUICK.model_copy(update={"postprocess": "noting:note", "block_seconds": 0.05})
    compare_latency(
        *sides, counts(*values), measurement, confidence=0.95, samples_path=tmp_path / "samples.npz", code=tmp_path
    )
    seen = [list(map(int, file.read_text().split())) for file in tmp_path.glob("*.txt")]
    assert len(seen) == 2
    for one in seen:
        size = 5 if one[4] == 7 else 4
        assert len(one) >= 3 * size and one == values[:size] * (len(one) // size)
    assert seen[0][:4] == seen[1][:4] and (seen[0][4] == 7) == (seen[1][4] == 7)


def test_p50_is_that_of_the_mix(loop: Path, tmp_path: Path) -> None:
    """Between a request of no step and one of 20,000, of which a third of the requests are made; rounds are whole."""
    values = [0, 1_000, 20_000]
    sides = Contestant(loop, CPU), Contestant(loop, CPU)
    latency = compare_latency(*sides, counts(*values), QUICK, confidence=0.95, samples_path=tmp_path / "samples.npz")
    assert latency.requests == 3
    with np.load(tmp_path / "samples.npz") as archive:
        assert archive["requests"] == 3
        for side in ("baseline", "variant"):
            rounds = archive[side].reshape(-1, 3)
            least, middle, most = np.median(rounds, axis=0)
            assert least < middle < most
            blocks = archive[f"{side}_block"].reshape(-1, 3)
            assert (blocks == blocks[:, :1]).all()
            assert least < np.median(archive[side]) < most
    assert latency.baseline_p50_ms < most and latency.p50_ms > least


def test_a_block_has_whole_rounds_in_order() -> None:
    seen: list[int] = []
    requests = [lambda index=index: seen.append(index) for index in range(3)]
    assert len(latency_worker._block(requests, 0.0, 4)) == 6
    assert seen == [0, 1, 2, 0, 1, 2]


def test_clients_share_whole_rounds() -> None:
    """Two clients and a round of three: each request as often as the others."""
    seen: list[int] = []
    cycle = [lambda index=index: seen.append(index) for index in range(3)]
    assert len(latency_worker._completions([cycle, cycle], 0.0, 3)) == 3
    assert sorted(seen) == [0, 1, 2]
    latency_worker._completions([cycle] * 4, 0.01, 3)
    assert len(set(np.bincount(seen).tolist())) == 1


class Sized:
    """A worker whose requests take so many milliseconds each."""

    def __init__(self, ms: float, bound: int = 64) -> None:
        self.ms, self.bound_requests = ms, bound
        self.kinds: set[str] = set()

    def block(self, seconds: float, count: int, kind: str, mix: int) -> Block:
        self.kinds.add(kind)
        return Block("latency", np.full(mix, self.ms))


@pytest.mark.parametrize(("ms", "size"), [(0.1, 64), (1.9, 40), (4.0, 20), (50.0, 10)])
def test_a_round_takes_no_longer_than_a_block(ms: float, size: int) -> None:
    """Of the slower side, at 120 ms a block; ten requests at least."""
    assert mix_size((Sized(0.1), Sized(ms)), Measurement(), 64) == size  # type: ignore[arg-type]  # stand-ins
    assert mix_size((Sized(ms), Sized(ms)), Measurement(), 7) == 7  # type: ignore[arg-type]  # stand-ins


def test_rounds_of_few_bound_requests_are_timed_end_to_end() -> None:
    """An engine has one request bound: how long all of them take is seen with the copies alone."""
    sides = Sized(0.1, bound=1), Sized(0.1, bound=1)
    assert mix_size(sides, Measurement(), 64) == 64  # type: ignore[arg-type]  # stand-ins
    assert sides[0].kinds == {"end_to_end"}


def test_memory_is_that_of_one_request(loop: Path, tmp_path: Path) -> None:
    """The other requests, 32 MiB each, are the measurement's own."""
    peaks = []
    for count in (1, 4):
        requests = [{"x": np.array([1]), "unused": np.ones(2**22)} for _ in range(count)]
        inputs = save_requests(tmp_path / f"{count}.npz", requests)
        with Worker(Contestant(with_input(loop, tmp_path), CPU), inputs) as worker:
            worker.block(0.0, 1)
            peaks.append((worker.figures["load_peak_memory_mb"], worker.figures["peak_memory_mb"]))
    assert peaks[1] == pytest.approx(peaks[0], abs=8)


def with_input(model: Path, folder: Path) -> Path:
    """The model with a second input of 32 MiB that it returns the size of."""
    found = onnx.load(model)
    found.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.DOUBLE, [2**22]))
    found.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, []))
    found.graph.node.append(helper.make_node("Size", ["unused"], ["size"]))
    onnx.save(found, folder / "wide.onnx")
    return folder / "wide.onnx"

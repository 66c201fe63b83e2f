"""Throughput, end-to-end time, memory and loading: arithmetic by hand, and what real processes must show at any speed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from onnx import TensorProto, helper, numpy_helper

from tasks.measure.latency import disturbance
from tasks.measure.latency import worker as latency_worker
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.disturbance import BlockConditions, counters_of
from tasks.measure.latency.nvml import GpuState
from tasks.measure.latency.pairs import Launch, Pair, WarmUp
from tasks.measure.latency.process import Block, Contestant, Worker, save_requests
from tasks.measure.latency.rapl import PackageEnergy
from tasks.measure.latency.recount import recount
from tasks.measure.latency.summary import Gathered, LatencySide, save, summarise
from validators.errors import CandidateRefused
from validators.job.job_measurement import Measurement
from validators.records.latencies import Latency
from validators.records.measurements import Estimate
from validators.records.run import SessionSettings

CPU = SessionSettings("CPUExecutionProvider", 1)
QUICK = Measurement(
    launches=2,
    blocks=2,
    block_seconds=0.02,
    block_count=5,
    warmup_seconds=0,
    warmup_limit_seconds=0,
    max_other_load=None,
)
STILL = BlockConditions(0.0, 0.0, (1.0, 1.0), growths={"major_faults": 0, "involuntary_switches": 0})
USER = """
calls = []
def double(batch):
    assert list(batch) == ["raw"]
    return {"x": batch["raw"][:, :64] * 2}
def first(outputs):
    assert len(outputs) == 1 and outputs[0].shape == (3, 4)
    return outputs[0].argmax(axis=1).tolist()
"""


def gathered(*ratios: float, conditions: BlockConditions = STILL, **kinds: list[Pair]) -> Gathered:
    """A launch for each ratio, of one pair with 2 ms on the side of the variant, and pairs of other kinds."""
    pairs = [Pair(latency_block(2 * ratio), latency_block(2.0), (conditions, conditions)) for ratio in ratios]
    launches: dict[Any, list[Launch]] = {"latency": [Launch([pair], 0, "") for pair in pairs]}
    launches |= {kind: [Launch([pair], 0, "") for pair in given] for kind, given in kinds.items()}
    figures = {"load_ms": [10.0, 20.0], "load_peak_memory_mb": [100.0, 110.0], "peak_memory_mb": [50.0, 60.0]}
    others = {"load_ms": [20.0, 40.0], "load_peak_memory_mb": [70.0, 75.0], "peak_memory_mb": [30.0, 36.0]}
    side = LatencySide(figures, [WarmUp(0.1, True), WarmUp(0.4, True)], [-20, -20])
    other = LatencySide(others, [WarmUp(0.2, True), WarmUp(0.1, False)], [-20, 0])
    return Gathered((side, other), launches)


def spent(joules: float) -> BlockConditions:
    """Conditions in which the device spent so much energy."""
    return replace(STILL, growths=STILL.growths | {"energy_j": joules})


def latency_block(median_ms: float) -> Block:
    return Block("latency", np.full(10, median_ms))


def record(found: Gathered) -> Latency:
    return summarise(found, batch_size=8, dims={"s": 3}, threads=2, confidence=0.95, samples_path=Path("x.npz"))


def done_at(*milliseconds: float) -> Block:
    """A block of two clients whose requests were done at these moments."""
    return Block("throughput", np.array(milliseconds), clients=2)


# The arithmetic


def test_throughput_by_hand() -> None:
    """Variant: 4 requests in 8 ms and 2 in 4 ms: 6 in 12 ms, 500 a second. Baseline: 2 in 8 and 1 in 4: 250. Ratio 2 twice."""
    pairs = [
        Pair(done_at(4, 8), done_at(2, 4, 6, 8), (STILL, STILL)),
        Pair(done_at(4), done_at(2, 4), (STILL, STILL)),
    ]
    found = record(gathered(1.0, 1.0, throughput=pairs)).throughput
    assert found is not None and found.clients == 2
    assert (found.requests_per_s, found.samples_per_s) == pytest.approx((500, 4000))
    assert (found.baseline_requests_per_s, found.baseline_samples_per_s) == pytest.approx((250, 2000))
    assert found.ratio == Estimate(2.0, 2.0, 2.0)


def test_loading_memory_and_warm_up_by_hand() -> None:
    """Load ratios 2 and 2: exact; medians of load times, largest peaks, longest warm-ups, and one that was not stable."""
    found = record(gathered(1.2, 1.3))
    assert (found.load_ms, found.baseline_load_ms, found.ratios["load_ms"]) == (30.0, 15.0, Estimate(2.0, 2.0, 2.0))
    assert (found.peak_memory_mb, found.baseline_peak_memory_mb) == (36.0, 60.0)
    assert found.ratios["peak_memory_mb"] == Estimate(0.6, 0.6, 0.6), "30 of 50 MB and 36 of 60 MB"
    assert (found.load_peak_memory_mb, found.baseline_load_peak_memory_mb) == (75.0, 110.0)
    assert found.conditions is not None
    assert found.conditions.warmup_seconds == (0.4, 0.2) and not found.conditions.warm
    assert (found.dims, found.threads, found.launches, found.pairs) == ({"s": 3}, 2, 2, 2)
    assert found.throughput is None and found.end_to_end is None and found.energy_mj is None


def test_energy_by_hand() -> None:
    """0.5 J over blocks of 10 requests: 50 mJ a request."""
    found = record(gathered(1.0, 1.0, conditions=spent(0.5)))
    assert (found.energy_mj, found.baseline_energy_mj) == pytest.approx((50.0, 50.0))


def test_energy_is_that_of_a_measured_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU is measured its own energy counts, and none if it reports none; without one that of the packages."""
    monkeypatch.setattr(disturbance, "read_packages", lambda: PackageEnergy((5,), (999,)))
    state = GpuState((), 10.0, 2)
    told = [
        counters_of(os.getpid(), gpu).get("energy_j", "none") for gpu in (state, replace(state, energy_j=None), None)
    ]
    assert told == [10.0, "none", PackageEnergy((5,), (999,))]


def test_energy_ratio_is_taken_launch_by_launch() -> None:
    """0.2 J and 0.4 J of the baseline, 0.1 J of the variant: ratios 1/2 and 1/4, so that the geometric mean is 0.354."""

    def energy(*baseline: float, variant: float = 0.1) -> Latency:
        blocks = latency_block(2.0), latency_block(2.0)
        pairs = [Pair(*blocks, (spent(joules), spent(variant))) for joules in baseline]
        found = gathered(*baseline)
        found.launches["latency"] = [Launch([pair], 0, "") for pair in pairs]
        return record(found)

    ratio = energy(0.2, 0.4).ratios["energy_j"]
    assert ratio.value == pytest.approx(0.125**0.5)
    assert ratio.low is not None and ratio.high is not None and ratio.low < 0.25 < 0.5 < ratio.high
    for told in (energy(0.2, 0.0), energy(0.2, 0.2, variant=0.0), record(gathered(1.0, 1.0))):
        assert "energy_j" not in told.ratios


def test_time_per_request_by_hand() -> None:
    """Alone: blocks of 10 requests of 2 ms and of 2 or 8 ms, whose geometric mean is 4. Of clients: 4 requests in 8 ms."""
    alone = record(gathered(1.0, 4.0))
    assert alone.request_ms == Estimate(2.0, 2.0, 2.0)
    assert alone.baseline_request_ms is not None and alone.baseline_request_ms.value == pytest.approx(4.0)
    pair = Pair(done_at(4, 8), done_at(2, 4, 6, 8), (STILL, STILL))
    together = record(gathered(1.0, 4.0, throughput=[pair, pair]))
    assert (together.request_ms, together.baseline_request_ms) == (Estimate(2.0, 2.0, 2.0), Estimate(4.0, 4.0, 4.0))
    assert record(gathered(1.0)).request_ms == Estimate(2.0)


def test_slow_phases_stay_in_percentiles_means_and_energy(tmp_path: Path) -> None:
    """In each launch one of three blocks took 5 ms in place of 2 ms, and 2 ms when measured again: a third of the time."""
    used = [spent(joules) for joules in (0.2, 0.5)]
    ordinary, slow = Block("latency", np.full(300, 2.0)), Block("latency", np.full(300, 5.0))
    still = Pair(ordinary, ordinary, (used[0], used[0]))
    first = Pair(ordinary, slow, (used[0], used[1]))
    found = gathered(1.0, 1.0)
    found.launches["latency"] = [Launch([still] * 3, 1, "", {1: first}) for _ in range(2)]
    told = record(found)
    assert told.speedup == Estimate(1.0, 1.0, 1.0)
    assert told.p95 is not None and told.p95.ratio == Estimate(2.5, 2.5, 2.5)
    assert (told.p95_ms, told.baseline_p95_ms, told.count) == (5.0, 2.0, 1800)
    assert told.request_ms is not None and told.request_ms.value == pytest.approx(3.0)
    assert told.ratios["energy_j"].value == pytest.approx(1.5)
    save(tmp_path / "samples.npz", found)
    again = recount(replace(told, samples_path=tmp_path / "samples.npz"), 0.95)
    assert (again.speedup, again.p95, again.p50_ms, again.count) == (told.speedup, told.p95, told.p50_ms, told.count)


def test_memory_of_a_gpu_by_hand() -> None:
    """The most of all blocks, of each side; absent where the driver tells of none."""
    held = [replace(STILL, gpu_memory_mb=value) for value in (300.0, 500.0, None)]
    pairs = [Pair(latency_block(2.0), latency_block(2.0), (held[2], one)) for one in held]
    found = gathered(1.0)
    found.launches["latency"] = [Launch(pairs, 0, "")]
    told = record(found)
    assert (told.peak_gpu_memory_mb, told.baseline_peak_gpu_memory_mb) == (500.0, None)


def test_the_worst_of_the_conditions_is_told() -> None:
    rough = BlockConditions(0.2, 0.1, (1.0, 1.1), 2400.0, 0, growths={"major_faults": 3, "involuntary_switches": 4})
    rougher = replace(rough, frequency_mhz=2500.0, canary_ms=(1.0, 1.21))
    found = gathered(1.0, 1.0)
    found.launches["latency"][1] = Launch([Pair(latency_block(2.0), latency_block(2.0), (rough, rougher))], 2, "")
    told = record(found).conditions
    assert told is not None
    assert (told.other_cores, told.stolen_cores, told.canary_ratio) == (0.2, 0.1, pytest.approx(1.1))
    assert (told.frequency_mhz, told.throttled, told.repeated) == ((2400.0, 2500.0), 0, 2)
    assert (told.major_faults, told.involuntary_switches) == (6, 8)


def test_a_disturbance_leaves_no_bounds_on_anything() -> None:
    """Of whichever kind of block it was."""
    pairs = [Pair(done_at(4), done_at(2, 4), (STILL, STILL))] * 2
    found = gathered(1.5, 1.5, throughput=pairs)
    found.launches["throughput"][1] = Launch(pairs[:1], 2, "others")
    told = record(found)
    assert told.disturbance == "others" and told.throughput is not None
    assert (told.speedup, told.ratios["load_ms"], told.throughput.ratio) == (
        Estimate(1.5),
        Estimate(2.0),
        Estimate(2.0),
    )


# The processes


def compare(tiny: Tiny, folder: Path, batch: dict[str, Any], *, code: Path = Path(), **changes: Any) -> Latency:
    one = Contestant(tiny.model, CPU)
    measurement = QUICK.model_copy(update=changes)
    place = folder / "samples.npz"
    return compare_latency(one, one, [batch], measurement, confidence=0.95, samples_path=place, code=code)


def test_clients_call_the_one_session_at_once(tiny: Tiny, tmp_path: Path) -> None:
    """Both numbers stand side by side, and samples are requests times the batch."""
    found = compare(tiny, tmp_path, {"x": np.ones((3, 64), np.float32)}, clients=4).throughput
    assert found is not None and found.clients == 4
    assert found.samples_per_s == pytest.approx(3 * found.requests_per_s) and found.baseline_requests_per_s > 0
    assert found.ratio.low is not None and found.ratio.low < found.ratio.value


def test_each_client_makes_its_requests(tiny: Tiny) -> None:
    """Three at once: none starts a further one before each has begun its first, and the moments come in order."""
    import threading

    together = threading.Barrier(3, timeout=30)
    done = latency_worker._completions([[together.wait]] * 3, 0.0, 1)
    assert len(done) == 3 and done == sorted(done) and done[0] > 0


def test_a_client_that_fails_ends_the_block() -> None:
    def fail() -> None:
        raise ValueError("no such input")

    with pytest.raises(ValueError, match="no such input"):
        latency_worker._completions([[fail]] * 2, 10.0, 1)


def test_end_to_end_runs_the_users_functions(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By file and by module; the time of the model alone stands beside it, on what preprocessing gives."""
    (tmp_path / "userland.py").write_text(USER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"userland:*,userland:*@{tmp_path}")
    raw = {"raw": np.ones((3, 70), np.float32)}
    for code in (tmp_path, tmp_path / "nowhere"):
        hooks = {"preprocess": "userland:double", "postprocess": "userland:first"}
        found = compare(tiny, tmp_path, raw, code=code, **hooks)
        assert found.end_to_end is not None and found.end_to_end.p50_ms > 0 and found.p50_ms > 0
        assert found.end_to_end.speedup.low is not None and found.end_to_end.speedup.high is not None
        assert found.batch_size == 3


def test_a_users_function_that_fails_is_named(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"bad:double@{tmp_path}")
    (tmp_path / "bad.py").write_text("def double(batch):\n    raise KeyError('pixels')\n")
    with pytest.raises(CandidateRefused, match=r"bad:double of the job fails: KeyError.*pixels"):
        compare(tiny, tmp_path, {"x": np.ones((3, 64), np.float32)}, code=tmp_path, preprocess="bad:double")


def big(folder: Path, rows: int) -> Path:
    """The tiny model with a constant of `rows` KiB that it looks one row up of, so that nothing folds it away."""
    rng = np.random.default_rng(0)
    model = tiny_model(np.ones((64, 128), np.float32), np.zeros(128, np.float32), np.ones((128, 4), np.float32))
    table = rng.normal(size=(rows, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.node.append(helper.make_node("Gather", ["table", "row"], ["looked_up"], name="look_up"))
    model.graph.input.append(helper.make_tensor_value_info("row", TensorProto.INT64, [1]))
    model.graph.output.append(helper.make_tensor_value_info("looked_up", TensorProto.FLOAT, [1, 256]))
    onnx.save(model, folder / f"big{rows}.onnx")
    return folder / f"big{rows}.onnx"


def test_memory_of_a_model_with_a_big_constant(tmp_path: Path) -> None:
    """64 MiB of weights are 64 MiB more while it answers. Loading takes the file's bytes beside them: at least as much, and
    its peak is no part of what answering takes."""
    request = {"x": np.ones((1, 64), np.float32), "row": np.zeros(1, np.int64)}
    inputs = save_requests(tmp_path / "requests.npz", [request])
    peaks = []
    for rows in (16, 65_536 + 16):
        with Worker(Contestant(big(tmp_path, rows), CPU), inputs) as worker:
            worker.block(0.0, 3)
            peaks.append((worker.figures["load_peak_memory_mb"], worker.figures["peak_memory_mb"]))
    (small_load, small), (large_load, large) = peaks
    assert large - small == pytest.approx(67.1, abs=8)
    assert large_load - small_load >= 60 and large < large_load + 8


# On a GPU: the processor stands in for it


@pytest.fixture
def processor_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionSettings, "on_gpu", True)


@pytest.mark.usefixtures("processor_as_gpu")
def test_a_gpu_is_timed_with_and_without_copies(tiny: Tiny, tmp_path: Path) -> None:
    """Opened as everywhere else, each client with a request of its own, and end to end though the job names no functions."""
    found = compare_latency(
        Contestant(tiny.model, CPU),
        Contestant(tiny.model, CPU),
        [{"x": np.load(tiny.evaluation)["x"][:3]}],
        QUICK.model_copy(update={"clients": 2}),
        confidence=0.95,
        samples_path=tmp_path / "samples.npz",
    )
    assert found.end_to_end is not None and found.end_to_end.p50_ms > 0
    assert found.throughput is not None and found.throughput.clients == 2
    assert found.count >= 20 and found.load_ms > 0


@pytest.mark.usefixtures("processor_as_gpu")
@pytest.mark.parametrize(("columns", "says"), [(63, "the runtime fails"), (None, "does not load")])
def test_a_refusal_in_the_process_is_one_outside(tiny: Tiny, tmp_path: Path, columns: int | None, says: str) -> None:
    """With its kind and its words, whether it comes up while the model loads or while it runs."""
    model = tiny.model
    if columns is None:
        model = tmp_path / "broken.onnx"
        model.write_bytes(b"no model")
    save_requests(tmp_path / "x.npz", [{"x": np.ones((1, columns or 64), np.float32)}])
    with (
        pytest.raises(CandidateRefused, match=says) as caught,
        Worker(Contestant(model, CPU), tmp_path / "x.npz") as one,
    ):
        one.block(0.0, 1)
    assert caught.value.kind == "invalid" and caught.value.fix


def test_what_a_library_prints_is_no_answer(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of it, on either stream, neither stands among the answers nor stops the process."""
    code = "import sys\ndef loud(outputs):\n    print('x' * 1000000)\n    print('x' * 1000000, file=sys.stderr)\n"
    (tmp_path / "loud.py").write_text(code)
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"loud:loud@{tmp_path}")
    save_requests(tmp_path / "x.npz", [{"x": np.load(tiny.evaluation)["x"][:1]}])
    measurement = QUICK.model_copy(update={"postprocess": "loud:loud"})
    with Worker(Contestant(tiny.model, CPU), tmp_path / "x.npz", measurement, tmp_path) as one:
        assert len(one.block(0.0, 3, "end_to_end").samples) == 3

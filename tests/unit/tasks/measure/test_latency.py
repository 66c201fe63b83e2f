"""Latency: the arithmetic against numpy, scipy and brute force; the measuring processes as the machine shows them.

No test asserts a time: the machine is shared.
"""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from scipy import stats

from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant, Worker, save_requests
from tasks.measure.latency.ratio import (
    central_ratio,
    percentile,
    ratio_estimate,
    samples_needed,
    students_quantile,
    tail_of,
)
from validators.errors import CandidateRefused, InfrastructureError
from validators.job.job_measurement import Measurement
from validators.records.measurements import Estimate
from validators.records.run import SessionSettings

CPU = SessionSettings("CPUExecutionProvider", 1)
QUICK = Measurement(
    launches=2,
    blocks=3,
    block_seconds=0.01,
    block_count=25,
    warmup_seconds=0.0,
    warmup_limit_seconds=0.0,
    max_other_load=None,
)


def test_students_quantile_is_that_of_scipy() -> None:
    for freedom in (*range(1, 40), 99, 100):
        for probability in (0.51, 0.9, 0.95, 0.99, 0.9999):
            expected = stats.t.ppf(probability, freedom)
            assert students_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """One request for the tiny model."""
    return save_requests(tmp_path / "requests.npz", [{"x": np.ones((1, 64), np.float32)}])


def compare(baseline: Path, variant: Path, folder: Path, *, settings: SessionSettings = CPU, **batch: Any) -> Any:
    """Both models on one request, quickly."""
    return compare_latency(
        Contestant(baseline, CPU),
        Contestant(variant, settings),
        [batch or {"x": np.ones((3, 64), np.float32)}],
        QUICK,
        confidence=0.95,
        samples_path=folder / "samples.npz",
    )


# The arithmetic


@pytest.mark.parametrize(("quantile", "count"), [(0.99, 662), (0.999, 6636), (0.95, 130), (0.5, 11)])
def test_a_percentile_needs_so_many_samples(quantile: float, count: int) -> None:
    """The smallest count of which, 99 times in 100, two or more lie beyond: by the sum over none and one."""

    def at_most_one_beyond(n: int) -> float:
        return sum(math.comb(n, k) * (1 - quantile) ** k * quantile ** (n - k) for k in (0, 1))

    assert samples_needed(quantile) == count
    assert at_most_one_beyond(count) <= 0.01
    assert all(at_most_one_beyond(n) > 0.01 for n in range(1, count))


def test_a_percentile_that_the_count_cannot_support_is_not_given() -> None:
    """p99 of 100 samples, and of 661; from 662 on it is numpy's."""
    samples = np.random.default_rng(0).exponential(size=700)
    assert percentile(samples[:100], 0.99) is None
    assert percentile(samples[:661], 0.99) is None
    assert percentile(samples[:662], 0.99) == np.quantile(samples[:662], 0.99)
    assert percentile(samples, 0.95) == np.quantile(samples, 0.95)
    assert percentile(samples[:100], 0.95) is None


def test_the_ratio_of_a_hand_computed_table() -> None:
    """Launches of medians 1, 2, 4: logarithms 0, 1, 2 of base 2; mean 1, error 1 / sqrt(3), t of 2 degrees 2.920 at 95 %."""
    half = 2.919986 / math.sqrt(3)
    estimate = ratio_estimate([[0.5, 2.0], [2.0, 2.0], [16.0, 1.0]], 0.95)
    assert estimate.value == pytest.approx(2.0, rel=1e-9)
    assert estimate.low == pytest.approx(2 ** (1 - half), rel=1e-5)
    assert estimate.high == pytest.approx(2 ** (1 + half), rel=1e-5)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("launches", [1, 4])
def test_the_ratio_is_the_student_interval_of_launches(confidence: float, launches: int) -> None:
    """scipy's two-sided t interval at twice the one-sided error, of the launches' medians, or of one launch's blocks."""
    ratios = np.random.default_rng(3).lognormal(0.3, 0.1, (launches, 3))
    logs = np.median(np.log(ratios), axis=1) if launches > 1 else np.log(ratios[0])
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(2 * confidence - 1)
    estimate = ratio_estimate(ratios.tolist(), confidence)
    assert estimate == Estimate(
        pytest.approx(math.exp(logs.mean())), pytest.approx(math.exp(low)), pytest.approx(math.exp(high))
    )
    assert launches == 1 or central_ratio(ratios.tolist()) == estimate.value


@pytest.mark.parametrize("between", [0.0, 0.01, 0.02])
def test_the_bounds_hold_their_rate_where_launches_differ(between: float) -> None:
    """Planted launches and blocks of a true ratio 1.3: the lower bound exceeds it in 5 % of 2,000 comparisons, within four
    standard errors of that share. Blocks taken for independent would exceed it in 9 and 14 % at the larger two."""
    rng = np.random.default_rng(11)
    logs = math.log(1.3) + rng.normal(0, between, (2000, 4, 1)) + rng.normal(0, 0.015, (2000, 4, 3))
    above = np.mean([(ratio_estimate(one.tolist(), 0.95).low or 0) > 1.3 for one in np.exp(logs)])
    assert above == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 2000))


def test_percentile_of_launches_by_hand() -> None:
    """Launches whose p95 are 1, 2 and 4 times 1 to 139: definition 8 takes rank (139 + 1/3) 0.95 + 1/3 = 132.7.

    So the geometric mean is 265.4; the error is that of `test_the_ratio_of_a_hand_computed_table`."""
    base = np.arange(1.0, 140.0)
    tail = tail_of([base] * 3, [base, 2 * base, 4 * base], 0.95, 0.95)
    half = 2.919986 / math.sqrt(3)
    assert (tail.needed, tail.requests, tail.baseline_requests) == (130, 139, 139)
    for found, value in ((tail.ms, 2 * 132.7), (tail.ratio, 2.0)):
        assert found is not None
        ends = [value, value * 2**-half, value * 2**half]
        assert [found.value, found.low, found.high] == pytest.approx(ends, rel=1e-5)


def test_launch_with_too_few_requests_gives_no_percentile() -> None:
    """One short launch is enough, whatever the others have; the ratio needs both sides."""
    many, few = np.ones(700), np.ones(661)
    short = tail_of([many, many], [many, few], 0.99, 0.95)
    assert (short.requests, short.baseline_requests, short.ms, short.ratio) == (661, 700, None, None)
    slow = tail_of([few, many], [many, many], 0.99, 0.95)
    assert slow.ms == Estimate(1.0, 1.0, 1.0) and slow.ratio is None
    assert tail_of([many], [many], 0.99, 0.95).ratio == Estimate(1.0)


@pytest.mark.parametrize("between", [0.0, 0.02])
def test_percentile_bounds_hold_their_rate(between: float) -> None:
    """Planted launches with slow requests in 3 % of all: of 1,000 comparisons of equals, the upper bound of the ratio of p95 is
    below 1 in 5 %, within four standard errors. The baseline has twice the requests, as if it were faster."""
    rng = np.random.default_rng(5)

    def launches(requests: int) -> list[Any]:
        slow = rng.random((4, requests)) < 0.03
        logs = rng.normal(0, 0.03, (4, requests)) + slow * rng.exponential(0.5, (4, requests))
        return list(np.exp(logs + rng.normal(0, between, (4, 1))))

    found = [tail_of(launches(260), launches(130), 0.95, 0.95).ratio for _ in range(1000)]
    below = np.mean([one is not None and one.high is not None and one.high < 1 for one in found])
    assert below == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 1000))


# The processes


def test_a_comparison_reports_what_its_raw_samples_say(tiny: Tiny, tmp_path: Path) -> None:
    """Every number of the record again from the samples file: pooled percentiles, counts, pairs, and the ratio."""
    latency = compare(tiny.model, tiny.model, tmp_path)
    assert latency.samples_path == tmp_path / "samples.npz"
    with np.load(latency.samples_path) as archive:
        raw = {name: archive[name] for name in archive.files}
    figures = ("block", "canary_ms", "other_cores", "again", "again_block")
    by_block = {f"{side}_{what}" for side in ("baseline", "variant") for what in figures}
    assert set(raw) == {"baseline", "variant", "launch", "requests"} | by_block
    assert raw["launch"].tolist() == [0, 0, 0, 1, 1, 1]
    pairs = QUICK.launches * QUICK.blocks
    medians = {}
    for side, p50, p95, p99 in (
        ("variant", latency.p50_ms, latency.p95_ms, latency.p99_ms),
        ("baseline", latency.baseline_p50_ms, latency.baseline_p95_ms, latency.baseline_p99_ms),
    ):
        samples, block = raw[side], raw[f"{side}_block"]
        assert (samples > 0).all() and len(samples) == len(block)
        assert sorted(set(block.tolist())) == list(range(pairs))
        assert min(np.bincount(block)) >= QUICK.block_count
        assert p50 == np.median(samples)
        assert p95 == (np.quantile(samples, 0.95) if len(samples) >= 130 else None)
        assert p99 == (np.quantile(samples, 0.99) if len(samples) >= 662 else None)
        medians[side] = [np.median(samples[block == index]) for index in range(pairs)]
    assert latency.count == len(raw["variant"]) >= pairs * QUICK.block_count
    assert latency.pairs == pairs and latency.batch_size == 3
    launch = {side: raw["launch"][raw[f"{side}_block"]] for side in ("baseline", "variant")}
    of_launches = {side: [raw[side][launch[side] == index] for index in (0, 1)] for side in launch}
    for quantile, tail in ((0.95, latency.p95), (0.99, latency.p99)):
        assert tail == tail_of(of_launches["baseline"], of_launches["variant"], quantile, 0.95)
    ratios = [a / b for a, b in zip(medians["baseline"], medians["variant"], strict=True)]
    assert latency.speedup == ratio_estimate([ratios[:3], ratios[3:]], 0.95)
    low, value, high = latency.speedup.low, latency.speedup.value, latency.speedup.high
    assert all(map(math.isfinite, (low, value, high))) and 0 < low < value < high
    for amount in (latency.load_ms, latency.baseline_load_ms):
        assert amount > 0
    for megabytes in (latency.peak_memory_mb, latency.baseline_peak_memory_mb):
        # A Python process with numpy and the runtime is tens of megabytes; one in kilobytes or bytes would be far outside.
        assert 20 < megabytes < 5000


def test_a_model_that_does_not_load_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A candidate's fault, of kind invalid, with the runtime's last line and no traceback."""
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:5000])
    with pytest.raises(CandidateRefused, match=r"the runtime fails on broken\.onnx") as caught:
        compare(tiny.model, tmp_path / "broken.onnx", tmp_path)
    assert caught.value.kind == "invalid" and "\n" not in caught.value.found
    assert not (tmp_path / "samples.npz").exists()


def test_a_model_that_does_not_run_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """It loads, and fails on the first request."""
    with pytest.raises(CandidateRefused, match=r"the runtime fails on tiny\.onnx") as caught:
        compare(tiny.model, tiny.model, tmp_path, x=np.ones((1, 63), np.float32))
    assert caught.value.kind == "invalid"


def test_a_fallback_to_another_provider_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A measurement of the CPU under the name of another provider is none: kind unsupported."""
    with pytest.raises(CandidateRefused, match="CUDAExecutionProvider") as caught:
        compare(tiny.model, tiny.model, tmp_path, settings=SessionSettings("CUDAExecutionProvider", 1))
    assert caught.value.kind == "unsupported" and "CUDAExecutionProvider" in caught.value.expected


def test_a_killed_process_is_an_infrastructure_error(tiny: Tiny, inputs: Path) -> None:
    """Killed between its blocks, as by a lack of memory: worth another try, and the signal is named."""
    with Worker(Contestant(tiny.model, CPU), inputs) as worker:
        assert len(worker.block(0.0, 5).samples) == 5
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="signal 9 ended"):
            worker.block(0.0, 5)


def state_of(pid: int) -> tuple[str, int]:
    """State and processor ticks of a process with all its threads, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def wait_until_stopped(worker: Worker) -> int:
    """The ticks of a worker once the signal that stops it has arrived."""
    for _ in range(10**6):
        state, ticks = state_of(worker._process.pid)
        if state == "T":
            return ticks
    raise AssertionError(f"the worker is not stopped but in state {state}")


def test_a_process_computes_nothing_while_another_measures(tiny: Tiny, inputs: Path) -> None:
    """Stopped from its start and between its blocks: not one tick passes for it during a block of the other.

    With two threads, as the runtime's pool spins between requests: the trap that this is about.
    """
    settings = SessionSettings("CPUExecutionProvider", 2)
    with Worker(Contestant(tiny.model, settings), inputs) as one, Worker(Contestant(tiny.model, CPU), inputs) as other:
        for worker in (one, other):
            wait_until_stopped(worker)
        one.block(0.02, 20)
        before = wait_until_stopped(one)
        other.block(0.2, 20)
        assert state_of(one._process.pid) == ("T", before)
        wait_until_stopped(other)
        one.block(0.3, 20)
        assert wait_until_stopped(one) > before


def test_no_process_is_left(tiny: Tiny, inputs: Path, tmp_path: Path) -> None:
    """Neither after a block nor after an error: a stopped process would stay for ever."""
    with Worker(Contestant(tiny.model, CPU), inputs) as worker:
        worker.block(0.0, 1)
        pid = worker._process.pid
    assert not Path(f"/proc/{pid}").exists()
    before = children()
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(CandidateRefused):
        compare(tiny.model, tmp_path / "broken.onnx", tmp_path)
    assert children() == before


def children() -> set[int]:
    """The processes that this one started and that are still there."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def test_a_block_lasts_until_both_duration_and_count_are_reached(tiny: Tiny, inputs: Path) -> None:
    """Few requests asked for: as many as the duration holds. A duration of none: as many as asked for, exactly."""
    with Worker(Contestant(tiny.model, CPU), inputs) as worker:
        assert len(worker.block(0.0, 37).samples) == 37
        assert len(worker.block(0.2, 1).samples) > 1
        assert worker.figures["peak_memory_mb"] > 0 and worker.figures["load_ms"] > 0


def test_settings_reach_the_measured_session(tiny: Tiny, inputs: Path) -> None:
    """An entry that the runtime refuses is refused here too: the process loads with the variant's own settings."""
    bad = SessionSettings("CPUExecutionProvider", 1, "all", {"session.disable_cpu_ep_fallback": "1"})
    with pytest.raises(CandidateRefused) as caught, Worker(Contestant(tiny.model, bad), inputs):
        pass
    assert caught.value.kind == "invalid" and "Conflicting session configuration" in caught.value.found


def test_larger_work_takes_longer(tiny: Tiny, tmp_path: Path) -> None:
    """The ratio has the right side up: a model with a thousand times the work is slower beyond doubt."""
    wide = np.random.default_rng(0).normal(size=(64, 8192)).astype(np.float32)
    model = tiny_model(wide, np.zeros(8192, np.float32), np.ones((8192, 4), np.float32))
    onnx.save(model, tmp_path / "wide.onnx")
    latency = compare(tiny.model, tmp_path / "wide.onnx", tmp_path, x=np.ones((32, 64), np.float32))
    assert latency.speedup.high is not None and latency.speedup.high < 1
    assert latency.p50_ms > latency.baseline_p50_ms

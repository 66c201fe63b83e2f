"""The step that measures: every operating point of the job, kept in the store unless it was disturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from runs import run_in

from tasks.measure import request
from tasks.measure.inventory import take_inventory, usable_cores
from tasks.measure.request import draw_requests, request_batch
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.trials import measure_latency as step
from validators.job.job_measurement import Measurement, OperatingPoint
from validators.job.read_job import parse_job
from validators.records.latencies import Latency, point_labels
from validators.records.measurements import Accuracy, Estimate
from validators.records.run import Inventory, SessionSettings, Source, Trial, Variant
from validators.samples.datasets import Samples, TensorSpec, load_samples
from validators.samples.evidence import Evidence

CLEAN = Latency(
    1, 1.0, None, None, 60, 2.0, None, None, Estimate(2.0, 1.9, 2.1), 6, 5.0, 80.0, 9.0, 120.0, Path("samples.npz")
)
Calls = list[dict[str, Any]]


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return take_inventory("ort-cpu")


def evidence_of(tiny: Tiny) -> Evidence:
    """The evaluation samples of the tiny model."""
    spec = TensorSpec("x", "float32", ("batch", 64))
    samples: Samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    logits, kept = TensorSpec("logits", "float32", ("batch", 4)), np.zeros(len(samples), bool)
    return Evidence((spec,), logits, samples, samples, None, None, kept)


def run_with(tiny: Tiny, folder: Path, inventory: Inventory, **measurement: Any) -> LoadedRun:
    """The run of a job on the tiny model."""
    job = parse_job(tiny.job(measurement=measurement), base=folder)
    source = Source("tiny.onnx", "tiny", None, "1" * 64, tiny.model, "file")
    return with_inputs(run_in(folder / "state", job), source, evidence_of(tiny), inventory)


def trial_of(tiny: Tiny, folder: Path) -> Trial:
    settings = SessionSettings("CPUExecutionProvider", 2)
    accuracy = Accuracy("accuracy", 0.9, 10, folder / "scores.npy", folder / "finite.npy")
    variant = Variant("int8-dynamic-pc@ort-cpu", tiny.model, "2" * 64, 100, settings)
    return Trial(variant.candidate, variant=variant, accuracy=accuracy)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Comparisons that give these latencies one after the other, the last for ever; returns what they were asked."""

    def plant(*latencies: Latency) -> Calls:
        calls: Calls = []
        left = list(latencies)

        def compare(baseline: Any, variant: Any, requests: Any, measurement: Any, **options: Any) -> Latency:
            threads = (baseline.settings.threads, variant.settings.threads)
            batch = requests[0]
            drawn = np.stack([request["x"] for request in requests])
            calls.append({"shape": batch["x"].shape, "threads": threads, "dims": options["dims"], "drawn": drawn})
            np.savez(options["samples_path"], variant=np.ones(3))
            latency = left.pop(0) if len(left) > 1 else left[0]
            return replace(latency, batch_size=len(batch["x"]), samples_path=options["samples_path"])

        monkeypatch.setattr("tasks.measure.latency.compare.compare_latency", compare)
        return calls

    return plant


def measure(run: LoadedRun, tiny: Tiny, folder: Path) -> Trial:
    trial: Trial = step.measure_latency.fn(run, trial_of(tiny, folder))
    return trial


def test_disturbed_measurement_is_repeated_and_loses_no_trial(
    tiny: Tiny, tmp_path: Path, inventory: Inventory, planted: Callable[..., Calls]
) -> None:
    """Its figures and reason come back beside the accuracy, once; the next run measures; the clean result is then kept."""
    noisy = replace(CLEAN, speedup=Estimate(1.7), disturbance="others were busy")
    calls = planted(noisy, CLEAN)
    run = run_with(tiny, tmp_path, inventory)
    first = measure(run, tiny, tmp_path)
    assert first.refusal is None and first.accuracy is not None and not first.cached
    assert first.latency is not None and first.latency.disturbance == "others were busy"
    assert first.latency.speedup == Estimate(1.7) and len(calls) == 1
    assert first.latency.samples_path.exists() and not list((run.store.root / "latency").iterdir())
    second = measure(run, tiny, tmp_path)
    assert second.latency is not None and second.latency.disturbance == "" and len(calls) == 2
    again = measure(run, tiny, tmp_path)
    assert again.latency == second.latency and len(calls) == 2
    assert again.latency is not None and again.latency.samples_path.is_relative_to(run.store.root)


def test_every_combination_is_measured_and_the_first_decides(
    tiny: Tiny, tmp_path: Path, inventory: Inventory, planted: Callable[..., Calls]
) -> None:
    """Two batch sizes and two thread counts, the first of which is all cores; threads change slowest, so that lists of the
    job read in their order. A point that another job shares is taken from the store."""
    calls = planted(CLEAN)
    run = run_with(tiny, tmp_path, inventory, batch_sizes=[3, 1], threads=[0, 1])
    trial = measure(run, tiny, tmp_path)
    cores = usable_cores()
    assert [call["shape"] for call in calls] == [(3, 64), (1, 64), (3, 64), (1, 64)]
    assert [call["threads"] for call in calls] == [(cores, cores), (cores, cores), (1, 1), (1, 1)]
    assert trial.latency is not None and trial.latency.batch_size == 3
    measure(run_with(tiny, tmp_path, inventory, batch_sizes=[1, 4], threads=1), tiny, tmp_path)
    assert [call["shape"] for call in calls[4:]] == [(4, 64)]


def test_another_price_repeats_no_measurement(
    tiny: Tiny, tmp_path: Path, inventory: Inventory, planted: Callable[..., Calls]
) -> None:
    calls = planted(CLEAN)
    for price in (None, 1.0, 2.0):
        measure(run_with(tiny, tmp_path, inventory, price_per_hour=price), tiny, tmp_path)
    assert len(calls) == 1


def test_operating_points_by_hand() -> None:
    """One number and a list of one are the same; the product has threads, batch sizes and axes in this order."""
    # As a job file has them: the validator makes tuples of either.
    assert Measurement(dims={"s": 16}, threads=2) == Measurement(dims={"s": [16]}, threads=[2])  # type: ignore[arg-type, dict-item]  # one number becomes a list
    points = Measurement(batch_sizes=(1, 8), dims={"s": (16, 32), "t": (5,)}).points
    assert points == (
        OperatingPoint(1, {"s": 16, "t": 5}, 0),
        OperatingPoint(1, {"s": 32, "t": 5}, 0),
        OperatingPoint(8, {"s": 16, "t": 5}, 0),
        OperatingPoint(8, {"s": 32, "t": 5}, 0),
    )


@pytest.mark.parametrize(("asked", "threads"), [(0, (1, 1)), (2, (2, 2))])
def test_run_on_a_busy_machine_times_with_the_threads_left(
    tiny: Tiny,
    tmp_path: Path,
    inventory: Inventory,
    planted: Callable[..., Calls],
    asked: int,
    threads: tuple[int, int],
) -> None:
    """Unless the job says with how many; the variant keeps those of its session."""
    calls = planted(CLEAN)
    run = replace(run_with(tiny, tmp_path, inventory, threads=asked), timed_threads=1)
    measured = measure(run, tiny, tmp_path)
    assert [call["threads"] for call in calls] == [threads]
    assert measured.variant is not None and measured.variant.session.threads == 2


@pytest.mark.parametrize(
    ("ratios", "found"), [((1.2, 0.5, 1.1), 1.1), ((1.2, None, 1.1), None)], ids=["one slow launch", "one disturbed"]
)
def test_finalists_in_turn_have_the_median_of_three_launches(
    tiny: Tiny,
    tmp_path: Path,
    inventory: Inventory,
    planted: Callable[..., Calls],
    ratios: tuple[float | None, ...],
    found: float | None,
) -> None:
    """Each launch is measured by itself, and kept by its index: no result is taken for another's."""
    disturbed = replace(CLEAN, speedup=Estimate(1.0, None, None), disturbance="a busy machine")
    calls = planted(*(replace(CLEAN, speedup=Estimate(one, one, one)) if one else disturbed for one in ratios))
    run, trial = run_with(tiny, tmp_path, inventory), trial_of(tiny, tmp_path)
    assert step.measure_in_turn.fn(run, trial, trial) == found
    assert len(calls) == (3 if found else 2)
    if found:
        assert step.measure_in_turn.fn(run, trial, trial) == found and len(calls) == 3


def test_a_request_has_the_sizes_of_its_point(tiny: Tiny) -> None:
    """A dynamic axis is cut, or padded with zeros; samples are repeated where there are too few."""
    samples = evidence_of(tiny).evaluation
    spec = TensorSpec("x", "float32", ("batch", "features"))
    evidence = replace(evidence_of(tiny), inputs=(spec,))
    data = samples.inputs["x"]
    short = request_batch(evidence, OperatingPoint(2, {"features": 10}, 0))["x"]
    np.testing.assert_array_equal(short, data[:2, :10])
    long = request_batch(evidence, OperatingPoint(2001, {"features": 70}, 0))["x"]
    assert long.shape == (2001, 70) and not long[:, 64:].any()
    np.testing.assert_array_equal(long[2000, :64], data[0])


def rows_in(samples: Samples, drawn: Any) -> list[int]:
    """The evaluation rows that requests were made of, none of which has a copy."""
    known = {row.tobytes(): index for index, row in enumerate(samples.inputs["x"])}
    return [known[row.tobytes()] for row in drawn.reshape(-1, 64)]


def test_requests_are_different_samples_of_the_evaluation_data(
    tiny: Tiny, tmp_path: Path, inventory: Inventory, planted: Callable[..., Calls]
) -> None:
    """Drawn by the seed; the confirmation has requests of its own, of the rows that had no say in the choice."""
    calls = planted(CLEAN)
    evidence = evidence_of(tiny)
    kept = np.arange(len(evidence.evaluation)) % 3 == 0
    run = run_with(tiny, tmp_path, inventory, batch_sizes=[4])
    run = replace(run, evidence=replace(evidence, confirmation=kept))
    variant = trial_of(tiny, tmp_path).variant
    assert variant is not None
    for purpose in ("selection", "confirmation", "selection"):
        step.latency_of(run, variant, variant, run.job.measurement.points[0], purpose=purpose)
    assert [call["drawn"].shape for call in calls] == [(64, 4, 64)] * 2
    chosen, confirming = (rows_in(evidence.evaluation, call["drawn"]) for call in calls)
    assert len(set(chosen)) == len(set(confirming)) == 256
    assert not kept[chosen].any() and kept[confirming].all()


def test_stored_latencies_belong_to_their_requests(
    tiny: Tiny, tmp_path: Path, inventory: Inventory, planted: Callable[..., Calls]
) -> None:
    """Another seed draws others, and is measured anew; the same one finds what there is."""
    calls = planted(CLEAN)
    run = run_with(tiny, tmp_path, inventory)
    other = replace(run, job=run.job.model_copy(update={"seed": run.job.seed + 1}))
    for one in (run, other, run, other):
        measure(one, tiny, tmp_path)
    assert len(calls) == 2
    first, second = (rows_in(evidence_of(tiny).evaluation, call["drawn"]) for call in calls)
    assert first != second


def test_requests_are_bounded_in_number_and_bytes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 at most; as many as fit; one, of repeated samples, where there are fewer samples than it has."""
    evidence = evidence_of(tiny)
    assert draw_requests(evidence, OperatingPoint(1, {}, 0), 0).shape == (64, 1)
    assert draw_requests(evidence, OperatingPoint(2001, {}, 0), 0).shape == (1, 2001)
    assert draw_requests(evidence, OperatingPoint(600, {}, 0), 0).shape == (3, 600)
    monkeypatch.setattr(request, "MOST_REQUEST_BYTES", 10 * 2 * 64 * 4)
    assert draw_requests(evidence, OperatingPoint(2, {}, 0), 0).shape == (10, 2)
    monkeypatch.setattr(request, "MOST_REQUEST_BYTES", 1)
    assert draw_requests(evidence, OperatingPoint(2, {}, 0), 0).shape == (1, 2)
    monkeypatch.undo()
    all_kept = replace(evidence, confirmation=np.ones(len(evidence.evaluation), bool))
    assert draw_requests(all_kept, OperatingPoint(1, {}, 0), 0).shape == (64, 1)


def test_labels_of_points_differ_where_the_points_do() -> None:
    one = replace(CLEAN, dims={"sequence": 16}, threads=2)
    assert point_labels([CLEAN]) == ("b1",)
    assert point_labels([one, replace(one, batch_size=8)]) == ("b1_sequence16", "b8_sequence16")
    assert point_labels([one, replace(one, threads=1)]) == ("b1_sequence16_t2", "b1_sequence16_t1")

"""Accuracy by batches: no outputs of a variant are kept, and fewer threads or another batch size change no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny, statistics_of
from numpy.typing import NDArray
from processors import HERE
from runs import run_in

from tasks.engines.variants import make_variant
from tasks.measure.inventory import take_inventory
from tasks.measure.metrics import reduction
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Rows
from tasks.measure.metrics.reduction import BatchObserver, answers_of
from tasks.measure.metrics.texts import make_decoder
from tasks.ptq.build_variant import Materials
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.graph.prepare import prepare_graph
from tasks.run.footprint import Footprint
from tasks.run.loaded_run import with_inputs
from tasks.runtimes.ort import open_session
from tasks.runtimes.runner import InRequests
from tasks.trials import measure_accuracy as module
from tasks.trials.confirm import _with_kept_samples
from tasks.trials.measure_accuracy import Reference, _considerate, measure_accuracy
from validators.digests import digest_model
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.job_data import TextDecoding
from validators.job.metric_facts import METRICS
from validators.job.read_job import parse_job
from validators.records.measurements import Accuracy
from validators.records.run import SessionSettings, Source, Trial, Variant
from validators.samples.datasets import TensorSpec, load_samples
from validators.samples.evidence import Evidence


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Materials:
    """What variants of the tiny model are made from."""
    folder = tmp_path_factory.mktemp("materials")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics = statistics_of(folder / "prepared.onnx", tiny.calibration)
    prepared = folder / "prepared.onnx"
    return Materials(
        lambda: prepared,
        lambda: prepared,
        lambda: SmoothedGraph(prepared, 0, 0),
        lambda _: statistics,
        lambda _: (),
        lambda: (),
        lambda *_: {},
        HERE,
    )


@pytest.mark.parametrize(
    "name",
    ["int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu", "fp8-amax-pc@ort-cpu"],
)
def test_fewer_threads_give_the_same_bits(name: str, materials: Materials, tiny: Tiny, tmp_path: Path) -> None:
    variant = make_variant(decode(name), materials, tmp_path, threads=4)
    feed = {"x": np.load(tiny.evaluation)["x"]}
    outputs = []
    for settings in (variant.session, _considerate(variant.session, threads=1)):
        with open_session(variant.path, settings) as session:
            outputs.append(session.run(None, feed)[0])
    np.testing.assert_array_equal(*outputs)


class Shuffled:
    """An observer that takes the batches in a random order and notes the rows that it sees."""

    def __init__(self, n: int, size: int) -> None:
        order = np.random.default_rng(2).permutation(-(-n // size))
        self.samples = np.concatenate([np.arange(n)[each * size : (each + 1) * size] for each in order])
        self.rows: list[Rows] = []

    def look(self, rows: Rows) -> None:
        self.rows.append(rows)


class Bench:
    """The tiny model and one with noise on its weights, in a store of their own."""

    def __init__(self, tiny: Tiny, folder: Path, metric: str, batch_axis: int | None = None) -> None:
        noisy = onnx.load(tiny.model)
        for tensor in noisy.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            noise = np.random.default_rng(3).normal(size=array.shape, scale=0.05).astype(array.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array + noise, tensor.name))
        folder.mkdir()
        onnx.save(noisy, folder / "noisy.onnx")
        spec = TensorSpec("x", "float32", ("batch", FEATURES))
        samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
        logits, kept = TensorSpec("logits", "float32", ("batch", CLASSES)), np.arange(len(samples)) % 3 == 0
        evidence = Evidence((spec,), logits, samples, samples, None, batch_axis, kept)
        job = parse_job(tiny.job() | {"metric": metric, "gates": {"min_sqnr_db": 10.0}}, base=folder)
        settings = SessionSettings("CPUExecutionProvider", 2)
        paths = tiny.model, folder / "noisy.onnx"
        baseline, self.noisy = (Variant("v", path, digest_model(path), 0, settings) for path in paths)
        source = Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file")
        self.run = with_inputs(run_in(folder, job), source, evidence, take_inventory("ort-cpu"))
        self.selection = ~kept
        self.baseline, _ = measure_accuracy(self.run, baseline, None)
        self.reference = Reference(self.baseline, baseline)

    def measure(self, *part: NDArray[np.bool_], watch_of: Callable[[int], BatchObserver] | None = None) -> Accuracy:
        return measure_accuracy(self.run, self.noisy, self.reference, *part, watch_of=watch_of)[0]


def measured(
    tiny: Tiny, folder: Path, metric: str, watch_of: Callable[[int], BatchObserver] | None = None
) -> tuple[Accuracy, Accuracy]:
    """The baseline and the one with noise."""
    bench = Bench(tiny, folder, metric)
    return bench.baseline, bench.measure(watch_of=watch_of)


def arrays_of(accuracy: Accuracy) -> list[NDArray[Any]]:
    paths = accuracy.scores_path, accuracy.finite_path, accuracy.noise_path
    return [np.load(path) for path in paths if path] + [found for found in [answers_of(accuracy)] if found is not None]


@pytest.mark.parametrize("kept", [0, reduction.KEPT_BYTES])
@pytest.mark.parametrize("metric", ["accuracy", "agreement", "mse"])
def test_samples_kept_for_confirmation_run_once_it_comes(
    metric: str, kept: int, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection knows nothing of the others; with them, the files are those of all samples at once, to the bit."""
    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    bench = Bench(tiny, tmp_path / "one", metric)
    chosen, every = bench.measure(bench.selection), bench.measure()
    assert len(arrays_of(every)) == 4 - (metric == "mse") and chosen.n == bench.selection.sum() < every.n
    for some, all_of_them in zip(arrays_of(chosen), arrays_of(every), strict=True):
        unknown = -1 if some.dtype == np.int32 else np.nan
        np.testing.assert_array_equal(some[~bench.selection], np.full_like(some[~bench.selection], unknown))
        np.testing.assert_array_equal(some[bench.selection], all_of_them[bench.selection])
    trial = _with_kept_samples(bench.run, bench.baseline, Trial("v", variant=bench.noisy, accuracy=chosen))
    rest = trial.accuracy
    assert rest and (rest.value, rest.n) == (chosen.value, chosen.n)
    for one, other in zip(arrays_of(rest), arrays_of(every), strict=True):
        np.testing.assert_array_equal(one, other)
    assert _with_kept_samples(bench.run, bench.baseline, trial) is trial


@pytest.mark.parametrize("sizes", [[1], [3, 1]])
def test_ranges_of_a_request_are_those_of_requests_of_the_job(sizes: list[int], tiny: Tiny, tmp_path: Path) -> None:
    """Alone a sample has codes of its own; beside 31 others, those of the largest of all."""
    bench = Bench(tiny, tmp_path / "one", "accuracy")
    measurement = bench.run.job.measurement.model_copy(update={"batch_sizes": tuple(sizes)})
    bench.run = replace(bench.run, job=bench.run.job.model_copy(update={"measurement": measurement}))
    quantize_dynamic(tiny.model, tmp_path / "dynamic.onnx", weights=Int8Weights())
    path = tmp_path / "dynamic.onnx"
    bench.noisy = replace(bench.noisy, candidate="int8-dynamic-pc@ort-cpu", path=path, digest=digest_model(path))
    found, samples = bench.measure(), np.load(tiny.evaluation)["x"]
    with open_session(path, bench.noisy.session) as session, open_session(tiny.model, bench.noisy.session) as source:
        reference = source.run(None, {"x": samples})[0]

        def noise_of(size: int) -> NDArray[Any]:
            """A batch of 32 is asked as requests of this size and a smaller one."""
            starts = [start + first for start in range(0, len(samples), 32) for first in range(0, 32, size)]
            requests = [samples[start : min(start + size, start - start % 32 + 32)] for start in starts]
            outputs = np.concatenate([session.run(None, {"x": request})[0] for request in requests if len(request)])
            return ((outputs.astype(float) - reference) ** 2).sum(axis=1)

        alone, together = noise_of(max(sizes)), noise_of(32)
    assert found.noise_path is not None
    np.testing.assert_allclose(np.load(found.noise_path)[:, 1], alone, rtol=1e-3)
    assert np.median(alone) < 0.9 * np.median(together)


def test_outputs_that_differ_from_request_to_request_are_refused() -> None:
    runner: Any = SimpleNamespace(run=lambda batch, _: [np.zeros((1, int(batch["x"][0])))])
    assert InRequests(runner, 1).run({"x": np.array([2, 2])}, ["y"])[0].shape == (2, 2)
    with pytest.raises(CandidateRefused, match="outputs of requests of 1"):
        InRequests(runner, 1).run({"x": np.array([2, 3])}, ["y"])


def test_a_fixed_batch_runs_all_samples(tiny: Tiny, tmp_path: Path) -> None:
    bench = Bench(tiny, tmp_path / "one", "accuracy", batch_axis=8)
    assert bench.measure(bench.selection).n == len(bench.selection)


@pytest.mark.parametrize("metric", ["accuracy", "agreement", "sqnr"])
def test_a_baseline_that_is_not_kept_is_run_beside_variants(
    metric: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, noise and finite shares are those against the kept outputs, and the store has no outputs but the baseline's."""
    kept = measured(tiny, tmp_path / "kept", metric)
    monkeypatch.setattr(reduction, "GATHERED_BYTES", 0)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    again = measured(tiny, tmp_path / "again", metric)
    assert kept[0].outputs_path is not None and kept[1].outputs_path is None
    assert again[0].outputs_path is None and again[1].outputs_path is None
    assert len(list(tmp_path.rglob("outputs*"))) == 1
    for one, other in zip(kept, again, strict=True):
        assert one.value == other.value
        for name in ("scores_path", "finite_path", "noise_path"):
            paths = getattr(one, name), getattr(other, name)
            if paths[0] is not None:
                np.testing.assert_array_equal(*(np.load(path) for path in paths))
    assert kept[1].noise_path is not None and np.load(kept[1].noise_path)[:, 1].all()


def test_a_disk_with_little_room_gets_no_outputs(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * CLASSES * len(np.load(tiny.evaluation)["x"])
    for room, is_kept in ((4 * size - 1, False), (4 * size, True)):
        monkeypatch.setattr(Footprint, "disk_left", lambda _, room=room: room)
        baseline, _ = measured(tiny, tmp_path / str(room), "accuracy")
        assert (baseline.outputs_path is not None) == is_kept


@pytest.mark.parametrize("kept", [0, reduction.KEPT_BYTES])
def test_observer_sees_the_rows_in_order_and_changes_no_bit(
    kept: int, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    watches: list[Shuffled] = []

    def watch_of(size: int) -> BatchObserver:
        watches.append(Shuffled(len(np.load(tiny.evaluation)["x"]), size))
        return watches[-1]

    plain, watched = (measured(tiny, tmp_path / str(one), "accuracy", one) for one in (None, watch_of))
    for name in ("scores_path", "finite_path", "noise_path"):
        np.testing.assert_array_equal(*(np.load(getattr(accuracy[1], name)) for accuracy in (plain, watched)))
    (watch,) = watches
    assert len(watch.rows) > 3 and watch.samples[0] > 0
    scores = np.load(plain[1].scores_path)
    assert 0 < scores.mean() < 1
    np.testing.assert_array_equal(np.concatenate(watch.rows), scores[watch.samples])


def test_metrics_of_the_whole_set_are_not_observed() -> None:
    names: list[str] = list(METRICS)
    evidence: Any = SimpleNamespace(evaluation=SimpleNamespace(steps=None), batch_axis=None)
    options = Options(0.0, make_decoder(TextDecoding()))
    observed = [name for name in names if module.has_parts(named_metric(name, options), evidence)]
    assert observed == [
        "accuracy",
        "top5",
        "agreement",
        "f1_macro",
        "f1_binary",
        "precision_binary",
        "recall_binary",
        "f1_multilabel",
        "f1_multilabel_micro",
        "log_loss",
        "ece",
        "token_accuracy",
        "pixel_accuracy",
        "iou",
        "dice",
        "mse",
        "rmse",
        "mae",
        "mape",
        "r2",
        "cosine",
        "wer",
        "cer",
        "exact_match",
        "bleu",
        "rouge",
        "map",
        "map50",
    ]


def test_large_samples_run_in_small_batches(tiny: Tiny) -> None:
    spec = TensorSpec("x", "float32", ("batch", FEATURES))
    samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    logits = TensorSpec("logits", "float32", ("batch", CLASSES))
    evidence = Evidence((spec,), logits, samples, samples, None, None, np.zeros(len(samples), bool), 4_000)
    assert module._size(evidence) == module.EVALUATION_BATCH_SIZE
    assert module._size(replace(evidence, sample_bytes=10 * 2**20)) == 3
    assert module._size(replace(evidence, sample_bytes=10 * 2**20, batch_axis=8)) == 8
    sequences = replace(evidence, evaluation=replace(samples, steps=5))
    assert module._size(sequences) == 5 * module.EVALUATION_BATCH_SIZE and module._size(sequences, 2) == 10

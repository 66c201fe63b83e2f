"""Accuracy by batches: no outputs of a variant are kept, and fewer threads or another batch size change no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny, statistics_of
from processors import HERE
from runs import run_in

from tasks.engines.variants import make_variant
from tasks.measure.inventory import take_inventory
from tasks.measure.metrics import reduction
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Rows
from tasks.measure.metrics.reduction import BatchObserver
from tasks.measure.metrics.texts import make_decoder
from tasks.ptq.build_variant import Materials
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.graph.prepare import prepare_graph
from tasks.run.footprint import Footprint
from tasks.run.loaded_run import with_inputs
from tasks.runtimes.ort import open_session
from tasks.trials import measure_accuracy as module
from tasks.trials.measure_accuracy import Reference, _considerate, measure_accuracy
from validators.digests import digest_model
from validators.job.candidate_name import decode
from validators.job.job_data import TextDecoding
from validators.job.metric_facts import METRICS
from validators.job.read_job import parse_job
from validators.records.measurements import Accuracy
from validators.records.run import SessionSettings, Source, Variant
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
        self.order = np.random.default_rng(2).permutation(-(-n // size))
        self.samples = np.concatenate([np.arange(n)[each * size : (each + 1) * size] for each in self.order])
        self.rows: list[Rows] = []

    def look(self, rows: Rows) -> None:
        self.rows.append(rows)


def measured(
    tiny: Tiny, folder: Path, metric: str, watch_of: Callable[[int], BatchObserver] | None = None
) -> tuple[Accuracy, Accuracy]:
    """The tiny model and one with noise on its weights, in a store of their own."""
    noisy = onnx.load(tiny.model)
    for tensor in noisy.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        noise = np.random.default_rng(3).normal(size=array.shape, scale=0.05).astype(array.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array + noise, tensor.name))
    folder.mkdir()
    onnx.save(noisy, folder / "noisy.onnx")
    spec = TensorSpec("x", "float32", ("batch", FEATURES))
    samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    logits, kept = TensorSpec("logits", "float32", ("batch", CLASSES)), np.zeros(len(samples), bool)
    evidence = Evidence((spec,), logits, samples, samples, None, None, kept)
    gates = {"min_sqnr_db": 10.0}
    job = parse_job(tiny.job() | {"metric": metric, "gates": gates}, base=folder)
    run = run_in(folder, job)
    settings = SessionSettings("CPUExecutionProvider", 2)
    variants = [Variant("v", path, digest_model(path), 0, settings) for path in (tiny.model, folder / "noisy.onnx")]
    source = Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file")
    loaded = with_inputs(run, source, evidence, take_inventory("ort-cpu"))
    baseline, _ = measure_accuracy(loaded, variants[0], None)
    reference = Reference(baseline, variants[0])
    return baseline, measure_accuracy(loaded, variants[1], reference, watch_of=watch_of)[0]


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
    assert len(watch.rows) == len(watch.order) > 3 and not np.array_equal(watch.order, np.sort(watch.order))
    scores = np.load(plain[1].scores_path)
    assert 0 < scores.mean() < 1
    np.testing.assert_array_equal(np.concatenate(watch.rows), scores[watch.samples])


def test_metrics_of_the_whole_set_are_not_observed() -> None:
    names: list[str] = list(METRICS)
    observed = [
        name for name in names if module._is_watchable(named_metric(name, Options(0.0, make_decoder(TextDecoding()))))
    ]
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

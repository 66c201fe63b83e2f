"""What a run keeps of coverage and sanity: measured once a variant, the baseline once for all, anew where data differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny, tiny_samples
from onnx import TensorProto, helper, numpy_helper
from runs import run_in

from tasks.measure import coverage, sanity
from tasks.measure.inventory import take_inventory
from tasks.measure.sanity import SANITY_SAMPLES
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.trials.inspect_variant import coverage_of, sanity_of, share_in_convolutions
from tasks.trials.measure_baseline import baseline_variant
from validators.digests import digest_model
from validators.job.read_job import parse_job
from validators.records.measurements import Coverage
from validators.records.run import Source, Variant
from validators.samples.datasets import TensorSpec, load_samples
from validators.samples.evidence import Evidence

Bench = tuple[LoadedRun, Variant]


@pytest.fixture
def bench(tiny: Tiny, tmp_path: Path) -> Bench:
    """A run on the tiny model, and a variant with ranges at run time."""
    spec = TensorSpec("x", "float32", ("batch", FEATURES))
    samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    logits, kept = TensorSpec("logits", "float32", ("batch", CLASSES)), np.zeros(len(samples), bool)
    evidence = Evidence((spec,), logits, samples, samples, None, None, kept)
    run = run_in(tmp_path, parse_job(tiny.job(), base=tmp_path))
    source = Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file")
    run = with_inputs(run, source, evidence, take_inventory("ort-cpu"))
    quantize_dynamic(tiny.model, tmp_path / "variant.onnx", weights=Int8Weights())
    variant = replace(
        baseline_variant(run),
        candidate="int8-dynamic-pc@ort-cpu",
        path=tmp_path / "variant.onnx",
        digest=digest_model(tmp_path / "variant.onnx"),
    )
    return run, variant


def count_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Path]:
    """The models that a function of a module is asked about."""
    asked: list[Path] = []
    real = getattr(module, name)

    def counted(model: Path, *rest: object, **options: object) -> object:
        asked.append(model)
        return real(model, *rest, **options)

    monkeypatch.setattr(module, name, counted)
    return asked


def test_the_kernels_of_the_baseline_are_measured_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """For two variants one profile of the baseline; for the same variant again, none at all."""
    run, variant = bench
    asked = count_calls(monkeypatch, coverage, "profile_kernels")
    found, had = coverage_of(run, variant)
    assert (found.share, had) == (1.0, False)
    assert found.kernels_path is not None and found.kernels_path.exists()
    other = replace(variant, session=variant.session.without_spinning())
    assert coverage_of(run, other)[1] is False
    assert asked == [run.source.onnx_path]
    assert coverage_of(run, variant) == (found, True)


def test_kernels_of_another_provider_are_no_baseline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline runs on the CPU provider: what another one reorders was not inserted by quantization."""
    run, variant = bench
    asked = count_calls(monkeypatch, coverage, "profile_kernels")
    monkeypatch.setattr(coverage, "measure_coverage", lambda *_, baseline, folder: Coverage({}, (), (), ()))
    coverage_of(run, replace(variant, session=replace(variant.session, provider="X")))
    assert asked == []


def test_the_baseline_is_asked_once_and_stands_beside_each(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variants, three sessions; the answers are those of the first evaluation samples."""
    run, variant = bench
    model = onnx.load(variant.path)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("hidden"))
    onnx.save(model, variant.path)
    asked = count_calls(monkeypatch, sanity, "ask")
    found, had = sanity_of(run, variant)
    assert not had and found.samples == SANITY_SAMPLES
    assert [answers.name for answers in found.baseline] == ["logits"]
    assert [answers.name for answers in found.variant] == ["logits", "hidden"]
    assert found.variant[0].shape == (SANITY_SAMPLES, CLASSES)
    sanity_of(run, replace(variant, session=variant.session.without_spinning()))
    assert asked == [run.source.onnx_path, variant.path, variant.path]
    assert sanity_of(run, variant) == (found, True)


def test_sizes_that_depend_on_values_are_found_on_other_samples(bench: Bench, tmp_path: Path) -> None:
    """The variant is asked for as many samples as before."""
    run, variant = bench
    paths = [tmp_path / "source-places.onnx", tmp_path / "variant-places.onnx"]
    for path, before in zip(paths, (run.source.onnx_path, variant.path), strict=True):
        model = onnx.load(before)
        model.graph.node.append(onnx.helper.make_node("Relu", ["logits"], ["positive"]))
        model.graph.node.append(onnx.helper.make_node("NonZero", ["positive"], ["places"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("places", onnx.TensorProto.INT64, [2, None]))
        onnx.save(model, path)
    source = replace(run.source, onnx_path=paths[0], digest=digest_model(paths[0]))
    variant = replace(variant, path=paths[1], digest=digest_model(paths[1]))
    found, _ = sanity_of(replace(run, source=source), variant)
    assert [answers.shape for answers in found.baseline] == [(SANITY_SAMPLES, CLASSES), (2, None)]
    size = found.variant[1].shape
    assert size is not None and size[0] == 2 and size[1] is not None


def test_other_samples_are_another_entry(bench: Bench, tmp_path: Path) -> None:
    """Shapes and answers hang on the data as well as on the model."""
    run, variant = bench
    sanity_of(run, variant)
    np.savez(tmp_path / "other.npz", **tiny_samples(50, 99))
    samples = load_samples(tmp_path / "other.npz", run.evidence.inputs, label="label", role="evaluation")
    other = replace(run, evidence=replace(run.evidence, evaluation=samples))
    assert sanity_of(other, variant)[1] is False
    assert coverage_of(other, variant)[1] is False


def test_multiply_accumulates_in_convolutions_are_counted(bench: Bench, tmp_path: Path) -> None:
    """A convolution of 3 x 3 from 4 to 2 channels of 4 x 4 pixels, and a product with 32 x 4: 1,152 and 128 a sample."""
    run, _ = bench
    assert share_in_convolutions(run) == 0.0
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        helper.make_node("Conv", ["image", "kernel"], ["filtered"], "filter", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["filtered", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "head"], ["logits"], "product"),
    ]
    weights = {
        "shape": np.array([-1, 4, 4, 4]),
        "flat": np.array([-1, 32]),
        "kernel": np.ones((2, 4, 3, 3), np.float32),
        "head": np.ones((32, CLASSES), np.float32),
    }
    sizes = ("x", FEATURES), ("logits", CLASSES)
    floats = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in sizes}
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [floats["x"]], [floats["logits"]], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "conv.onnx"
    )
    run = replace(run, source=replace(run.source, onnx_path=tmp_path / "conv.onnx"))
    assert share_in_convolutions(run) == pytest.approx(0.9)

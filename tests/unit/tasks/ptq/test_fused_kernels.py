"""Fused kernels of the float operators: a variant keeps those that the runtime makes of its source, at any opset."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_models import LENGTH, TOKENS, transformer
from numpy.typing import NDArray
from processors import HERE

from tasks.engines.variants import make_variant, session_settings
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.prepare import fuse_graph, prepare_graph
from tasks.ptq.graph.upgrade import upgrade_opset
from tasks.runtimes.ort import open_session, run_outputs
from validators.errors import CandidateRefused
from validators.graph.source_graph import LEAST_OPSET
from validators.job.candidate_name import decode
from validators.records.run import SessionSettings
from validators.samples.datasets import DataFile, Samples

IDS = np.random.default_rng(0).integers(0, TOKENS, (32, LENGTH))
SAMPLES = Samples(DataFile(Path("x"), "", len(IDS)), {"input_ids": IDS}, None)
# One kernel may take in the bias or the sum before it, or be the INT8 form of the other.
FAMILY = {
    **dict.fromkeys(("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"), "norm"),
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), "gelu"),
    **dict.fromkeys(("Attention", "QAttention", "MultiHeadAttention"), "attention"),
}
PLAIN = (
    "int8-static-minmax-pc@ort-cpu",
    "int8-static-minmax-pc-all@ort-cpu",
    "int8-static-minmax-pc-smooth@ort-cpu",
    "int8-static-minmax-pc-bc@ort-cpu",
    "int8-dynamic-pc@ort-cpu",
    "int8-dynamic-pc-smooth@ort-cpu",
    "int4-g32-rtn@ort-cpu",
)
FUSED = ("fp32-fused@ort-cpu", "int8-dynamic-pc+fused@ort-cpu", "int4-g32-rtn+fused@ort-cpu")


def kernels(model: Path, settings: SessionSettings, folder: Path) -> Counter[str]:
    """How many fused kernels of each family the runtime makes of a model."""
    with open_session(model, settings, optimized_model=folder / "optimized.onnx"):
        pass
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return Counter(FAMILY[node.op_type] for node in nodes if node.op_type in FAMILY)


def logits(model: Path, settings: SessionSettings) -> NDArray[np.float32]:
    with open_session(model, settings) as session:
        return run_outputs(session, {"input_ids": IDS}, ["logits"])[0]


def materials_of(source: Path, folder: Path) -> Materials:
    """What a run would make of a source before its candidates."""
    prepared, batches = folder / "prepared.onnx", [{"input_ids": IDS}]
    prepare_graph(source, prepared)

    @cache
    def fused() -> Path:
        fuse_graph(source, folder / "fused.onnx")
        return folder / "fused.onnx"

    @cache
    def smoothed() -> SmoothedGraph:
        smooth(prepared, folder / "smoothed.onnx", read_channels(prepared, batches), symmetric=False, alphas=(0.5,))
        return SmoothedGraph(folder / "smoothed.onnx", 0, 0)

    @cache
    def statistics(of_smoothed: bool) -> Path:
        path = folder / f"{of_smoothed}.npz"
        calibrate(smoothed().path if of_smoothed else prepared, SAMPLES, path, threads=1, max_memory_mb=500)
        return path

    return Materials(
        prepared=lambda: prepared,
        fused=fused,
        smoothed=smoothed,
        statistics=statistics,
        ranking=lambda candidate: (),
        batches=lambda: batches,
        grams=lambda candidate, model: {},
        processor=HERE,
    )


@pytest.fixture(scope="module", params=[11, 13, 14, 17])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer that torch exported, with the layer norms of plain operators below opset 17, as a run takes it in."""
    folder = tmp_path_factory.mktemp(f"opset{request.param}")
    exported = transformer(folder / "exported.onnx", request.param)
    if request.param >= LEAST_OPSET:
        return exported
    upgrade_opset(exported, folder / "upgraded.onnx", lambda inputs: {"input_ids": IDS})
    return folder / "upgraded.onnx"


def test_each_variant_has_the_fused_kernels_of_its_source(source: Path, tmp_path: Path) -> None:
    """Five layer norms, two GELUs; the logits stay close to those of the source."""
    settings = session_settings(decode("fp32-fused@ort-cpu"), 1)
    expected, exact = kernels(source, settings, tmp_path), logits(source, settings)
    assert expected == {"norm": 5, "gelu": 2}
    materials = materials_of(source, tmp_path)
    found, errors = {}, {}
    for name in PLAIN:
        variant = make_variant(decode(name), materials, tmp_path, threads=1)
        found[name] = kernels(variant.path, variant.session, tmp_path)
        errors[name] = float(np.abs(logits(variant.path, variant.session) - exact).max() / np.abs(exact).max())
    assert found == dict.fromkeys(PLAIN, expected)
    assert max(errors.values()) < 0.2, errors


def test_a_fused_form_has_the_kernels_of_any_opset(source: Path, tmp_path: Path) -> None:
    materials = materials_of(source, tmp_path)
    settings = session_settings(decode("fp32-fused@ort-cpu"), 1)
    exact = logits(source, settings)
    for name in FUSED:
        variant = make_variant(decode(name), materials, tmp_path, threads=1)
        found = kernels(variant.path, variant.session, tmp_path)
        assert (name, found["norm"], found["gelu"], found["attention"]) == (name, 5, 2, 2)
        assert np.abs(logits(variant.path, variant.session) - exact).max() < 0.2 * np.abs(exact).max(), name


def test_a_fused_form_keeps_the_embedding_in_int8(source: Path, tmp_path: Path) -> None:
    """Both tables, of tokens and of positions, as in the plain form, whose file is as small."""
    materials = materials_of(source, tmp_path)
    tables, sizes = {}, {}
    for name in ("int8-dynamic-pc@ort-cpu", "int8-dynamic-pc+fused@ort-cpu"):
        variant = make_variant(decode(name), materials, tmp_path, threads=1)
        graph = onnx.load(variant.path).graph
        tables[name] = Counter(node.op_type for node in graph.node)["GatherBlockQuantized"]
        sizes[name] = sum(tensor.ByteSize() for tensor in graph.initializer)
    assert list(tables.values()) == [2, 2]
    plain, fused = sizes.values()
    assert fused < 1.05 * plain


def test_a_source_with_a_name_of_the_fusions_is_refused(tmp_path: Path) -> None:
    """Two weights of one name would be one for the runtime: another function, or no model at all."""
    model = onnx.load(transformer(tmp_path / "model.onnx", 17))
    name = "Attention_0_qkv_weight"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), name))
    model.graph.node.append(onnx.helper.make_node("Mul", ["logits", name], ["doubled"], name="double"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(CandidateRefused, match=name):
        fuse_graph(tmp_path / "model.onnx", tmp_path / "fused.onnx")
    assert not (tmp_path / "fused.onnx").exists()


@pytest.mark.parametrize("left", [False, True])
def test_fused_attention_reads_a_mask_padded_on_either_side(tmp_path: Path, left: bool) -> None:
    model = transformer(tmp_path / "model.onnx", 17, masked=True)
    assert fuse_graph(model, tmp_path / "fused.onnx")["Attention"] == 2
    lengths = np.random.default_rng(1).integers(4, LENGTH, len(IDS))
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    feeds = {"input_ids": IDS, "attention_mask": np.ascontiguousarray(mask[:, ::-1]) if left else mask}
    found = []
    for path in (model, tmp_path / "fused.onnx"):
        with open_session(path, SessionSettings("CPUExecutionProvider", 1)) as session:
            found.append(run_outputs(session, feeds, ["logits"])[0])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)

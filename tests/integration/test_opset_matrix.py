"""Models that torch exports at old and new opsets reach the forms of every target; the whole matrix is in `benchmarks/`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model
from exported_models import LENGTH, TOKENS, transformer
from opset_matrix import ENGINES, open_bench
from processors import HERE

from tasks.engines.variants import make_variant
from tasks.ptq.build_variant import Materials
from tasks.ptq.graph.prepare import fuse_graph, prepare_graph
from tasks.ptq.graph.upgrade import upgrade_opset
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode

# One of each precision and target that its opset could keep from being made.
CANDIDATES = (
    "int8-static-minmax-pc@ort-cpu",
    "int8-dynamic-pc@ort-cpu",
    "fp8-amax-pc@ort-cpu",
    "int8-static-minmax-pc@openvino",
    "fp16@tensorrt",
    "int8-static-minmax-pc@tensorrt",
    "int4-g64-rtn@tensorrt",
    "int4-g32-rtn@ort-cuda",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "opset"),
    [
        ("transformer", 11),
        ("transformer", 14),
        ("transformer", 17),
        ("cnn", 13),
        ("cnn", 18),
        ("lstm", 11),
        ("lstm", 17),
    ],
)
def test_a_model_of_any_opset_reaches_every_target(tmp_path: Path, model: str, opset: int) -> None:
    """Valid files with nearly the source's logits, its fused kernels where a CPU can tell, and no refusal that is wrong."""
    bench = open_bench(model, opset, tmp_path)
    cells = [bench.make(decode(name), tmp_path) for name in CANDIDATES]
    assert [(cell.candidate, cell.outcome, cell.faults) for cell in cells] == [
        (name, "made", ()) for name in CANDIDATES
    ]
    on_gpu = [cell for cell in cells if decode(cell.candidate).target in ("tensorrt", "ort-cuda")]
    assert {cell.opset for cell in on_gpu} == {21}


def test_an_upgraded_transformer_keeps_its_attention(tmp_path: Path) -> None:
    """Its Softmax has the last of four axes, which only the runtime's folding shows: it stays one operator."""
    transformer(tmp_path / "old.onnx", 11)
    ids = np.random.default_rng(0).integers(0, TOKENS, (4, LENGTH))
    upgrade_opset(tmp_path / "old.onnx", tmp_path / "new.onnx", lambda inputs: {"input_ids": ids})
    made = fuse_graph(tmp_path / "new.onnx", tmp_path / "fused.onnx")
    assert made == fuse_graph(tmp_path / "old.onnx", tmp_path / "fused.onnx") and made["Attention"] == 2


def test_the_subset_names_every_target() -> None:
    assert {decode(name).target for name in CANDIDATES} == set(ENGINES)


def test_a_graph_that_cannot_be_upgraded_is_refused(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was wrong, and advice that fits: a file that computes something else is worse than none."""
    model = tiny_model(*tiny.weights)
    model.opset_import[0].version, model.ir_version = 17, 8
    onnx.save(model, tmp_path / "source.onnx")
    prepare_graph(tmp_path / "source.onnx", tmp_path / "prepared.onnx")
    convert = onnx.version_converter.convert_version

    def wrong(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        converted = convert(model, opset)
        next(node for node in converted.graph.node if node.op_type == "Relu").op_type = "Abs"
        return converted

    monkeypatch.setattr(onnx.version_converter, "convert_version", wrong)

    def no(*_: object) -> object:
        raise AssertionError("not needed to find that out")

    materials = Materials(
        prepared=lambda: tmp_path / "prepared.onnx",
        fused=no,
        smoothed=no,
        statistics=no,
        ranking=no,
        batches=lambda: [{"x": np.load(tiny.calibration)["x"][:8]}],
        grams=no,
        processor=HERE,
    )  # type: ignore[arg-type]  # none of them returns
    with pytest.raises(CandidateRefused, match="a model of opset 17; upgraded, its output 'logits' differs") as caught:
        make_variant(decode("fp16@tensorrt"), materials, tmp_path, threads=1)
    assert caught.value.kind == "unsupported" and "export again with opset 21" in caught.value.fix

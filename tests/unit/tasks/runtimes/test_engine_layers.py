"""The layers of an engine as the pinned version tells them: texts stored from its own builds, against tables read by eye."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine_models import PROFILE, build, int4_product, int8_product

from tasks.engines.tensorrt.layers import layers_in_log, parse_layers_json, parse_layers_text, with_times
from validators.errors import CandidateRefused
from validators.records.engines import EngineLayer

GOLDEN = Path(__file__).parents[3] / "support" / "tensorrt_layers"
SHAPES = EngineLayer("__mye77_0_myl0_0", "shape_call", (), (), (), "", ())
HALF, INT8 = ("float16",), ("int8",)
INT8_LAYERS = (
    SHAPES,
    EngineLayer(
        "__myl_MulMinMaxRounCast_myl0_1",
        "kgen",
        HALF,
        HALF,
        INT8,
        "__myl_MulMinMaxRounCast_0x05b63a68087b927c89625a0409d79077",
        ("x_q",),
    ),
    EngineLayer(
        "o_U6_myl0_2", "gemm", INT8, ("int8", "float32", "float32"), HALF, "__myelin_CASK_STUB", ("o", "x_d", "w_d")
    ),
    EngineLayer(
        "__myl_Mul_myl0_3",
        "kgen",
        HALF,
        HALF,
        HALF,
        "__myl_Mul_0x3eacde0966e81018e2f72fb2068116b8",
        ("o", "x_d", "w_d"),
    ),
)
INT4_LAYERS = (
    replace(SHAPES, name="__mye37_0_myl0_0"),
    EngineLayer("__myl_ReplCastMulCastFc_myl0_1", "runtime_fusion", HALF, ("int4", "float16"), HALF, "", ("w_d", "o")),
)


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "layers"), [("int8_product", INT8_LAYERS), ("int4_product", INT4_LAYERS)])
def test_layers_are_those_of_the_text(name: str, layers: tuple[EngineLayer, ...]) -> None:
    assert parse_layers_text(golden(name)) == layers


def test_names_with_the_texts_own_words_in_them() -> None:
    """A node called `a, b [c] LayerType: d`, as ONNX allows."""
    gemm = parse_layers_text(golden("odd_name"))[2]
    assert gemm.name == "a, b [c] LayerType: d_myl0_2" and gemm.nodes == ("a, b [c] LayerType: d", "x_d", "w_d")
    assert replace(gemm, name="o_U6_myl0_2", nodes=("o", "x_d", "w_d")) == INT8_LAYERS[2]


def test_the_installed_version_writes_the_same_text(tmp_path: Path) -> None:
    """Numbers in names differ from build to build."""
    pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt-aot is not installed")
    wide = {"x": ((1, 128), (4, 128), (8, 128))}
    for model, profile, name in ((int8_product, PROFILE, "int8_product"), (int4_product, wide, "int4_product")):
        plan = build(model(tmp_path / "model.onnx"), profile)
        fresh = layers_in_log(text for _, text in plan.messages)
        stored = parse_layers_text(golden(name))
        assert [replace(layer, name="", tactic="") for layer in fresh] == [
            replace(layer, name="", tactic="") for layer in stored
        ]


def test_entries_may_be_split_by_controls_and_end_in_a_suffix() -> None:
    """Both seen in engines of real models: of fused attention, and of a convolution that became a product."""
    line = "Name: a, LayerType: kgen, Inputs: [], Constants: [], Outputs: [], TacticName: t, StreamId: 2, EventId: 7, "
    text = f"Layers:\n{line}Metadata: [ONNX Layer: p]\x1e[ONNX Layer: q]\x1f[ONNX Layer: r]__gemm_from_conv1x1\n\nMore"
    assert parse_layers_text(text) == (EngineLayer("a", "kgen", (), (), (), "t", ("p", "q", "r")),)


def test_a_log_without_the_text_has_no_layers() -> None:
    assert layers_in_log(["Building", "Done"]) == ()
    assert layers_in_log(["Layers:\n", golden("int8_product")]) == INT8_LAYERS


@pytest.mark.parametrize("text", ["Layers:\nName: a, Kind: gemm", "Layers:\nsomething else"])
def test_another_format_is_refused(text: str) -> None:
    with pytest.raises(CandidateRefused, match=r"tensorrt_rtx 1\.7") as caught:
        parse_layers_text(text)
    assert caught.value.kind == "unsupported"


# As NVIDIA's documentation of TensorRT 11 describes the inspector; never seen from the library itself.
INSPECTED = {
    "Layers": [
        {
            "Name": "conv1 + relu",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "x", "Dimensions": [1, 3, 8, 8], "Format": "Channel major", "Datatype": "Int8"}],
            "Outputs": [{"Name": "y", "Dimensions": [1, 8, 8, 8], "Format": "Channel major", "Datatype": "Half"}],
            "Weights": {"Type": "Int8", "Count": 216},
            "TacticName": "sm90_xmma_fprop",
            "Metadata": "[ONNX Layer: conv1]\x1e[ONNX Layer: relu]",
        },
        {
            "Name": "head",
            "LayerType": "gemm",
            "Inputs": [{"Name": "y", "Format": "Row major", "DataType": "FP8"}],
            "Constants": [{"Name": "w", "DataType": "FP8"}, {"Name": "alpha", "DataType": "FP32"}],
            "Outputs": [{"Name": "o", "DataType": "BF16"}],
        },
    ],
    "I/O Tensors": [{"Name": "x"}],
}


def test_layers_of_the_inspector() -> None:
    assert parse_layers_json(json.dumps(INSPECTED)) == (
        EngineLayer("conv1 + relu", "CaskConvolution", INT8, INT8, HALF, "sm90_xmma_fprop", ("conv1", "relu")),
        EngineLayer("head", "gemm", ("fp8",), ("fp8", "float32"), ("bfloat16",), "", ()),
    )


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"Layers": ["only a name"]}', '{"Layers": [{}]}'])
def test_another_json_is_refused(text: str) -> None:
    """Names alone are what an engine tells that was built without DETAILED verbosity."""
    with pytest.raises(CandidateRefused, match="inspector"):
        parse_layers_json(text)


def test_times_go_to_layers_by_name() -> None:
    timed = with_times(INT8_LAYERS, {"o_U6_myl0_2": 0.5, "__myl_Mul_myl0_3": 0.125, "another": 9.0})
    assert [layer.microseconds for layer in timed] == [0.0, 0.0, 500.0, 125.0]

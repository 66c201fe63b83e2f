"""Files for OpenVINO that say one precision and run in another, and some that are what they say, as in `fallback_plants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx
from fallback_plants import (
    CLASSES,
    SIDE,
    Draft,
    Plant,
    convolution,
    einsum,
    gemm,
    matmul,
    reshaped_weight,
    transposed_convolution,
    transposed_input,
)

from tasks.engines.variants import session_settings
from validators.job.candidate_name import decode
from validators.records.verdicts import Outcome

STATIC, DYNAMIC, FP32, BF16 = (
    f"{recipe}@openvino" for recipe in ("int8-static-minmax-pc", "int8-dynamic-pc", "fp32-fused", "bf16")
)
SETTINGS = {label: session_settings(decode(label), 1) for label in (STATIC, DYNAMIC, FP32, BF16)}
# What a user gets who names no precision.
UNNAMED = replace(
    SETTINGS[FP32],
    provider_options={
        key: value for key, value in SETTINGS[FP32].provider_options.items() if key != "INFERENCE_PRECISION_HINT"
    },
)


def scaled_along_inputs(draft: Draft) -> onnx.ModelProto:
    """Conv with a scale for each input channel, along which the kernel sums."""
    weight = draft.weight("w", CLASSES, 4, 3, 3, axis=1, depth=36)
    draft.node("Conv", [draft.pair("x", "int8"), weight], "product")
    return draft.model("product", 4, SIDE, SIDE)


def sine_behind_pair(draft: Draft) -> onnx.ModelProto:
    """A function that has no integer kernel between the pair and the Conv."""
    weight = draft.weight("w", CLASSES, 4, 3, 3, axis=0, depth=36)
    draft.node("Conv", [draft.node("Sin", [draft.pair("x", "int8")], "sine"), weight], "product")
    return draft.model("product", 4, SIDE, SIDE)


def in_float(_draft: Draft) -> onnx.ModelProto:
    return matmul(Draft(quantized=False))


def _plant(name: str, build: Callable[[Draft], onnx.ModelProto], verdict: Outcome, label: str = STATIC) -> Plant:
    return Plant(f"OpenVINO: {name}", build, verdict, label, SETTINGS[label])


OPENVINO_PLANTS = (
    _plant("Gemm, scales for each output", lambda draft: gemm(draft, dtype="int8"), "pass"),
    _plant("Gemm, zero points of 128", gemm, "pass"),
    _plant("Conv, scales for each output channel", lambda draft: convolution(draft, dtype="int8"), "pass"),
    _plant("MatMul, weights only", lambda draft: matmul(draft, activations=False), "pass", DYNAMIC),
    _plant("Transpose behind the pair", transposed_input, "pass"),
    _plant("Reshape behind the weight's DequantizeLinear", reshaped_weight, "pass"),
    _plant("Einsum", einsum, "pass"),
    _plant("a float file in bfloat16, asked for", in_float, "pass", BF16),
    _plant("Sin between the pair and Conv", sine_behind_pair, "fail"),
    _plant("MatMul, activations only", lambda draft: matmul(draft, weights=False), "fail"),
    _plant("Conv, weights only", lambda draft: convolution(draft, activations=False), "fail"),
    _plant(
        "Conv, weights only, ranges at run time", lambda draft: convolution(draft, activations=False), "fail", DYNAMIC
    ),
    _plant("Gemm, scales along K", lambda draft: gemm(draft, axis=1, dtype="int8"), "fail"),
    _plant("Conv, scales along K", scaled_along_inputs, "fail"),
    _plant("Gemm, INT16 activations", lambda draft: gemm(draft, dtype="int16"), "fail"),
    _plant("ConvTranspose", transposed_convolution, "fail"),
    _plant("a float file", in_float, "fail"),
    replace(_plant("a float file in float32, bfloat16 asked for", in_float, "fail", BF16), settings=SETTINGS[FP32]),
    replace(_plant("a float file in bfloat16, the default", in_float, "fail", FP32), settings=UNNAMED),
)

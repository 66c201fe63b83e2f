"""FP8 E4M3: weights and the inputs of MatMul, Gemm and Conv through Q/DQ pairs with scale = amax / 448."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from tasks.ptq.qdq import Report, quantize_qdq
from tasks.ptq.range_methods import Range
from validators.errors import CandidateRefused
from validators.onnx_graph import opset_of
from validators.recipe import Candidate

# QuantizeLinear takes FP8 from this opset on.
LEAST_OPSET = 19


def quantize_fp8(
    model: Path, ranges: Mapping[str, Range], candidate: Candidate, variant: Path, *, keep_float: Collection[str] = ()
) -> Report:
    """Write the Q/DQ form of a float model; activation scales come from their minmax `ranges`, per tensor.

    For `ort-cpu` it simulates what the kernels of `tensorrt` compute.

    Raises:
        CandidateRefused: `unsupported`: no node of the model could be quantized, or its opset has no FP8; `invalid`: as
            `quantize_qdq` says.
    """
    opset = opset_of(onnx.load(model, load_external_data=False))
    if opset < LEAST_OPSET:
        raise CandidateRefused(
            kind="unsupported",
            found=f"opset {opset}",
            expected=f"opset {LEAST_OPSET} or above, the first with FP8 Q/DQ",
            fix="export the model with a newer opset",
        )
    return quantize_qdq(
        model,
        variant,
        ranges,
        target="ort-cpu" if candidate.target == "ort-cpu" else "tensorrt",
        every_operator=False,
        per_channel=candidate.granularity == "pc",
        activation="e4m3",
        weight_bits=8,
        keep_float=keep_float,
    )

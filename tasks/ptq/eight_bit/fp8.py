"""FP8 E4M3 quantization of the weights and inputs of MatMul, Gemm and Conv, by Q/DQ pairs with scale = amax / 448."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from validators.job.candidate_name import Candidate
from validators.targets import facts_of


def quantize_fp8(
    model: Path, ranges: Mapping[str, Range], candidate: Candidate, variant: Path, *, keep_float: Collection[str] = ()
) -> QdqReport:
    """Write the FP8 Q/DQ form of a float model of opset 19 or above; activation scales come from minmax `ranges`, per tensor.

    For `ort-cpu` the variant simulates the kernels of `tensorrt`.

    Raises:
        CandidateRefused: `unsupported`: no node of the model could be quantized; `invalid`: as in `quantize_qdq`.
    """
    return quantize_qdq(
        model,
        variant,
        ranges,
        target="ort-cpu" if facts_of(candidate.target).pairs == "ort-cpu" else "tensorrt",
        every_operator=False,
        activation="e4m3",
        weights=Int8Weights(candidate.granularity == "pc"),
        keep_float=keep_float,
    )

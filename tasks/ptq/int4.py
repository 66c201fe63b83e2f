"""INT4 weight-only: blocks of weights along K with one scale each, run by the MatMulNBits kernel."""

from __future__ import annotations

from pathlib import Path

import onnx

from tasks.ptq.graph import save_model, scratch, split_gemm
from validators.errors import CandidateRefused
from validators.recipe import Candidate

# Level 4 lets the kernel multiply in INT8 (activations quantized by block at run time): on a CPU it is several times
# faster than level 0, which dequantizes to float. It is part of the variant: it changes the numbers.
ACCURACY_LEVEL = 4


def quantize_weights(float_model: Path, candidate: Candidate, variant: Path) -> dict[str, int]:
    """Replace every MatMul and Gemm with a constant weight by MatMulNBits: 4-bit, symmetric, round to nearest.

    Raises:
        CandidateRefused: `unsupported`: no node of the model could be quantized.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(float_model)
    split = split_gemm(model.graph)
    with scratch():
        quantizer = MatMulNBitsQuantizer(
            model, block_size=candidate.block_size or 32, is_symmetric=True, accuracy_level=ACCURACY_LEVEL
        )
        quantizer.process()
    quantized = quantizer.model.model
    count = sum(node.op_type == "MatMulNBits" for node in quantized.graph.node)
    if not count:
        raise CandidateRefused(
            kind="unsupported",
            found="no MatMul or Gemm with a constant weight",
            expected="at least one: INT4 weight-only exists for these alone",
            fix="take an INT8 candidate for this model",
        )
    save_model(quantized, variant)
    return {"Gemm split into MatMul and Add": split, "MatMul in INT4": count}

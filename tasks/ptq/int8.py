"""INT8 with ranges at run time, by ONNX Runtime's own quantizer; `qdq.py` has the form with calibrated ranges."""

from __future__ import annotations

from pathlib import Path

import onnx

from tasks.ptq.graph import EXTERNAL_DATA_BYTES, message_bytes, save_model, scratch, sort_nodes, split_gemm
from validators.errors import CandidateRefused
from validators.recipe import Candidate


def quantize_dynamic(float_model: Path, candidate: Candidate, variant: Path) -> None:
    """Write a model whose weights are INT8 and whose activations are quantized at run time.

    Raises:
        CandidateRefused: `unsupported`: the quantizer cannot process the graph.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as ort_quantize_dynamic

    model = onnx.load(float_model)
    # The tool turns Gemm into MatMul too, but leaves the shape of the weight before its transposition in the graph.
    split_gemm(model.graph)
    with scratch() as folder:
        made = folder / "dynamic.onnx"
        try:
            ort_quantize_dynamic(
                model,
                str(made),
                use_external_data_format=message_bytes(model) > EXTERNAL_DATA_BYTES,
                per_channel=candidate.granularity == "pc",
                weight_type=QuantType.QInt8,
                # Fused operators have no shape inference in onnx; the quantizer asks for a type to assume.
                extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
            )
        except OSError:
            raise  # a disk or a file, which says nothing about the candidate
        except Exception as error:  # the quantizer raises ValueError, KeyError, AttributeError for "not supported"
            raise _refuse(error) from error
        quantized = onnx.load(made)
    sort_nodes(quantized.graph)
    save_model(quantized, variant)


def _refuse(error: Exception) -> CandidateRefused:
    detail = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CandidateRefused(
        kind="unsupported",
        found=f"ONNX Runtime's quantizer fails: {type(error).__name__}: {detail[:300]}",
        expected="a graph whose operators the quantizer knows",
        fix="another scope (without `-all`), the dynamic form, or the unfused graph",
    )

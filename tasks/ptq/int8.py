"""INT8 for ONNX Runtime's CPU kernels: static (Q/DQ with calibrated ranges) and dynamic (ranges at run time)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import onnx

from tasks.ptq.graph import WEIGHT_INPUT, scratch, split_gemm
from tasks.ptq.range_methods import Range
from validators.errors import CandidateRefused
from validators.recipe import Candidate


def quantize_static(
    prepared: Path,
    ranges: Mapping[str, Range],
    candidate: Candidate,
    variant: Path,
    *,
    keep_float: Collection[str] = (),
) -> None:
    """Write a Q/DQ model of the prepared graph with these ranges of its activations; the nodes `keep_float` stay in float.

    Activations are UINT8 and asymmetric (U8S8, what the VNNI and AVX2 kernels multiply natively) unless the candidate asks
    for INT8; weights are INT8 and symmetric. The narrow scope takes in products of two
    activations (attention scores): the tool has no option in Q/DQ form that leaves them out.

    Raises:
        CandidateRefused: `unsupported`: the quantizer cannot process the graph.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantType, save_tensors_data
    from onnxruntime.quantization import quantize_static as ort_quantize_static
    from onnxruntime.quantization.calibrate import TensorsData

    ends = {name: tuple(np.array(end, np.float32) for end in found) for name, found in ranges.items()}
    every = candidate.every_operator
    with scratch() as folder:
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, ends), folder / "ranges.json")
        try:
            ort_quantize_static(
                # As a model, not a path: beside a path the tool writes a file of a fixed name, and two candidates collide.
                onnx.load(prepared),
                str(variant),
                calibration_cache_path=folder / "ranges.json",
                calibrate_method=CalibrationMethod.MinMax,  # what the file holds, however it was found
                op_types_to_quantize=None if every else list(WEIGHT_INPUT),
                nodes_to_exclude=sorted(keep_float),
                per_channel=candidate.granularity == "pc",
                activation_type=QuantType.QInt8 if candidate.signed_activations else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        except OSError:
            raise  # a disk or a file, which says nothing about the candidate
        except Exception as error:  # the quantizer raises ValueError, KeyError, AttributeError for "not supported"
            raise _refuse(error) from error


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
    with scratch():
        try:
            ort_quantize_dynamic(
                model,
                str(variant),
                per_channel=candidate.granularity == "pc",
                weight_type=QuantType.QInt8,
                # Fused operators have no shape inference in onnx; the quantizer asks for a type to assume.
                extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
            )
        except OSError:
            raise
        except Exception as error:  # see quantize_static
            raise _refuse(error) from error


def _refuse(error: Exception) -> CandidateRefused:
    detail = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CandidateRefused(
        kind="unsupported",
        found=f"ONNX Runtime's quantizer fails: {type(error).__name__}: {detail[:300]}",
        expected="a graph whose operators the quantizer knows",
        fix="another scope (without `-all`), the dynamic form, or the unfused graph",
    )

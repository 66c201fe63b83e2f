"""NVIDIA Model Optimizer's quantization of an ONNX graph to INT8; needs `nvidia-modelopt[onnx]`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from modelopt.onnx.quantization import quantize as quantize_graph


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Place Q/DQ pairs by TensorRT's rules; what is not quantized stays in float32."""
    with np.load(calibration) as archive:
        arrays = {name: archive[name] for name in archive.files}
    quantize_graph(
        str(source),
        quantize_mode="int8",
        calibration_data=arrays,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(folder / "model.onnx"),
    )
    return folder / "model.onnx"

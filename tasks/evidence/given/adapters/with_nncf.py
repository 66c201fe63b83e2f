"""NNCF's post-training quantization of an OpenVINO model; needs `nncf` and `openvino`."""

from __future__ import annotations

from pathlib import Path

import nncf
import openvino
from samples import batches


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Call `nncf.quantize` with all samples, for a model of token ids with the settings for transformers."""
    model = openvino.Core().read_model(source)
    has_tokens = any(port.get_element_type().is_integral_number() for port in model.inputs)
    samples = list(batches(calibration))
    quantized = nncf.quantize(
        model,
        nncf.Dataset(samples),
        model_type=nncf.ModelType.TRANSFORMER if has_tokens else None,
        subset_size=len(samples),
    )
    openvino.save_model(quantized, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"

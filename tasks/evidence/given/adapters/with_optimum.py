"""optimum's `ORTQuantizer` with its settings for AVX512-VNNI; needs `optimum-onnx` and `onnxruntime`."""

from __future__ import annotations

from pathlib import Path

from onnxruntime.quantization import CalibrationMethod
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig, CalibrationConfig
from samples import batches


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Calibrate by extremes on all samples, then quantize per channel."""
    quantizer = ORTQuantizer.from_pretrained(source.parent, file_name=source.name)
    settings = AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)
    # It adds the axis of samples again.
    samples = [{name: array[0] for name, array in one.items()} for one in batches(calibration)]
    ranges = quantizer.fit(
        dataset=samples,
        calibration_config=CalibrationConfig("samples", "", "", len(samples), CalibrationMethod.MinMax),
        onnx_augmented_model_name=folder / "augmented.onnx",
        operators_to_quantize=settings.operators_to_quantize,
    )
    quantizer.quantize(save_dir=folder / "out", calibration_tensors_range=ranges, quantization_config=settings)
    (made,) = (folder / "out").glob("*.onnx")
    return made

"""Intel's onnx-neural-compressor, static INT8; for onnxruntime 1.18 and NumPy 1.

Needs `onnx-neural-compressor`, and `prettytable`, `pyyaml`, `requests` and `scipy`, which it does not declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_neural_compressor.data_reader import CalibrationDataReader
from onnx_neural_compressor.quantization import config
from onnx_neural_compressor.quantization import quantize as quantize_graph
from samples import batches


class CalibrationBatches(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """The calibration samples, one by one."""

    def __init__(self, calibration: Path) -> None:
        self._calibration = calibration
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, None at the end."""
        return next(self._left, None)

    def rewind(self) -> None:
        """Begin again."""
        self._left: Iterator[dict[str, Any]] = batches(self._calibration)


def quantize(source: Path, calibration: Path, folder: Path) -> Path:
    """Call its `quantize` with its default settings and all samples."""
    made = folder / "model.onnx"
    quantize_graph(
        str(source), str(made), config.StaticQuantConfig(calibration_data_reader=CalibrationBatches(calibration))
    )
    return made

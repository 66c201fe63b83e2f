"""Ranges of activations, read from calibration samples by ONNX Runtime's calibrators and kept in one file a method."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.ptq.graph import scratch
from validators.datasets import Arrays, Samples
from validators.errors import CandidateRefused
from validators.recipe import RangeMethod

# Histogram calibrators keep every activation of every batch until the end: small batches bound what one step needs.
CALIBRATION_BATCH_SIZE = 8
PERCENTILE = 99.99


def calibrate(
    prepared: Path, samples: Samples, method: RangeMethod, ranges: Path, *, batch_size: int = CALIBRATION_BATCH_SIZE
) -> None:
    """Run the calibration samples through the prepared graph and write the range of every float activation to `ranges`.

    `batch_size` is that of a model whose batch axis is fixed.

    The file is ONNX Runtime's calibration cache (JSON), which covers all operators, so that every static candidate of the
    same method shares it. `minmax` takes the extremes, `percentile` the 99.99th of absolute values, `entropy` the range of
    least Kullback-Leibler divergence.

    Raises:
        CandidateRefused: `invalid`: the runtime cannot run the graph with its activations as outputs.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator, save_tensors_data
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    kind = {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }[method]
    with scratch() as folder:
        try:
            calibrator = create_calibrator(
                prepared,
                sorted({*QLinearOpsRegistry, *QDQRegistry}),
                augmented_model_path=str(folder / "augmented.onnx"),
                calibrate_method=kind,
                extra_options={"percentile": PERCENTILE} if method == "percentile" else {},
            )
            # The calibrators print their progress.
            with contextlib.redirect_stdout(io.StringIO()):
                whole = list(samples.batches(batch_size))
                # The histogram calibrators stack the batches of one call: a smaller last one must come by itself.
                last = [whole.pop()] if len(samples) % batch_size else []
                for batches in filter(None, (whole, last)):
                    calibrator.collect_data(_Reader(iter(batches)))
                save_tensors_data(calibrator.compute_data(), ranges)
        except OSError:
            raise  # a disk or a file, which says nothing about the graph
        except Exception as error:  # the calibrators raise whatever the runtime, numpy or onnx raise
            raise CandidateRefused(
                kind="invalid",
                found=f"{method} calibration fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                expected="a graph whose activations can all be read",
                fix="another range method, or a newer export",
            ) from error


class _Reader:
    """What ONNX Runtime calls a calibration data reader: one batch a call, then None."""

    def __init__(self, batches: Iterator[Arrays]) -> None:
        self._batches = batches

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)

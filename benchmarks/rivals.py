"""What a user would run in place of quantgate on a CPU: ONNX Runtime's own tools, and the recipe that Hugging Face's optimum
gives them for AVX512-VNNI. Each takes the source, calibration batches and the path of the file to write.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader

from validators.samples.datasets import Arrays

Batches = Sequence[Arrays]


class Reader(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """Batches as the calibrators ask for them."""

    def __init__(self, batches: Batches) -> None:
        self._batches: Iterator[Arrays] = iter(batches)

    def get_next(self) -> Arrays | None:
        return next(self._batches, None)


def optimized(source: Path, _batches: Batches, path: Path) -> None:
    """`onnxruntime.transformers.optimizer`, float32."""
    from onnxruntime.transformers import optimizer

    model = optimizer.optimize_model(str(source), model_type="bert", num_heads=0, hidden_size=0, opt_level=1)
    model.save_model_to_file(str(path))


def static_default(source: Path, batches: Batches, path: Path) -> None:
    """`quantize_static(source, path, reader)`: S8S8, per tensor, MinMax."""
    quantize_static(source, path, Reader(batches))


def static_strong(source: Path, batches: Batches, path: Path) -> None:
    """After `quant_pre_process`: per channel, U8S8, MatMul, Gemm and Conv with constant weights."""
    prepared = path.with_name("prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        path,
        Reader(batches),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        extra_options={"MatMulConstBOnly": True},
    )


def dynamic(source: Path, _batches: Batches, path: Path) -> None:
    """`quantize_dynamic`, per channel."""
    quantize_dynamic(source, path, per_channel=True, weight_type=QuantType.QInt8)


def vnni_static(source: Path, batches: Batches, path: Path) -> None:
    """optimum-onnx 0.1.0, `AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)`: every operator, U8S8.

    Its quantizer calls the one of ONNX Runtime with these arguments.
    """
    quantize_static(
        source,
        path,
        Reader(batches),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={
            "WeightSymmetric": True,
            "ActivationSymmetric": False,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
        },
    )


RIVALS: dict[str, Callable[[Path, Batches, Path], None]] = {
    "ORT fp32, transformer-optimized": optimized,
    "ORT static, defaults": static_default,
    "ORT static, strong": static_strong,
    "ORT dynamic": dynamic,
    "optimum VNNI static": vnni_static,
}


def make(name: str, source: Path, calibration: Path, batch_size: int, path: Path) -> str | None:
    """Write the rival's file, in a process of its own: some take all memory. Return why it could not, if so.

    `calibration` is a `.npz` with the model's inputs, samples along axis 0.
    """
    command = [sys.executable, __file__, name, str(source), str(calibration), str(batch_size), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines[-1][:200] if lines else f"exit code {done.returncode}")


def main(name: str, source: str, calibration: str, batch_size: str, path: str) -> None:
    """One rival."""
    size = int(batch_size)
    with np.load(calibration) as archive:
        arrays = {key: archive[key] for key in archive.files if key != "label"}
    count = len(next(iter(arrays.values())))
    batches = [{key: array[at : at + size] for key, array in arrays.items()} for at in range(0, count, size)]
    # The first to go when memory runs out, rather than whoever measures.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    RIVALS[name](Path(source), batches, Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])

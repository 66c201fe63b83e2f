"""PyTorch to ONNX: the export must agree with the program that it came from."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from tasks.runtimes.ort import describe_inputs, open_session
from validators.datasets import Samples, TensorSpec
from validators.errors import SourceError
from validators.records import SessionSettings

# The newest opset that every part of the pinned runtimes reads, with the IR version that belongs to it.
OPSET = 21
IR_VERSION = 10
PARITY_SAMPLES = 16
# Two float32 implementations of the same sums differ by rounding; a wrong operator differs by far more.
PARITY_TOLERANCE = 1e-3


def export_program(program: Path, onnx_path: Path, samples: Callable[[tuple[TensorSpec, ...]], Samples]) -> float:
    """Export a `.pt2` program to `onnx_path` and return the largest absolute difference of their outputs.

    `samples(inputs)` gives the samples to compare on, for the inputs that the export turns out to have.

    Raises:
        SourceError: the program cannot be read or exported, or the export's outputs differ from the program's.
        DataError: the samples do not fit the inputs.
    """
    import torch

    try:
        exported = torch.export.load(program)
        # It also logs that torchvision, which no operator here comes from, is not installed.
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # The exporter warns about its own internals (deprecated calls in its passes), which no user can act on.
            warnings.simplefilter("ignore")
            converted = torch.onnx.export(exported, dynamo=True, opset_version=OPSET, verbose=False)
        assert converted is not None
        model = converted.model_proto
    except Exception as error:  # the exporter raises whatever the operator's conversion raises
        raise SourceError(
            found=f"{program.name} cannot be exported to ONNX: {str(error).splitlines()[0][:300]}",
            expected="an exported program of operators that ONNX has",
            fix="export it to ONNX yourself and log it with mlflow.onnx.log_model",
        ) from error
    model.ir_version = IR_VERSION
    onnx.save(model, onnx_path)
    return _check_parity(exported.module(), onnx_path, samples)


def _check_parity(
    module: Callable[..., object], onnx_path: Path, samples: Callable[[tuple[TensorSpec, ...]], Samples]
) -> float:
    import torch

    with open_session(onnx_path, SessionSettings("CPUExecutionProvider", 0)) as session:
        inputs = describe_inputs(session)
        fixed = inputs[0].shape[0]
        batch = next(samples(inputs).batches(fixed if isinstance(fixed, int) else PARITY_SAMPLES))
        ours = session.run(None, batch)
    with torch.no_grad():
        theirs = module(*(torch.from_numpy(batch[spec.name]) for spec in inputs))
    originals = list(theirs) if isinstance(theirs, tuple | list) else [theirs]
    worst = 0.0
    for mine, original in zip(ours, originals, strict=True):
        assert isinstance(original, torch.Tensor)
        worst = max(worst, float(np.abs(mine.astype(np.float64) - original.numpy().astype(np.float64)).max()))
    scale = max(1.0, *(float(np.abs(output).max()) for output in ours))
    if not worst <= PARITY_TOLERANCE * scale:
        raise SourceError(
            found=f"the ONNX export differs from the PyTorch program by {worst:.3g}",
            expected=f"at most {PARITY_TOLERANCE * scale:.3g} on {len(ours[0])} calibration samples",
            fix="export it to ONNX yourself, check it, and log it with mlflow.onnx.log_model",
        )
    return worst

"""Execution providers, one row each: how they open a model, and how their profile names low-precision kernels.

A package with a target (`validators.targets`) may add a provider. A name without a row is treated as a provider of ONNX
Runtime that computes in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validators.providers import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    GENAI,
    INDUCTOR,
    INDUCTOR_CUDA,
    OPENVINO,
    OPENVINO_DECODER,
    TENSORRT,
)
from validators.records.run import SessionSettings
from validators.targets import installed_targets, load_target

if TYPE_CHECKING:
    from validators.records.measurements import Coverage
    from validators.samples.datasets import Arrays


@dataclass(frozen=True)
class ExecutionProvider:
    """Provider that runs a model; session settings refer to it by `name`.

    `low_precision` are kernels, as ONNX Runtime's profile names them, that multiply 8-bit or 4-bit operands, or weights of
    such; `without_form` are kernels of operators that have no such kernel.
    `opener` returns a `tasks.runtimes.runner.Runner` for a file; without it, an ONNX Runtime session is opened. `coverage`
    reads the coverage of a file under a request, and writes its kernels into a folder; without it, ONNX Runtime's profile is
    read.
    `distributions` names the packages of which one runs the models, by their names in the inventory.
    """

    name: str
    low_precision: frozenset[str] = frozenset()
    without_form: frozenset[str] = frozenset()
    opener: Callable[[Path, SessionSettings], AbstractContextManager[Any]] | None = None
    coverage: Callable[[Path, SessionSettings, Arrays, Path | None], Coverage] | None = None
    distributions: tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")


def provider_of(name: str) -> ExecutionProvider:
    """Return a provider by its name.

    Raises:
        JobError: an installed package's target does not load.
    """
    if name in PROVIDERS:
        return PROVIDERS[name]
    brought = (load_target(target).runtime for target in installed_targets())
    return next((one for one in brought if one.name == name), ExecutionProvider(name))


def _open_engine(model: Path, settings: SessionSettings) -> AbstractContextManager[Any]:
    # Few machines have TensorRT.
    from tasks.runtimes.engines.runner import open_engine

    return open_engine(model, settings)


def _open_openvino(model: Path, settings: SessionSettings) -> AbstractContextManager[Any]:
    from tasks.runtimes.openvino.session import open_model

    return open_model(model, settings)


def _openvino_coverage(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    from tasks.runtimes.openvino.coverage import measure_openvino

    return measure_openvino(model, settings, batch, folder)


def _open_openvino_decoder(model: Path, settings: SessionSettings) -> AbstractContextManager[Any]:
    from tasks.runtimes.openvino.decoders import open_decoder

    return open_decoder(model, settings)


def _openvino_decoder_coverage(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    from tasks.runtimes.openvino.coverage import measure_openvino
    from tasks.runtimes.openvino.decoders import open_decoder

    return measure_openvino(model, settings, batch, folder, open_decoder)


def _open_inductor(model: Path, settings: SessionSettings) -> AbstractContextManager[Any]:
    from tasks.runtimes.inductor.session import open_package

    return open_package(model, settings)


def _inductor_coverage(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    from tasks.runtimes.inductor.coverage import measure_inductor

    return measure_inductor(model, settings, batch, folder)


def _open_genai(model: Path, settings: SessionSettings) -> AbstractContextManager[Any]:
    from tasks.runtimes.genai.session import open_decoder

    return open_decoder(model, settings)


def _genai_coverage(model: Path, settings: SessionSettings, batch: Arrays, folder: Path | None) -> Coverage:
    from tasks.runtimes.genai.session import measure_genai

    return measure_genai(model, settings, batch, folder)


# Integer and low-bit kernels of ONNX Runtime 1.31, from its lists of kernels (OperatorKernels.md). Kernels that do not multiply
# compute on integers what a float model computes in float; those that only move integers about (Transpose, MaxPool) are not
# among them, nor are conversions.
_CPU_KERNELS = frozenset(
    {
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "QAttention",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "ConvInteger",
        "MatMulNBits",
        "QEmbedLayerNormalization",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
    }
)
# Operators that its lists have in float alone. Recurrent layers of many units are rewritten (`tasks/ptq/eight_bit/gru.py`).
_CPU_FLOAT = frozenset({"ConvTranspose", "GRU", "RNN"})
# It has no QLinearConv and no QLinearMatMul: a Q/DQ file runs there in float, or by another provider.
_CUDA_KERNELS = frozenset(
    {
        "MatMulNBits",
        "QAttention",
        "QOrderedMatMul",
        "QOrderedAttention",
        "QOrderedLongformerAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "MatMulInteger",
        "GemmFloat8",
        "MatMulBlockQuantizedFp8Weight",
    }
)

PROVIDERS: dict[str, ExecutionProvider] = {
    provider.name: provider
    for provider in (
        ExecutionProvider(CPU_PROVIDER, _CPU_KERNELS, _CPU_FLOAT),
        ExecutionProvider(OPENVINO, opener=_open_openvino, coverage=_openvino_coverage, distributions=("openvino",)),
        ExecutionProvider(
            OPENVINO_DECODER,
            opener=_open_openvino_decoder,
            coverage=_openvino_decoder_coverage,
            distributions=("openvino",),
        ),
        ExecutionProvider(INDUCTOR, opener=_open_inductor, coverage=_inductor_coverage, distributions=("torch",)),
        # Its kernels are those of ONNX Runtime.
        ExecutionProvider(
            GENAI,
            _CPU_KERNELS,
            _CPU_FLOAT,
            opener=_open_genai,
            coverage=_genai_coverage,
            distributions=("onnxruntime-genai",),
        ),
        ExecutionProvider(CUDA_PROVIDER, _CUDA_KERNELS),
        ExecutionProvider(TENSORRT, opener=_open_engine),
        ExecutionProvider(INDUCTOR_CUDA, opener=_open_inductor, coverage=_inductor_coverage, distributions=("torch",)),
    )
}

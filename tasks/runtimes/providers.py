"""Execution providers, one row each: how they open a model, and how their profile names low-precision kernels.

A package with a target (`validators.targets`) may add a provider. A name without a row is treated as a provider of ONNX
Runtime that computes in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tasks.runtimes import openvino
from validators.providers import CPU_PROVIDER, CUDA_PROVIDER, OPENVINO_PROVIDER, ORT_TENSORRT_PROVIDER, TENSORRT
from validators.records.run import SessionSettings
from validators.targets import installed_targets, load_target

if TYPE_CHECKING:
    import onnxruntime as ort


class Plugin(Protocol):
    """A provider in a package of its own, which is registered with ONNX Runtime; a module has these functions."""

    def find_device(self) -> ort.OrtEpDevice:
        """Register the provider, and return the device that sessions ask for.

        Raises:
            CandidateRefused: `unsupported`: the package is missing or has no device here.
        """

    def provider_options(self, threads: int) -> dict[str, str]:
        """Return the options of a session with this number of threads."""

    def library_path(self) -> str:
        """Return the library to register.

        Raises:
            CandidateRefused: `unsupported`: the package is missing.
        """

    def describe_plugin(self, threads: int) -> dict[str, Any]:
        """Return what a consumer needs: `distribution`, `version`, `module` and `options`."""


@dataclass(frozen=True)
class ExecutionProvider:
    """Provider that runs a model; session settings refer to it by `name`.

    `low_precision` are kernels, as ONNX Runtime's profile names them, that multiply 8-bit or 4-bit operands, or weights of
    such; `without_form` are kernels of operators that have no such kernel.
    `is_compiled`: the provider runs what it takes of a graph as one node, so the profile has no kernel types.
    `plugin` is set for a provider in a package of its own. `opener` returns a `tasks.runtimes.runner.Runner` for a file;
    without it, an ONNX Runtime session is opened.
    """

    name: str
    low_precision: frozenset[str] = frozenset()
    without_form: frozenset[str] = frozenset()
    is_compiled: bool = False
    plugin: Plugin | None = None
    opener: Callable[[Path, SessionSettings], AbstractContextManager[Any]] | None = None


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
        ExecutionProvider(OPENVINO_PROVIDER, is_compiled=True, plugin=openvino),
        ExecutionProvider(CUDA_PROVIDER, _CUDA_KERNELS),
        # The profile shows a graph compiled by TensorRT as one kernel, TRTKernel_graph_<number>.
        ExecutionProvider(ORT_TENSORRT_PROVIDER, is_compiled=True),
        ExecutionProvider(TENSORRT, opener=_open_engine),
    )
}

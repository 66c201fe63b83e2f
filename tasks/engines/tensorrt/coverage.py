"""Coverage of an engine: multiply-accumulates by precision, read from the layers as built and never from the file.

Each layer names the ONNX nodes that it contains. The layer that computes a product names its node, but so do the layers that
TensorRT splits off before and after it (conversion of the input, bias). Therefore only layers that multiply count. Those of
TensorRT-RTX 1.7.1, as seen in engines built ahead of time:

`gemm`, `correlation`, `deconv`   one product, or several of the same input as one; the first input and the first constant, or
                                  the first two inputs, have the types that are multiplied
`runtime_fusion` with `Fc` in its name, such as `__myl_CastMulCastFc`    one product in the floating type of its output, after
                                  conversions: of weights stored in INT4, or of INT8 activations whose scales no integer
                                  product supports
`_gemm_mha_v2`                    attention, two products: with floats on all inputs both are computed in that type; with
                                  integers the type of the second is unknown

A node that no such layer names, or that several different ones name, is unknown (recurrent nodes are unrolled without names).
The kinds of `tensorrt` itself (`CaskConvolution`, ...) are from NVIDIA's documentation of the inspector, not from engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tasks.engines.tensorrt.layers import parse_layers_json, with_times
from tasks.engines.tensorrt.runner import inspect_engine
from tasks.runtimes.coverage import macs_as_written, sum_up
from tasks.runtimes.kernels import Kernel, write_kernels
from validators.records.engines import EngineLayer
from validators.records.measurements import UNNAMED, Coverage
from validators.records.run import Variant
from validators.samples.datasets import Arrays
from validators.target_facts import TENSORRT

LOW = frozenset({"int8", "fp8", "int4", "fp4"})
# Low-precision types of weight-only quantization. 8-bit weights with float activations are not low precision: integer
# activations were intended, but the engine does not use them.
WEIGHTS = frozenset({"int4", "fp4"})
HALF = frozenset({"float16", "bfloat16"})
FLOAT = HALF | {"float32"}
_ONE_PRODUCT = re.compile(r"gemm|matrixmultiply|correlation|convolution|deconv", re.IGNORECASE)
_ATTENTION = "_gemm_mha"
_FUSED = re.compile(r"^__myl_(?:[A-Z][a-z]+)*Fc(?=[A-Z_]|$)")
_UNKNOWN = Kernel(UNNAMED, is_low_precision=False)


def measure(variant: Variant, batch: Arrays, folder: Path) -> Coverage:
    """Return the coverage by the layers that the builder or, if the engine runs here, the inspector (with times) reported.

    The list of all layers is written into `folder`.

    Raises:
        CandidateRefused: TensorRT does not load or run the engine.
    """
    assert variant.engine is not None
    layers = variant.engine.layers
    if variant.session.provider == TENSORRT:
        told, milliseconds = inspect_engine(variant.engine.path, batch)
        layers = with_times(parse_layers_json(told), milliseconds)
    return replace(coverage_of_layers(variant.path, layers, batch), kernels_path=write_kernels(folder, layers))


def coverage_of_layers(onnx_path: Path, layers: Sequence[EngineLayer], batch: Arrays) -> Coverage:
    """Return the coverage of a request for `batch` in an engine of these layers.

    The multiply-accumulates are those of the file, counted on the CPU provider. Times are those of the layers, if any.

    Raises:
        CandidateRefused: `invalid`: the CPU provider does not run the file.
    """
    kernels = kernels_of_nodes(layers)
    counted = [(name, macs, kernels.get(name, _UNKNOWN)) for name, macs in macs_as_written(onnx_path, batch)]
    return replace(sum_up(counted, (TENSORRT,)), us_by_kernel=_times(layers))


def kernels_of_nodes(layers: Iterable[EngineLayer]) -> dict[str, Kernel]:
    """Return the kernel of each node that a layer with products names; unknown if such layers differ."""
    found: dict[str, set[Kernel]] = {}
    for layer in layers:
        kernel = kernel_of_layer(layer)
        if kernel:
            for name in layer.nodes:
                found.setdefault(name, set()).add(kernel)
    return {name: next(iter(kernels)) if len(kernels) == 1 else _UNKNOWN for name, kernels in found.items()}


def kernel_of_layer(layer: EngineLayer) -> Kernel | None:
    """Return the kernel of a layer, which tells the type of its products; None for a layer without products.

    >>> kernel_of_layer(EngineLayer("a", "gemm", ("int8",), ("int8", "float32"), ("float16",), "", ())).name
    'gemm in int8'
    >>> kernel_of_layer(EngineLayer("__myl_CastMulFc_1", "runtime_fusion", ("int8",), ("float16",), ("float16",), "", ())).name
    'gemm in float16'
    """
    if _ONE_PRODUCT.search(layer.kind):
        return _product(layer, layer.kind)
    if layer.name.startswith(_ATTENTION):
        floats = FLOAT.issuperset(layer.inputs) and layer.inputs
        return _kernel("attention", _widest(layer.inputs)) if floats else _UNKNOWN
    if _FUSED.match(layer.name):
        converted = "Cast" in layer.name.partition("Fc")[0]
        if layer.name.count("Fc") == 1 and layer.inputs[:1] and layer.inputs[0] in LOW and converted:
            return _kernel("gemm", layer.outputs[0])
        return _product(layer, "gemm") if FLOAT.issuperset(layer.inputs) else _UNKNOWN
    return None


def _product(layer: EngineLayer, kind: str) -> Kernel:
    """Return the kernel of a one-product layer: its first input times its first constant, or times its second input."""
    first, partners = layer.inputs[:1], (*layer.constants[:1], *layer.inputs[1:2])
    if not first or first[0] not in LOW | FLOAT:
        return _UNKNOWN
    if first[0] in LOW:
        return _kernel(kind, first[0]) if first[0] in partners else _UNKNOWN
    stored = sorted(WEIGHTS.intersection(layer.constants))
    return _kernel(kind, first[0], stored[0] if stored else "")


def _kernel(kind: str, dtype: str, stored: str = "") -> Kernel:
    name = f"{kind} in {dtype}" + (f", weights in {stored}" if stored else "")
    low = dtype in LOW or bool(stored)
    return Kernel(name, is_low_precision=low, is_half=dtype in HALF and not low)


def _widest(dtypes: Sequence[str]) -> str:
    return "float32" if "float32" in dtypes else dtypes[0]


def _times(layers: Iterable[EngineLayer]) -> dict[str, float]:
    """Return the microseconds by kernel, and by kind for layers without products; empty if no layer was timed."""
    times: dict[str, float] = {}
    for layer in layers:
        if layer.microseconds is not None:
            kernel = kernel_of_layer(layer)
            name = kernel.name if kernel else layer.kind
            times[name] = times.get(name, 0.0) + layer.microseconds
    return times

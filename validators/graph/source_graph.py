"""Checks of a source before the run: a complete, valid, float ONNX graph of operators that the runtime knows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from validators.errors import SourceError
from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE
from validators.graph.interfaces import check_interface
from validators.graph.lint import Finding, Rule, apply_rules
from validators.graph.quantized_graph import QuantizedGraph
from validators.graph.source_form import is_checkable
from validators.untrusted.external_data import check_external_data, check_sizes, check_weights, tensors
from validators.untrusted.external_data import nodes as nodes_in
from validators.untrusted.paths import is_file, why_no_file

# ONNX Runtime 1.31 reads up to these; onnx's converter upgrades from the oldest opset on.
NEWEST_OPSET, NEWEST_IR_VERSION = 26, 13
OLDEST_OPSET = 7
# Older opsets have no quantization operators with an axis; the run upgrades such a source.
LEAST_OPSET = 13

# The default domain, its old name, and ONNX Runtime's own operators.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
# Domains of operators that ONNX Runtime's optimizer writes: their weights are laid out for one kind of processor.
LAYOUT_DOMAINS = frozenset({"com.microsoft.nchwc", "com.ms.internal.nhwc"})
# Name prefixes of operators that compute in or store low precision. They must not match QuickGelu.
QUANTIZED_OPERATORS = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "QLinear", "MatMulInteger", "ConvInteger"),
    *("QAttention", "QGemm", "QMoE", "QEmbedLayerNormalization", "QOrdered", "MulInteger", "ReduceSumInteger"),
    *("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "MatMulBlockQuantized", "GatherBlockQuantized", "GemmFloat8"),
    *("QuantizeBFP", "DequantizeBFP", "QuantizeWithOrder", "DequantizeWithOrder"),
)
# Bytes of a value.
_WIDTHS: dict[int, int] = {
    onnx.TensorProto.FLOAT: 4,
    onnx.TensorProto.DOUBLE: 8,
    onnx.TensorProto.FLOAT16: 2,
    onnx.TensorProto.BFLOAT16: 2,
}
# Name prefixes of types used only for quantized weights. INT8 may be data, and half precision is not quantization.
LOW_BIT_TYPES = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")


def check_source_graph(path: Path, *, custom_operators: bool = False) -> onnx.ModelProto:
    """Load and check a source model; return it without its external data.

    `custom_operators` means that sessions register libraries of custom operators, so the model may use some; loading a session
    shows whether the libraries define them. Some files that the runtime loads fail `onnx.checker`. For those the checker runs
    only after step 1 normalizes them (`validators.graph.source_form`) and calls this function again.

    Raises:
        SourceError: the file is unreadable or truncated, too new or too old, already quantized, has a weight of more than 2 GB,
            uses a custom operator, has unsupported inputs or outputs, or fails `onnx.checker`.
    """
    model = _load(path)
    _check_versions(path, model)
    nodes = list(nodes_in(model))
    _check_operators(path, model, nodes)
    # At least so many bytes, for types that hold no weights.
    sizes = {one.name: math.prod(one.dims) * _WIDTHS.get(one.data_type, 1) for one in model.graph.initializer}
    check_weights(path.name, sizes)
    if not custom_operators:
        _refuse_custom(path, model, nodes)
    check_interface(model, path.name)
    if is_checkable(model):
        _check_valid(path)
    return model


def check_given_graph(path: Path, *, custom_operators: bool = False) -> onnx.ModelProto:
    """Load and check a model that another tool made, quantized or not; return it without its external data.

    It need not meet all requirements of a source: the engine that runs it decides. `custom_operators` is as there.

    Raises:
        SourceError: the file is unreadable or truncated, too new or too old, was laid out for one kind of processor, or uses a
            custom operator.
    """
    model = _load(path)
    _check_versions(path, model)
    nodes = list(nodes_in(model))
    _refuse_layouts(path, nodes)
    if not custom_operators:
        _refuse_custom(path, model, nodes)
    return model


def lint_file(path: Path, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """Return what a runtime would refuse, silently compute in float, or run slowly in an ONNX file; most severe first.

    The file may be quantized or not, and need not meet the requirements of a source. Weights are not read.

    Raises:
        SourceError: the file is not ONNX, or the external data of its scales is missing.
    """
    return apply_rules(rules, QuantizedGraph(_load(path, whole=False), path.parent))


def is_quantized(path: Path) -> bool:
    """Return True if an ONNX file has QuantizeLinear or DequantizeLinear, also in bodies and functions.

    Raises:
        SourceError: the file is not ONNX.
    """
    model = _load(path)
    nodes = list(nodes_in(model))
    return any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in nodes)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset version of a model's standard operators; 0 if it names none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _check_versions(path: Path, model: onnx.ModelProto) -> None:
    opset = opset_of(model)
    if opset > NEWEST_OPSET or model.ir_version > NEWEST_IR_VERSION:
        raise SourceError(
            found=f"{path.name} has opset {opset} and IR version {model.ir_version}",
            expected=f"opset {OLDEST_OPSET} to {NEWEST_OPSET}, IR version at most {NEWEST_IR_VERSION}",
            fix="export with an older opset (21 is a good choice), or install a newer runtime",
        )
    if opset < OLDEST_OPSET:
        raise SourceError(
            found=f"{path.name} has opset {opset}",
            expected=f"opset {OLDEST_OPSET} to {NEWEST_OPSET}",
            fix="export again with opset 21",
        )


def _refuse_layouts(path: Path, nodes: list[onnx.NodeProto]) -> None:
    laid_out = sorted({f"{node.domain}::{node.op_type}" for node in nodes if node.domain in LAYOUT_DOMAINS})
    if laid_out:
        raise SourceError(
            found=f"{path.name} was saved by ONNX Runtime's optimizer for one kind of processor: it has {', '.join(laid_out)}",
            expected="the model from before optimization, whose weights have the layout of the ONNX standard",
            fix="register the file that this one was made of; a session writes such files with `optimized_model_filepath`",
        )


def _check_operators(path: Path, model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    _refuse_layouts(path, nodes)
    known = [node for node in nodes if node.domain in KNOWN_DOMAINS]
    quantized = sorted({node.op_type for node in known if node.op_type.startswith(QUANTIZED_OPERATORS)})
    types = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in tensors(model)}
    quantized += sorted(f"weights of type {name}" for name in types if name.startswith(LOW_BIT_TYPES))
    if quantized:
        raise SourceError(
            found=f"{path.name} is already quantized: it has {', '.join(quantized)}",
            expected="a float model",
            fix="register the model from before quantization",
        )


def _refuse_custom(path: Path, model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    local = {(function.domain, function.name) for function in model.functions}
    custom = sorted(
        {
            f"{node.domain}::{node.op_type}"
            for node in nodes
            if node.domain not in KNOWN_DOMAINS and (node.domain, node.op_type) not in local
        }
    )
    if custom:
        raise SourceError(
            found=f"{path.name} has custom operators: {', '.join(custom)}",
            expected="operators of the ONNX standard, of ONNX Runtime, or functions that the file defines",
            fix="name the library that has them in `operator_libraries` of the job, export without them, or define them in the"
            " file as functions of standard ones",
        )


def _check_valid(path: Path) -> None:
    try:
        # Passing the path makes the checker read external data too, and lifts the limit of 2 GB.
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise SourceError(
            found=f"{path.name} fails onnx.checker: {str(error).splitlines()[0]}",
            expected="a valid ONNX model",
            fix="export the model again",
        ) from error


def _load(path: Path, *, whole: bool = True) -> onnx.ModelProto:
    if not is_file(path):
        raise SourceError(
            found=f"{str(path)[:300]}: {why_no_file(path)}", expected="an ONNX file", fix="correct the path"
        )
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise SourceError(
            found=f"{path.name} ({path.stat().st_size} bytes) is truncated or not an ONNX file: {error}",
            expected="a complete ONNX file",
            fix="export or download it again",
        ) from error
    if not model.graph.node or not model.graph.output:
        raise SourceError(
            found=f"{path.name} has {len(model.graph.node)} nodes and {len(model.graph.output)} outputs",
            expected="a model with nodes and outputs",
            fix="export or download it again; a truncated file can look like this",
        )
    # Check here, because every caller goes on to read the model's files.
    check_external_data(path, model, whole=whole)
    check_sizes(path, model)
    return model

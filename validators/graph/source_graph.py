"""What a source must be before anything is made of it: a whole, valid, float ONNX graph of operators that the runtime knows."""

from __future__ import annotations

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
from validators.untrusted.external_data import check_external_data, check_sizes, tensors
from validators.untrusted.external_data import nodes as nodes_in

# ONNX Runtime 1.31 reads these, and onnx's converter upgrades from the oldest of them.
NEWEST_OPSET, NEWEST_IR_VERSION = 26, 13
OLDEST_OPSET = 7
# Below this, quantization operators with an axis do not exist: such a source is upgraded.
LEAST_OPSET = 13

# The default domain, its old name, and ONNX Runtime's own operators.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
# How operators of these domains that compute with fewer bits, or store them, begin. QuickGelu is none of them.
QUANTIZED_OPERATORS = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "QLinear", "MatMulInteger", "ConvInteger"),
    *("QAttention", "QGemm", "QMoE", "QEmbedLayerNormalization", "QOrdered", "MulInteger", "ReduceSumInteger"),
    *("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "MatMulBlockQuantized", "GatherBlockQuantized", "GemmFloat8"),
    *("QuantizeBFP", "DequantizeBFP", "QuantizeWithOrder", "DequantizeWithOrder"),
)
# How the types begin that only quantized weights are stored in; INT8 may be data. Half precision is no quantization.
LOW_BIT_TYPES = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")


def check_source_graph(path: Path, *, custom_operators: bool = False) -> onnx.ModelProto:
    """Load and check a source model; return it without its external data.

    `custom_operators` says that sessions register libraries of custom operators, so that a model may have some; whether the
    libraries have them is seen when a session loads it. Some files that the runtime loads fail `onnx.checker`: it judges those
    only in the form that step 1 gives them (`validators.graph.source_form`), where this function is called again.

    Raises:
        SourceError: the file is unreadable or truncated, too new or too old, already quantized, uses a custom operator,
            has inputs or outputs that are not supported, or fails `onnx.checker`.
    """
    model = _load(path)
    _check_versions(path, model)
    nodes = list(nodes_in(model))
    _check_operators(path, model, nodes)
    if not custom_operators:
        _refuse_custom(path, model, nodes)
    check_interface(model, path.name)
    if is_checkable(model):
        _check_valid(path)
    return model


def lint_file(path: Path, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """What a runtime would refuse of an ONNX file, silently compute in float, or do slower than it could; gravest first.

    The file may be any, quantized or not: what it needs from a source is not asked. Weights are not read.

    Raises:
        SourceError: it is no ONNX file, or scales in files beside it are missing.
    """
    return apply_rules(rules, QuantizedGraph(_load(path, whole=False), path.parent))


def is_quantized(path: Path) -> bool:
    """Whether an ONNX file has QuantizeLinear or DequantizeLinear, also in bodies and functions.

    Raises:
        SourceError: it is no ONNX file.
    """
    model = _load(path)
    nodes = list(nodes_in(model))
    return any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in nodes)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators that a model is written in; 0 if it names none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _check_versions(path: Path, model: onnx.ModelProto) -> None:
    opset = opset_of(model)
    if opset > NEWEST_OPSET or model.ir_version > NEWEST_IR_VERSION:
        raise SourceError(
            found=f"{path.name} of opset {opset}, IR version {model.ir_version}",
            expected=f"opset {OLDEST_OPSET} to {NEWEST_OPSET}, IR version at most {NEWEST_IR_VERSION}",
            fix="export with an older opset (21 is a good choice), or install a newer runtime",
        )
    if opset < OLDEST_OPSET:
        raise SourceError(
            found=f"{path.name} of opset {opset}",
            expected=f"opset {OLDEST_OPSET} to {NEWEST_OPSET}",
            fix="export again with opset 21",
        )


def _check_operators(path: Path, model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    known = [node for node in nodes if node.domain in KNOWN_DOMAINS]
    quantized = sorted({node.op_type for node in known if node.op_type.startswith(QUANTIZED_OPERATORS)})
    types = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in tensors(model)}
    quantized += sorted(f"weights of type {name}" for name in types if name.startswith(LOW_BIT_TYPES))
    if quantized:
        raise SourceError(
            found=f"{path.name} is already quantized: it has {', '.join(quantized)}",
            expected="a float model",
            fix="register the model as it was before quantization",
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
            found=f"{path.name} with custom operators: {', '.join(custom)}",
            expected="operators of the ONNX standard, of ONNX Runtime, or functions that the file defines",
            fix="name the library that has them in `operator_libraries` of the job, export without them, or define them in the"
            " file as functions of standard ones",
        )


def _check_valid(path: Path) -> None:
    try:
        # By path, so that external data beside the file is checked too and 2 GB are no limit.
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise SourceError(
            found=f"{path.name} fails onnx.checker: {str(error).splitlines()[0]}",
            expected="a valid ONNX model",
            fix="export the model again",
        ) from error


def _load(path: Path, *, whole: bool = True) -> onnx.ModelProto:
    if not path.is_file():
        raise SourceError(found=f"{path}: no such file", expected="an ONNX file", fix="correct the path")
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise SourceError(
            found=f"{path.name} ({path.stat().st_size} bytes) is truncated or not an ONNX file: {error}",
            expected="a whole ONNX file",
            fix="export or download it again",
        ) from error
    if not model.graph.node or not model.graph.output:
        raise SourceError(
            found=f"{path.name} with {len(model.graph.node)} nodes and {len(model.graph.output)} outputs",
            expected="a model with nodes and outputs",
            fix="export or download it again; a cut file can look like this",
        )
    # Here, since whoever has a model from this file goes on to open it.
    check_external_data(path, model, whole=whole)
    check_sizes(path, model)
    return model

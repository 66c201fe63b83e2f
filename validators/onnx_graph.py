"""What a source must be before anything is made of it: a whole, valid, float ONNX graph of operators that the runtime knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from validators.errors import SourceError

# ONNX Runtime 1.31 reads up to these.
NEWEST_OPSET = 26
NEWEST_IR_VERSION = 13
# Below this, quantization operators with an axis do not exist, and ONNX Runtime's quantizer rewrites little.
OLDEST_OPSET = 13

# The default domain, its old name, and ONNX Runtime's own operators.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
QUANTIZED_OPERATORS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearMatMul",
        "QLinearConv",
        "MatMulInteger",
        "ConvInteger",
        "MatMulNBits",
        "QAttention",
        "QGemm",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
    }
)


def check_source_graph(path: Path) -> onnx.ModelProto:
    """Load and check a source model; return it without its external data.

    Raises:
        SourceError: the file is unreadable or truncated, too new or too old, already quantized, uses a custom operator,
            or fails `onnx.checker`.
    """
    model = _load(path)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
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
            fix="export again with opset 21, or upgrade the file with onnx.version_converter",
        )
    nodes = [*_nodes(model.graph), *(node for function in model.functions for node in _nodes(function))]
    quantized = sorted({node.op_type for node in nodes} & QUANTIZED_OPERATORS)
    if quantized:
        raise SourceError(
            found=f"{path.name} is already quantized: it has {', '.join(quantized)}",
            expected="a float model",
            fix="register the model as it was before quantization",
        )
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
            expected="operators of the ONNX standard and of ONNX Runtime",
            fix="export without the custom operators, or rewrite them in standard ones",
        )
    try:
        # By path, so that external data beside the file is checked too and 2 GB are no limit.
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise SourceError(
            found=f"{path.name} fails onnx.checker: {str(error).splitlines()[0]}",
            expected="a valid ONNX model",
            fix="export the model again",
        ) from error
    return model


def external_files(path: Path) -> list[Path]:
    """The files beside a model that hold its external data, sorted."""
    model = onnx.load(path, load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(path.parent / name for name in names)


def _load(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise SourceError(found=f"{path}: no such file", expected="an ONNX file", fix="correct `source`")
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
    return model


def _nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in [attribute.g, *attribute.graphs]:
                yield from _nodes(subgraph)

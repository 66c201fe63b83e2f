"""Checks of an ONNX file's external data: each file must be in the model's folder and as large as declared.

ONNX Runtime opens any file that a model names when a session loads it, onnx when it reads weights. These checks run first.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from validators.errors import SourceError
from validators.untrusted.paths import inside

# No real weight or constant has more elements; a larger declared shape would exhaust any machine's memory.
MOST_ELEMENTS = 1 << 38
# A tensor is a message of protobuf, which is limited to 2 GB, also where its data lies in another file.
MOST_TENSOR_BYTES = (1 << 31) - 1
_FILLED = ("ConstantOfShape", "Expand")


def check_external_data(path: Path, model: onnx.ModelProto, *, whole: bool = True) -> None:
    """Check that every external file of a model is a regular file in its folder and contains the declared byte ranges.

    Unless `whole`, files may be missing.

    Raises:
        SourceError: a location is outside of the folder or not a regular file, or an offset or length is outside of the file.
    """
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(path, tensor, whole)


def check_sizes(path: Path, model: onnx.ModelProto) -> None:
    """Check that no declared shape has negative sizes or more than 2^38 elements.

    Raises:
        SourceError: a shape does.
    """
    for tensor in tensors(model):
        _check_shape(path, f"tensor {tensor.name!r}", tensor.dims)
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        # Some exporters write -1 for a dynamic axis.
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
        _check_shape(path, f"value {value.name!r}", (size for size in sizes if size >= 0))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in nodes(model):
        shape = constants.get(node.input[-1]) if node.op_type in _FILLED and node.input else None
        if shape is not None and shape.data_location != onnx.TensorProto.EXTERNAL:
            _check_shape(path, f"{node.op_type} {node.name!r}", onnx.numpy_helper.to_array(shape).ravel().tolist())


def check_weights(where: str, sizes: Mapping[str, int]) -> None:
    """Check that no weight, given by name with its bytes, is too large for an ONNX tensor.

    Raises:
        SourceError: a weight is.
    """
    for name, size in sizes.items():
        if size > MOST_TENSOR_BYTES:
            raise SourceError(
                found=f"{where}: the weight {name!r} has {size / 1e9:.1f} GB",
                expected="at most 2.1 GB in a weight, the limit of an ONNX tensor; a model may have several",
                fix="split the layer, such as a Linear into two of half the outputs each, and log the model again",
            )


def external_files(path: Path) -> list[Path]:
    """Return the files with a model's external data, sorted. The model must have passed `check_external_data`."""
    found = tensors(onnx.load(path, load_external_data=False))
    entries = (
        entry for tensor in found if tensor.data_location == onnx.TensorProto.EXTERNAL for entry in tensor.external_data
    )
    return sorted({path.parent / entry.value for entry in entries if entry.key == "location"})


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model: of the graph, its bodies, functions, and training graphs."""
    for graph in [model.graph, *_training(model)]:
        yield from nodes_of(graph)
    for function in model.functions:
        yield from nodes_of(function)


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from nodes_of(body)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs_of(body)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of an If, a Loop or a Scan; empty for other nodes."""
    return [body for item in node.attribute for body in (*([item.g] if item.HasField("g") else ()), *item.graphs)]


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every constant of a model: of the graph and its bodies, of attributes, and the parts of sparse tensors."""
    for graph in [model.graph, *_training(model)]:
        yield from _constants(graph)
    for node in nodes(model):
        for attribute in node.attribute:
            yield from [attribute.t, *attribute.tensors]
            for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
                yield from [sparse.values, sparse.indices]
        for body in bodies_of(node):
            yield from _constants(body)


def _training(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    for info in model.training_info:
        yield from [info.initialization, info.algorithm]


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from [sparse.values, sparse.indices]


def _check_external(path: Path, tensor: onnx.TensorProto, whole: bool) -> None:
    told = {entry.key: entry.value for entry in tensor.external_data}
    file = inside(path.parent, told.get("location", ""), said_by=f"{path.name}, tensor {tensor.name!r},")
    what = f"{path.name}: the external data of {tensor.name!r} in {told['location'][:200]!r}"
    if len(told) < len(tensor.external_data):
        raise _refuse(what, "repeats a key")
    if not whole and not file.exists():
        return
    if not file.exists() or not stat.S_ISREG(file.stat().st_mode):
        raise _refuse(what, "is not a regular file" if file.exists() else "is missing")
    try:
        start, length = int(told.get("offset", "0")), int(told.get("length", "-1"))
    except ValueError as error:
        raise _refuse(what, f"has an offset or length that is not a number: {error}") from error
    size = file.stat().st_size
    end = start + length if "length" in told else size
    if start < 0 or ("length" in told and length < 0) or start > size or end > size:
        raise _refuse(what, f"spans bytes {start} to {end}, but the file has {size}")


def _check_shape(path: Path, what: str, dims: Iterable[int]) -> None:
    shape = list(dims)
    if any(dim < 0 for dim in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise SourceError(
            found=f"{path.name}: {what} has the shape {shape[:8]}",
            expected=f"sizes of 0 or more, and at most 2^{MOST_ELEMENTS.bit_length() - 1} elements in a tensor",
            fix="export the model again; the file is damaged, or its exporter wrote a wrong shape",
        )


def _refuse(what: str, found: str) -> SourceError:
    return SourceError(
        found=f"{what} {found}",
        expected="every external data file complete and in the model's folder",
        fix="export the model again, and copy or log it with all its files",
    )

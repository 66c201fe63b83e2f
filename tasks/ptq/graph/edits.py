"""Small queries and edits of an ONNX graph that several passes need."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from validators.digests import weights_of
from validators.errors import SourceError
from validators.graph.graph_scope import attribute as attribute
from validators.graph.source_form import normalize
from validators.graph.source_graph import check_source_graph
from validators.graph.stored import from_array, load_model, save_model, to_array
from validators.untrusted.external_data import bodies_of, graphs_of

# Prefix of the metadata properties that record changes to a model.
NOTE_PREFIX = "quantgate."

# Operators that ONNX Runtime adds to the standard.
MICROSOFT = "com.microsoft"

# Operators whose multiply-accumulates are worth low precision, with the input index of the weight.
WEIGHT_INPUT = {"MatMul": 1, "Gemm": 1, "Conv": 1}


def gather_weights(source: Path, gathered: Path, *, custom_operators: bool = False) -> None:
    """Write a model in its normal form, with all weights in one file, or in two if it is too large.

    MLflow, for example, stores external weights under a random name. Gathered, equal models have equal bytes, and the
    runtime's tools, which mishandle external weights, get a plain file. `validators.graph.source_form` defines the normal
    form; `custom_operators` is as in `check_source_graph`.

    Raises:
        SourceError: the model is unreadable or invalid, or its weights are missing.
    """
    check_source_graph(source, custom_operators=custom_operators)
    try:
        model = load_model(source)
        outputs = [f"at its output {name}, now {', '.join(tensors)}" for name, tensors in normalize(model).items()]
        if outputs:
            # Keys of the metadata are unique.
            add_note(model, "flattened", "; ".join(outputs))
        save_model(model, gathered)
    except (ValueError, OSError, onnx.checker.ValidationError) as error:
        raise SourceError(
            found=f"{source.name}: its weights cannot be read: {str(error).splitlines()[0]}",
            expected="every external data file beside the model",
            fix="copy or log the model again with all its files",
        ) from error


def model_bytes(path: Path) -> int:
    """Return the size on disk of a model, in bytes: its file and its external weights, if any."""
    beside = weights_of(path)
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


def import_runtime_operators(model: onnx.ModelProto) -> None:
    """Declare that a model uses operators of ONNX Runtime."""
    if not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def add_note(model: onnx.ModelProto, about: str, text: str) -> None:
    """Record a change in the model's metadata, where later passes keep it."""
    model.metadata_props.add(key=f"{NOTE_PREFIX}{about}", value=text)


def notes_of(path: Path) -> dict[str, str]:
    """Return the notes in a file, by subject."""
    properties = onnx.load(path, load_external_data=False).metadata_props
    return {item.key.removeprefix(NOTE_PREFIX): item.value for item in properties if item.key.startswith(NOTE_PREFIX)}


def interface_of(graph: onnx.GraphProto) -> list[bytes]:
    """Return the inputs and outputs of a graph, serialized, to compare them before and after a pass."""
    return [value.SerializeToString(deterministic=True) for value in [*graph.input, *graph.output]]


def initializers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a graph by name."""
    return {tensor.name: tensor for tensor in graph.initializer}


def weighted_nodes(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, onnx.TensorProto]]:
    """Return the MatMul, Gemm and Conv nodes with a constant float32 weight, in graph order, each with its weight."""
    constants = initializers(graph)
    found = []
    for node in graph.node:
        index = weight_input(node)
        weight = constants.get(node.input[index]) if index is not None else None
        if weight is not None and weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) >= 2:
            found.append((node, weight))
    return found


def operator_of(node: onnx.NodeProto) -> str:
    """Return the name of a node's operator, with its domain unless it is a standard operator.

    >>> operator_of(onnx.helper.make_node("MatMul", ["a", "b"], ["c"]))
    'MatMul'
    >>> operator_of(onnx.helper.make_node("MatMul", ["a", "b"], ["c"], domain="com.acme"))
    'com.acme:MatMul'
    """
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def custom_operators(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the nodes with custom operators, by name, with the reason why every pass leaves them in float."""
    operators = ((node, operator_of(node)) for node in graph.node)
    return {node.name: f"custom operator {operator}" for node, operator in operators if operator != node.op_type}


def weight_input(node: onnx.NodeProto) -> int | None:
    """Return the input index of the weight of a standard MatMul, Gemm or Conv; None for any other operator.

    >>> weight_input(onnx.helper.make_node("Gemm", ["x", "w"], ["y"]))
    1
    >>> weight_input(onnx.helper.make_node("Gemm", ["x", "w"], ["y"], domain="com.acme"))
    """
    return WEIGHT_INPUT.get(operator_of(node))


def output_channel_axis(node: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return the axis of the weight that holds output channels. Scales along other axes do not factor out of the sum.

    Conv: `(out, in, ...)` gives 0. Gemm: `(K, N)` gives 1, or 0 with transB. MatMul: `(..., K, N)` gives the last.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return len(weight.dims) - 1


def name_nodes(graph: onnx.GraphProto) -> int:
    """Give every node, also in bodies, a unique name; return how many were renamed."""
    names = Names(graph)
    seen: set[str] = set()
    renamed = 0
    for part in graphs_of(graph):
        for index, node in enumerate(part.node):
            if not node.name or node.name in seen:
                node.name = names.new(f"{node.op_type}_{index}")
                renamed += 1
            seen.add(node.name)
    return renamed


class Names:
    """Allocator of unique names for the nodes and tensors of a graph and its bodies.

    Every pass takes its new names from here: a source may already use any name, such as `x_scale` for an input `x`.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken: set[str] = set()
        for part in graphs_of(graph):
            self._taken.update(value.name for value in (*part.input, *part.output))
            self._taken.update(tensor.name for tensor in part.initializer)
            self._taken.update(sparse.values.name for sparse in part.sparse_initializer)
            for node in part.node:
                self._taken.update((node.name, *node.input, *node.output))

    def new(self, name: str) -> str:
        """Reserve and return the name, with underscores appended until it is unique.

        >>> names = Names(onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["x_scale"])], "g", [], []))
        >>> names.new("x_scale"), names.new("x_scale"), names.new("w")
        ('x_scale_', 'x_scale__', 'w')
        """
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def store(self, graph: onnx.GraphProto, name: str, array: NDArray[Any]) -> str:
        """Add a constant to the graph, or to a body in it, under a new name; return that name."""
        name = self.new(name)
        graph.initializer.append(from_array(array, name))
        return name


def split_gemm(graph: onnx.GraphProto) -> dict[str, str]:
    """Rewrite each plain Gemm with a constant 2-D weight as MatMul and Add; return the MatMul's name by the Gemm's.

    Weight-only kernels exist for MatMul only. A Gemm with non-default alpha, beta or transA stays.
    """
    constants = initializers(graph)
    names = Names(graph)
    transposed: dict[str, str] = {}
    rewritten: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = constants.get(node.input[1]) if operator_of(node) == "Gemm" else None
        plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
        if weight is None or not plain or attribute(node, "transA", 0):
            nodes.append(node)
            continue
        kernel = node.input[1]
        if attribute(node, "transB", 0):
            if kernel not in transposed:
                transposed[kernel] = names.store(graph, f"{kernel}_transposed", to_array(weight).T.copy())
            kernel = transposed[kernel]
        has_bias = len(node.input) > 2 and bool(node.input[2])
        product = names.new(f"{node.output[0]}_product") if has_bias else node.output[0]
        rewritten[node.name] = names.new(f"{node.name}_MatMul")
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], kernel], [product], name=rewritten[node.name]))
        if has_bias:
            name = names.new(f"{node.name}_Add")
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], [node.output[0]], name=name))
    set_nodes(graph, nodes)
    return rewritten


def set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph, and drop the constants that nothing reads any more."""
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unused_initializers(graph)


def drop_unused_initializers(graph: onnx.GraphProto) -> int:
    """Remove the constants that no node (of any subgraph) and no output reads; return how many."""
    used = {value.name for value in graph.output} | {name for node in graph.node for name in names_read(node)}
    unused = [tensor for tensor in graph.initializer if tensor.name not in used]
    for tensor in unused:
        graph.initializer.remove(tensor)
    return len(unused)


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, in its inputs and in its bodies, which read and return outer tensors by name."""
    yield from node.input
    for body in bodies_of(node):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from names_read(inner)


def dependent_tensors(graph: onnx.GraphProto) -> dict[str, None]:
    """Return the tensors of the main graph that depend on its inputs, in order. All others are weights."""
    constants = initializers(graph)
    depends = {value.name: None for value in graph.input if value.name not in constants}
    for node in graph.node:  # ONNX requires topological order
        if any(name in depends for name in names_read(node)):
            depends.update((name, None) for name in node.output if name)
    return depends


@contextmanager
def scratch() -> Iterator[Path]:
    """Open a temporary folder, and silence ONNX Runtime's tools, which log advice to the root logger."""
    root = logging.getLogger()
    root.addFilter(_no_advice)
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        yield Path(folder)


def _no_advice(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or "onnxruntime" not in record.pathname

"""Behaviour of ONNX Runtime's CPU provider with a file, for `quantgate lint`: its optimized graph, one request, its answers.

The graph as written, without optimizations, computes what the file says: it shows which requests are valid, and which answers
are right.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.engines.ort.facts import CPU
from tasks.measure.inventory import this_processor
from tasks.runtimes.coverage import with_names
from tasks.runtimes.kernel_times import node_times
from tasks.runtimes.macs import MAC_RULES, RUNTIME_DOMAINS
from tasks.runtimes.ort import describe_inputs, open_session
from tasks.runtimes.parity import relative_distance
from validators.errors import CandidateRefused, SourceError
from validators.graph.graph_scope import DEQUANTIZE, label
from validators.graph.lint import WHOLE, Consequence, Finding, RuntimeFacts
from validators.graph.quantized_graph import MOVES, SCALINGS
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec
from validators.target_facts import CPU_PROVIDER
from validators.untrusted.external_data import check_external_data, graphs_of

# Weights of the optimized graph go into a file of their own: a graph has at most 2 GB.
SETTINGS = SessionSettings(
    CPU_PROVIDER, 1, entries={"session.optimized_model_external_initializers_file_name": "weights.bin"}
)
# Sizes to try for axes that a model leaves open, other than axis 0.
SIZES = (8, 64, 256)
ROWS = 3
# Least error of an answer, relative and root mean square, that rounding does not explain. Integer kernels round otherwise than
# the graph as written: below 0.01 on models of one layer (`tests/unit/validators/graph/test_ort_rules.py`).
LEAST_ERROR = 0.05
# Operators through which a dequantized tensor reaches a product unchanged in meaning.
_THROUGH = MOVES | SCALINGS | {"Concat", "Expand", "ReorderInput", "ReorderOutput", "Resize"}
_FIXES: dict[Consequence, str] = {
    "fails": "make the file again for this runtime; the message names the reason",
    "wrong": "make the file again for this runtime, and compare its answers with the float model's",
    "float": "make the file again for this runtime, or leave both factors in float",
}


@dataclass(frozen=True)
class _Request:
    """A random request, and the answers of the graph as written; None if it fails on the request, or does not load."""

    batch: Arrays
    answers: list[NDArray[Any]] | None


def observe_session(model: Path) -> RuntimeFacts:
    """Open a session of a file, read its optimized graph, and compare its answers to one request with the graph as written."""
    if util.find_spec("onnxruntime") is None:
        return RuntimeFacts("rules alone: ONNX Runtime is not installed")
    import onnxruntime as ort

    proto = onnx.load(model, load_external_data=False)
    known = RUNTIME_DOMAINS | {function.domain for function in proto.functions}
    if custom := sorted({node.domain for node in _all_nodes(proto.graph)} - known):
        return RuntimeFacts(f"rules alone: the linter loads no library of operators, here of {', '.join(custom)}")
    try:
        check_external_data(model, proto)
    except SourceError as error:
        return RuntimeFacts(f"rules alone: {error.found}")
    runtime = f"ONNX Runtime {ort.__version__}"
    names = _Names(proto, with_names(model))
    request = _written(model, names.content)
    basis = f"seen in a session of {runtime} on this processor ({' '.join(this_processor().isa)})"
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        try:
            with open_session(model, SETTINGS, optimized_model=optimized, content=names.content) as session:
                graph = onnx.load(optimized, load_external_data=False).graph
                labels = names.labels(graph)
                facts = [_fact(node, "float", f"{runtime} {told}") for node, told in _float_products(graph, labels)]
                told = _ask(session, request)
        except CandidateRefused as error:
            return RuntimeFacts(basis, (_fact(WHOLE, "fails", error.found),), frozenset({"fails"}))
    if told is not None:
        facts.append(_fact(labels.get(told.kernel, WHOLE), told.consequence, f"{runtime} {told.found}"))
    if request is None:
        return RuntimeFacts(f"{basis}, without a request: none could be made up", tuple(facts), frozenset({"float"}))
    return RuntimeFacts(basis, tuple(facts), frozenset({"fails", "float"}))


def _fact(node: str, consequence: Consequence, found: str) -> Finding:
    return Finding(f"SEEN {consequence}", node, consequence, found, _FIXES[consequence])


class _Names:
    """Names of a file's nodes, and of the kernels that the runtime made of them."""

    def __init__(self, proto: onnx.ModelProto, content: bytes | None) -> None:
        self.content = content
        self._named = onnx.load_from_string(content) if content is not None else proto
        both = (_all_nodes(self._named.graph), _all_nodes(proto.graph))
        self._labels = {named.name: label(node) for named, node in zip(*both, strict=True)}

    def labels(self, graph: onnx.GraphProto) -> dict[str, str]:
        """Return the labels of the file's nodes by kernel of an optimized graph; a new kernel has its own name."""
        kernels = [node.name for node in _all_nodes(graph)]
        indices = {name: float(index) for index, name in enumerate(kernels)}
        found = {name: name for name in kernels}
        for part in graphs_of(self._named.graph):
            found |= {kernels[int(index)]: self._labels[node] for node, index in node_times(part, indices).items()}
        return found


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for part in graphs_of(graph) for node in part.node]


def _float_products(graph: onnx.GraphProto, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the label of each product in an optimized graph that multiplies floats although a factor was dequantized."""
    nodes = _all_nodes(graph)
    makers = {name: node for node in nodes for name in node.output}
    stored = {tensor.name for part in graphs_of(graph) for tensor in part.initializer}
    low = CPU.low_precision
    for node in nodes:
        if node.op_type not in MAC_RULES or node.domain not in RUNTIME_DOMAINS or node.op_type in low:
            continue
        factors = 2 if node.op_type.endswith(("Conv", "ConvTranspose", "Gemm", "MatMul")) else 3
        source = next((found for name in node.input[:factors] if (found := _source(name, makers, stored))), None)
        if source is not None:
            yield labels[node.name], f"multiplies floats in {node.op_type}, behind {label(source)}"


def _source(name: str, makers: Mapping[str, onnx.NodeProto], stored: set[str]) -> onnx.NodeProto | None:
    """Return the DequantizeLinear that a tensor comes from, through operators that move values or scale them."""
    pending, seen = [name], {""}
    while pending:
        name = pending.pop()
        node = makers.get(name)
        if node is None or name in seen:
            continue
        if node.op_type == DEQUANTIZE:
            return node
        seen.add(name)
        if node.op_type in _THROUGH and (node.op_type not in SCALINGS or stored.intersection(node.input)):
            pending += node.input
    return None


def _written(model: Path, content: bytes | None) -> _Request | None:
    """Return a request that the graph as written answers; else one of the sizes that the model fixes, if it fixes all."""
    inputs: tuple[TensorSpec, ...] = ()
    try:
        with open_session(model, SETTINGS, as_written=True, content=content) as session:
            inputs = describe_inputs(session)
            for batch in _batches(inputs):
                answers, _ = _run(session, batch)
                if answers is not None:
                    return _Request(batch, answers)
    except CandidateRefused:
        return None  # the optimized session says why
    is_fixed = all(isinstance(size, int) for spec in inputs for size in spec.shape)
    return next((_Request(batch, None) for batch in _batches(inputs)), None) if is_fixed else None


def _batches(inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    """Yield random requests of several sizes: normal floats, and integers of 0 and 1; none for inputs of another type."""
    kinds = {spec.name: np.dtype(spec.dtype).kind if not spec.dtype.startswith("tensor(") else "" for spec in inputs}
    if not set(kinds.values()) <= set("fiub"):
        return
    for size in SIZES:
        draw = np.random.default_rng(0)
        batch = {}
        for spec in inputs:
            open_sizes = (ROWS if axis == 0 else size for axis in range(len(spec.shape)))
            shape = [
                given if isinstance(given, int) else one for given, one in zip(spec.shape, open_sizes, strict=True)
            ]
            numbers = draw.normal(size=shape) if kinds[spec.name] == "f" else draw.integers(0, 2, size=shape)
            batch[spec.name] = np.asarray(numbers).astype(spec.dtype)
        yield batch


@dataclass(frozen=True)
class _Told:
    """Outcome of a request that is a finding: a failure, with the kernel if the runtime names it, or other numbers."""

    consequence: Consequence
    found: str
    kernel: str = ""


def _ask(session: Any, request: _Request | None) -> _Told | None:
    """Return what is wrong with the answers of an optimized session to a request, if anything."""
    if request is None:
        return None
    answers, error = _run(session, request.batch)
    if answers is None:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in request.batch.items())
        kernel = re.search(r"Name:'(.*?)'", error)
        return _Told("fails", f"fails at a first request of {shapes}: {error}", kernel[1] if kernel else "")
    error_rms = _error(answers, request.answers) if request.answers is not None else 0.0
    if error_rms < LEAST_ERROR:
        return None
    return _Told("wrong", f"answers {error_rms:.0%} (RMS) off the graph as written, to random inputs")


def _run(session: Any, batch: Arrays) -> tuple[list[NDArray[Any]] | None, str]:
    """Return the outputs for a batch, or None and the first line of the error."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4  # failures are the finding, and are not written to standard error, too
    try:
        return session.run(None, batch, options), ""
    except Exception as error:  # the bindings raise a dozen unrelated classes, all meaning that the request fails
        return None, (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _error(answers: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float:
    """Return the largest relative error, root mean square, of the outputs in float; infinite if one has another shape."""
    errors = [0.0]
    for ours, right in zip(answers, expected, strict=True):
        if getattr(right, "dtype", np.dtype(object)).kind != "f":
            continue
        if ours.shape != right.shape:
            return float("inf")
        errors.append(relative_distance(right, ours))
    return max(errors)

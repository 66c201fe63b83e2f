"""The MatMul nodes that weight-only can quantize, and Gram matrices of what they read: all that GPTQ and AWQ need of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.graph import initializers, name_nodes, split_gemm, to_array
from tasks.ptq.watched import open_watched, split_by_memory
from validators.datasets import Arrays
from validators.errors import CandidateRefused
from validators.records import SessionSettings

Floats = NDArray[np.float64]
Batches = Callable[[], Iterable[Arrays]]

# What the kernel takes as weights and scales.
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

# Rows of an activation that are float64 at a time.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Site:
    """A MatMul to quantize: its weight is the constant `constant`, transposed or not, and has this shape as it is used."""

    node: onnx.NodeProto
    constant: str
    transposed: bool
    shape: tuple[int, int]

    @property
    def activation(self) -> str:
        """The tensor that the weight is multiplied with."""
        return str(self.node.input[0])

    @property
    def key(self) -> tuple[str, bool]:
        """Equal for the sites that share one quantized weight."""
        return self.constant, self.transposed


@dataclass(frozen=True)
class Plan:
    """The sites of a graph, (node, reason) for every other MatMul, and how many Gemm nodes became MatMul and Add."""

    sites: tuple[Site, ...]
    left: tuple[tuple[str, str], ...]
    gemm_split: int


def find_sites(graph: onnx.GraphProto, *, block_size: int, exclude: Collection[str]) -> Plan:
    """Make Gemm nodes MatMul nodes, name all nodes, and find those to quantize. `exclude` names a Gemm by its own name.

    Raises:
        CandidateRefused: `invalid`: a name in `exclude` is that of no node.
    """
    unknown = sorted(set(exclude) - {node.name for node in graph.node})
    if unknown:
        raise CandidateRefused(
            kind="invalid",
            found=f"excluded nodes {unknown}",
            expected="names of nodes of the graph",
            fix="correct the names, or leave them out",
        )
    split = split_gemm(graph)
    name_nodes(graph)
    constants = initializers(graph)
    for value in graph.input:
        constants.pop(value.name, None)  # what a caller may replace is no constant
    makers = {name: node for node in graph.node for name in node.output}
    excluded = {*exclude, *(f"{name}_MatMul" for name in exclude)}  # as split_gemm names them
    sites: list[Site] = []
    left: list[tuple[str, str]] = []
    for node in graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            found = "excluded" if node.name in excluded else _site(node, constants, makers, block_size)
            if isinstance(found, Site):
                sites.append(found)
            else:
                left.append((node.name, found))
    return Plan(tuple(sites), tuple(left), split)


def tensors_to_collect(model: Path, *, block_size: int, exclude: Collection[str] = ()) -> dict[str, int]:
    """The activations whose Gram matrices GPTQ and AWQ need, each once, with the number of their channels.

    Raises:
        CandidateRefused: `invalid`: a name in `exclude` is that of no node.
    """
    sites = find_sites(onnx.load(model).graph, block_size=block_size, exclude=exclude).sites
    return {site.activation: site.shape[0] for site in sites}


def _site(
    node: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto],
    makers: Mapping[str, onnx.NodeProto],
    block_size: int,
) -> Site | str:
    """The site that a node is, or why it is none."""
    if node.op_type == "Gemm":
        return "a Gemm with alpha, beta or transA, or without a constant weight"
    name, maker = node.input[1], makers.get(node.input[1])
    transposed = maker is not None and maker.op_type == "Transpose" and maker.input[0] in constants
    if maker is not None and transposed:
        name = maker.input[0]
    if name not in constants:
        return "its second input is not constant"
    weight = constants[name]
    if len(weight.dims) != 2:
        return f"its weight has {len(weight.dims)} axes, not 2"
    if weight.data_type not in FLOATS:
        return f"its weight is {onnx.TensorProto.DataType.Name(weight.data_type)}, not FLOAT or FLOAT16"
    rows, columns = reversed(weight.dims) if transposed else weight.dims
    taken, size = -(-rows // block_size) * (block_size // 2 + 4), rows * to_array(weight).itemsize
    if taken >= size:
        return f"too small: a column of {rows} weights takes {size} bytes, and {taken} in blocks of {block_size}"
    if not np.isfinite(to_array(weight)).all():
        return "its weight has NaN or Inf"
    return Site(node, name, transposed, (rows, columns))


@dataclass(frozen=True)
class Gram:
    """What `rows` rows of an activation X `[rows, K]` add up to.

    `matrix`: `X^T X`, float64 `[K, K]`, a sum. `mean_absolute`: the mean of `|X|` by channel, float64 `[K]`.
    """

    matrix: Floats
    mean_absolute: Floats
    rows: int

    def __add__(self, other: Gram) -> Gram:
        """That of the rows of both."""
        rows = self.rows + other.rows
        mean = (self.mean_absolute * self.rows + other.mean_absolute * other.rows) / max(rows, 1)
        return Gram(self.matrix + other.matrix, mean, rows)


def collect_grams(
    model: Path, tensors: Mapping[str, int], batches: Batches, *, max_memory_mb: float, threads: int = 1
) -> dict[str, Gram]:
    """Run a float model over batches of samples and sum up each of the tensors (name to channels K, its last axis).

    `batches()` starts over: the model runs once to learn the shapes, on the first batch alone, and then once over all batches
    for each group of tensors whose outputs and sums fit in `max_memory_mb` (10^6 bytes; the session itself not counted).
    Sums are float64; no activation outlives its batch. Rows of padding count like others.

    Raises:
        CandidateRefused: `invalid`: the model does not run, a tensor has another number of channels, or one is not finite;
            `infrastructure`: a single tensor takes more memory than allowed.
    """
    if not tensors:
        return {}
    settings = SessionSettings("CPUExecutionProvider", threads).without_spinning()
    shapes = _shapes(model, tensors, next(iter(batches())), settings)
    found: dict[str, Gram] = {}
    for group in plan_passes(tensors, shapes, max_memory_mb):
        sums = {name: _Sum(name, tensors[name]) for name in group}
        with open_watched(model, group, settings) as watched:
            for batch in batches():
                for name, values in watched.run(batch).items():
                    sums[name].add(values)
        found.update({name: total.gram() for name, total in sums.items()})
    return found


def plan_passes(
    tensors: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], max_memory_mb: float
) -> list[list[str]]:
    """Groups of tensors, in order, each within the memory; `shapes` are those of one batch.

    A tensor holds its values (as float32) and its sums until the pass ends; at work, a product of the size of its sums and
    some rows as float64.

    Raises:
        CandidateRefused: `infrastructure`: a single tensor takes more than allowed.
    """
    rows = {name: math.prod(shapes[name][:-1]) for name in tensors}
    held = {name: 4.0 * rows[name] * k + 8 * k * (k + 1) for name, k in tensors.items()}
    at_work = {name: 8.0 * k * (k + min(rows[name], ROWS_AT_ONCE)) for name, k in tensors.items()}

    def refuse(name: str, needed: float) -> CandidateRefused:
        return CandidateRefused(
            kind="infrastructure",
            found=f"{needed / 1e6:.0f} MB for the Gram matrix of {name!r}, {shapes[name]} a batch",
            expected=f"at most {max_memory_mb:g} MB",
            fix="allow more memory, take smaller batches, or exclude the nodes that read it",
        )

    return split_by_memory(held, at_work, max_memory_mb * 1e6, refuse)


class _Sum:
    """The sums of one tensor so far."""

    def __init__(self, name: str, channels: int) -> None:
        self._name = name
        self._gram = Gram(np.zeros((channels, channels)), np.zeros(channels), 0)
        self._absolute = np.zeros(channels)

    def add(self, values: NDArray[Any]) -> None:
        """Add a batch, `[..., K]`."""
        rows = values.reshape(-1, values.shape[-1])
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
            self._gram.matrix[...] += part.T @ part
            self._absolute += np.abs(part, out=part).sum(axis=0)
        self._gram = replace(self._gram, rows=self._gram.rows + len(rows))

    def gram(self) -> Gram:
        """What was added.

        Raises:
            CandidateRefused: `invalid`: a value was not finite.
        """
        if not np.isfinite(self._absolute).all():
            raise CandidateRefused(
                kind="invalid",
                found=f"NaN or Inf among the values of {self._name!r}",
                expected="finite activations on the calibration samples",
                fix="find the samples that overflow, or keep the model in float32",
            )
        return replace(self._gram, mean_absolute=self._absolute / max(self._gram.rows, 1))


def _shapes(
    model: Path, tensors: Mapping[str, int], batch: Arrays, settings: SessionSettings
) -> dict[str, tuple[int, ...]]:
    with open_watched(model, tensors, settings, shapes=True) as watched:
        shapes = {name: tuple(shape.tolist()) for name, shape in watched.run(batch).items()}
    for name, channels in tensors.items():
        if not shapes[name] or shapes[name][-1] != channels:
            raise CandidateRefused(
                kind="invalid",
                found=f"{name!r} of shape {shapes[name]}",
                expected=f"{channels} channels along the last axis, as the weight has rows",
                fix="report it with the source model",
            )
    return shapes

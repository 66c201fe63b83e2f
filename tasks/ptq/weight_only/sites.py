"""MatMul nodes that weight-only can quantize, and why the rest are skipped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from tasks.ptq.eight_bit.placement import FLOATS, GraphView
from tasks.ptq.graph.edits import custom_operators, name_nodes, names_read, operator_of, set_nodes, split_gemm
from validators.errors import CandidateRefused
from validators.graph.stored import load_model, to_array

# A constant, and whether it is multiplied transposed.
Key = tuple[str, bool]


@dataclass(frozen=True)
class Site:
    """A MatMul to quantize. Its weight is `constant`, possibly transposed; `shape` is `(K, N)` as multiplied."""

    node: onnx.NodeProto
    constant: str
    transposed: bool
    shape: tuple[int, int]

    @property
    def activation(self) -> str:
        """Tensor that the weight is multiplied with."""
        return str(self.node.input[0])

    @property
    def key(self) -> Key:
        """Key that is equal for sites that share one quantized weight."""
        return self.constant, self.transposed


@dataclass(frozen=True)
class SitePlan:
    """Sites of a graph, and the number of Gemms split into MatMul and Add.

    `left` maps every other MatMul and Gemm, and custom operators, to the reason.
    """

    sites: tuple[Site, ...]
    left: dict[str, str]
    gemm_split: int


@dataclass(frozen=True)
class WeightOnlyReport:
    """Result of a pass over weights alone.

    `quantized` maps nodes to the bits of their weights, `looked_up` the Gather nodes of embeddings that are not tied. `left`
    maps every MatMul, Gemm and custom operator that stays in float to the reason. AWQ's factors were folded into producers or
    inserted as a Mul. `tied`: the constants of tied embeddings.
    """

    quantized: dict[str, int]
    left: dict[str, str]
    gemm_split: int
    factors_folded: int = 0
    factors_inserted: int = 0
    tied: tuple[str, ...] = ()
    looked_up: dict[str, int] = field(default_factory=dict)


def find_sites(graph: onnx.GraphProto, *, block_size: int, exclude: Collection[str], bits: int = 4) -> SitePlan:
    """Split Gemm nodes into MatMul and Add, name all nodes, and find the sites. `exclude` names a Gemm by its own name.

    `bits` is the width of a weight: a site takes fewer bytes in blocks than in float.

    Raises:
        CandidateRefused: `invalid`: `exclude` has an unknown name.
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
    view = GraphView(graph)
    for value in graph.input:
        view.constants.pop(value.name, None)  # callers can override it, so it is not constant
    excluded = {*exclude, *(split[name] for name in exclude if name in split)}
    sites: list[Site] = []
    left = custom_operators(graph)
    for node in graph.node:
        if operator_of(node) in ("MatMul", "Gemm"):
            found = "excluded" if node.name in excluded else _site(view, node, block_size, bits)
            if isinstance(found, Site):
                sites.append(found)
            else:
                left[node.name] = found
    return SitePlan(tuple(sites), left, len(split))


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Set the graph's nodes, and drop Transposes and constants that nothing reads any more."""
    reads = {name for node in nodes for name in names_read(node)} | {value.name for value in graph.output}
    set_nodes(graph, [node for node in nodes if operator_of(node) != "Transpose" or node.output[0] in reads])


def tensors_to_collect(model: Path, *, block_size: int, exclude: Collection[str] = ()) -> dict[str, int]:
    """Return the activations whose Gram matrices GPTQ and AWQ need, with the number of channels of each.

    Raises:
        CandidateRefused: `invalid`: `exclude` has an unknown name.
    """
    sites = find_sites(load_model(model).graph, block_size=block_size, exclude=exclude).sites
    return {site.activation: site.shape[0] for site in sites}


def _site(view: GraphView, node: onnx.NodeProto, block_size: int, bits: int) -> Site | str:
    """Return the node's site, or the reason why it is skipped."""
    if node.op_type == "Gemm":
        return "a Gemm with alpha, beta or transA, or without a constant weight"
    name, maker = node.input[1], view.producer.get(node.input[1])
    transposed = maker is not None and operator_of(maker) == "Transpose" and maker.input[0] in view.constants
    if maker is not None and transposed:
        name = maker.input[0]
    if name not in view.constants:
        return "its second input is not constant"
    weight = view.constants[name]
    if len(weight.dims) != 2:
        return f"its weight has {len(weight.dims)} axes, not 2"
    if weight.data_type not in FLOATS:
        return f"its weight is {onnx.TensorProto.DataType.Name(weight.data_type)}, not FLOAT or FLOAT16"
    rows, columns = reversed(weight.dims) if transposed else weight.dims
    taken, size = -(-rows // block_size) * (block_size * bits // 8 + 4), rows * to_array(weight).itemsize
    if taken >= size:
        return f"too small: a column of {rows} weights takes {size} bytes, and {taken} in blocks of {block_size}"
    if not np.isfinite(to_array(weight)).all():
        return "its weight has NaN or Inf"
    return Site(node, name, transposed, (rows, columns))

"""Embedding tables in INT8 or INT4; a tied one is also, transposed, the weight of the head.

Quantizing a tied head alone makes the file larger, since the embedding keeps the float table. Here GatherBlockQuantized and
MatMulNBits (both com.microsoft, ONNX Runtime's ContribOperators.md) read the same bytes, MatMulNBits through a Reshape:

    codes        uint8 [tokens, K * bits / 8]            as MatMulNBits has them: [tokens, blocks, block_size * bits / 8]
    scales       float [tokens, blocks]                                           [tokens * blocks]
    zero points  uint8 [tokens, ceil(blocks * bits / 8)]                          flat
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from tasks.ptq.graph.edits import (
    MICROSOFT,
    Names,
    attribute,
    drop_unused_initializers,
    initializers,
    names_read,
    operator_of,
)
from tasks.ptq.weight_only.int4_grid import LARGEST_BYTE, MIDDLE_BYTE, nibbles
from validators.graph.stored import from_array, load_model, save_model, spilling, to_array

if TYPE_CHECKING:
    from tasks.ptq.weight_only.sites import Site

TableBits = Literal[4, 8]
HEAD = f"{MICROSOFT}:MatMulNBits"
# Rows of the table rounded at once: float64 of 49,152 tokens would take 226 MB.
ROWS_AT_ONCE = 4096
# Numbers of an embedding that is worth its blocks: less than a quarter of a megabyte stays as it is.
LEAST_NUMBERS = 2**16
# Block sizes to choose from when a table shares its bytes with no head: larger ones take fewer bytes and lose more accuracy.
TABLE_BLOCKS = (128, 64, 32, 16)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class EmbeddingTable:
    """A constant `[tokens, K]` that only Gather nodes (along axis 0) read, and if it is tied the Transposes of some sites."""

    constant: str
    gathers: tuple[str, ...]
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Rows:
    """A table quantized in blocks of its rows; the module docstring gives the shapes of `codes`, `scales`, `zero_points`."""

    codes: Bytes
    scales: NDArray[Any]
    zero_points: Bytes


def retie(graph: onnx.GraphProto) -> int:
    """Replace each head weight that is a transposed copy of a table by a Transpose of the table; return how many.

    Constant folding makes such copies. A runtime would hold both, and quantization could not share one.
    """
    constants = initializers(graph)
    looked_up = [
        constants[node.input[0]] for node in graph.node if operator_of(node) == "Gather" and node.input[0] in constants
    ]
    tables = {table.name: to_array(table) for table in looked_up if len(table.dims) == 2}
    names = Names(graph)
    made = 0
    for node in list(graph.node):
        weight = constants.get(node.input[1]) if operator_of(node) == "MatMul" else None
        if weight is None:
            continue
        for name, table in tables.items():
            if list(weight.dims) == [*reversed(table.shape)] and np.array_equal(to_array(weight).T, table):
                node.input[1] = names.new(f"{name}_transposed")
                table_name = names.new(f"{node.name}_table")
                made_by = make_node("Transpose", [name], [node.input[1]], name=table_name, perm=[1, 0])
                graph.node.insert(list(graph.node).index(node), made_by)
                made += 1
                break
    drop_unused_initializers(graph)
    return made


@spilling()
def untie(model: Path) -> int:
    """Store what Reshape nodes make of constants for MatMulNBits, in place; return how many.

    OpenVINO reads blocks of weights from constants alone. A tied table is then stored twice.
    """
    proto = load_model(model)
    constants = initializers(proto.graph)
    weights = {name for node in proto.graph.node if operator_of(node) == HEAD for name in node.input[1:]}
    made = 0
    for node in list(proto.graph.node):
        if operator_of(node) == "Reshape" and node.input[0] in constants and node.output[0] in weights:
            array, shape = (to_array(constants[name]) for name in node.input)
            proto.graph.initializer.append(from_array(array.reshape(shape), node.output[0]))
            proto.graph.node.remove(node)
            made += 1
    if made:
        drop_unused_initializers(proto.graph)
        save_model(proto, model)
    return made


def find_tables(
    graph: onnx.GraphProto, sites: Sequence[Site], *, block_size: int, exclude: Collection[str] = ()
) -> tuple[EmbeddingTable, ...]:
    """Return the embeddings whose rows divide into whole blocks: tied ones, and others of `LEAST_NUMBERS` float32 numbers.

    All nodes must have names. A table that one of the nodes `exclude` looks up is left out.
    """
    tables, constants = [], initializers(graph)
    looked_up = (node.input[0] for node in graph.node if operator_of(node) == "Gather" and node.input[0] in constants)
    for name in dict.fromkeys(looked_up):
        table = constants[name]
        readers = [node for node in graph.node if name in names_read(node)]
        gathers = [node for node in readers if operator_of(node) == "Gather" and attribute(node, "axis", 0) == 0]
        of_table = tuple(site for site in sites if site.constant == name)
        others = len(readers) - len(gathers) - sum(operator_of(node) == "Transpose" for node in readers)
        if others or any(node.name in exclude or node.input[0] != name for node in gathers):
            continue
        if of_table:
            taken = bool(gathers) and all(site.transposed and site.shape[0] % block_size == 0 for site in of_table)
        else:
            taken = len(gathers) == len(readers) and _is_embedding(table, block_size)
        if taken:
            tables.append(EmbeddingTable(name, tuple(node.name for node in gathers), of_table))
    return tuple(tables)


def _is_embedding(table: onnx.TensorProto, block_size: int) -> bool:
    if len(table.dims) != 2 or table.data_type != onnx.TensorProto.FLOAT or table.dims[1] % block_size:
        return False
    return math.prod(table.dims) >= LEAST_NUMBERS and bool(np.isfinite(to_array(table)).all())


def round_rows(table: NDArray[Any], *, bits: TableBits, block_size: int) -> Rows:
    """Round each row's blocks to nearest, on one grid per block.

    `table` is float `[tokens, K]`, K a multiple of `block_size`. With 4 bits a block has 15 steps from minimum to maximum,
    zero included and exact. With 8 bits it is symmetric like `round_to_bytes`, and can be exported as llama.cpp's Q8_0.

    >>> rows = round_rows(np.array([[-1.0] + [2.0] * 15], np.float32), bits=4, block_size=16)
    >>> rows.codes[0, :2].tolist(), rows.scales.astype(str).tolist(), rows.zero_points.tolist()  # 0 | 15 << 4, 15 | 15 << 4
    ([240, 255], [['0.2']], [[5]])
    """
    parts = [_round(table[at : at + ROWS_AT_ONCE], bits, block_size) for at in range(0, len(table), ROWS_AT_ONCE)]
    return Rows(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate([part.zero_points for part in parts]),
    )


def _round(part: NDArray[Any], bits: TableBits, block_size: int) -> Rows:
    top = 2**bits - 1
    blocks = part.reshape(len(part), -1, block_size).astype(np.float64)
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    widths = np.maximum(high, -low) / LARGEST_BYTE if bits == 8 else (high - low) / top
    scales = widths.astype(part.dtype)
    scales[scales == 0] = 1  # a block of zeros, or a scale that underflows float16
    steps = scales.astype(np.float64)
    zeros = np.full(steps.shape, MIDDLE_BYTE) if bits == 8 else np.clip(np.rint(-low / steps), 0, top)
    codes = np.clip(np.rint(blocks / steps[..., None]) + zeros[..., None], 0, top)
    return Rows(_stored(codes.reshape(len(part), -1), bits), scales, _stored(zeros.astype(np.float64), bits))


def _stored(codes: NDArray[np.float64], bits: TableBits) -> Bytes:
    """Pack codes row by row: 8-bit codes unchanged, 4-bit codes two per byte, the earlier one in the low half."""
    whole = codes.astype(np.uint8)
    return whole if bits == 8 else nibbles(whole)


def quantize_table(
    graph: onnx.GraphProto,
    table: EmbeddingTable,
    names: Names,
    bits: TableBits,
    block_size: int,
    accuracy_level: int,
) -> dict[str, list[onnx.NodeProto]]:
    """Add a table's bytes to the graph's constants; return the replacement nodes by the name of the node they replace."""
    stored = store_table(graph, table.constant, names, bits=bits, block_size=block_size)
    new = {node.name: [look_up(node, stored, bits, block_size)] for node in graph.node if node.name in table.gathers}
    reshapes = _flattened(graph, table, stored, names, block_size) if table.sites else []
    flat = [reshape.output[0] for reshape in reshapes]
    for index, site in enumerate(table.sites):
        product = product_of(site, [site.activation, *flat], bits, block_size, accuracy_level)
        new[site.node.name] = [*(reshapes if index == 0 else []), product]
    return new


def store_table(graph: onnx.GraphProto, constant: str, names: Names, *, bits: TableBits, block_size: int) -> list[str]:
    """Add the rounded rows of a table to the constants; return the names of codes, scales and zero points."""
    rows = round_rows(to_array(initializers(graph)[constant]), bits=bits, block_size=block_size)
    parts = {"codes": rows.codes, "scales": rows.scales, "zero_points": rows.zero_points}
    return [names.store(graph, f"{constant}_{part}{bits}", array) for part, array in parts.items()]


def _flattened(
    graph: onnx.GraphProto, table: EmbeddingTable, stored: Sequence[str], names: Names, block_size: int
) -> list[onnx.NodeProto]:
    """Return the Reshape nodes to the shapes that MatMulNBits reads, and add these shapes to the constants."""
    width, tokens = table.sites[0].shape
    nodes = []
    for name, shape in zip(stored, ([tokens, width // block_size, -1], [-1], [-1]), strict=True):
        target, end = names.store(graph, f"{name}_shape", np.array(shape, np.int64)), names.new(f"{name}_flat")
        nodes.append(make_node("Reshape", [name, target], [end], name=names.new(f"{name}_reshape")))
    return nodes


def look_up(node: onnx.NodeProto, names: Sequence[str], bits: TableBits, block_size: int) -> onnx.NodeProto:
    """Return the GatherBlockQuantized, along axis 0, that replaces a Gather; `names` as `store_table` returns them."""
    codes, scales, zeros = names
    return make_node(
        "GatherBlockQuantized",
        [codes, node.input[1], scales, zeros],
        list(node.output),
        name=node.name,
        domain=MICROSOFT,
        bits=bits,
        block_size=block_size,
        gather_axis=0,
        quantize_axis=1,
    )


def product_of(site: Site, inputs: list[str], bits: int, block_size: int, accuracy_level: int) -> onnx.NodeProto:
    """Return the MatMulNBits of a site: `inputs` are the activation, and codes, scales and zero points of the weight."""
    rows, columns = site.shape
    return make_node(
        "MatMulNBits",
        inputs,
        list(site.node.output),
        name=site.node.name,
        domain=MICROSOFT,
        K=rows,
        N=columns,
        bits=bits,
        block_size=block_size,
        accuracy_level=accuracy_level,
    )

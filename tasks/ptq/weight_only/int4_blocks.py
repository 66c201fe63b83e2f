"""INT4 weights as standard ONNX: DequantizeLinear of opset 21 in blocks along K, as TensorRT takes them.

TensorRT has one grid: codes of -8 to 7 without a zero point, and scales that are strictly positive (NvInfer.h,
IDequantizeLayer). Scales have the shape of the weight, with one row a block in place of K, so that blocks must divide
K. Blocks of 64 and 128 are those that its documentation advises; those of 256 run as a separate dequantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper

from tasks.ptq.eight_bit.qdq_checks import check_variant, interface_of, raise_problem, refuse_model
from tasks.ptq.graph.edits import (
    Names,
    drop_unused_initializers,
    from_array,
    initializers,
    names_read,
    operator_of,
    save_model,
)
from tasks.ptq.weight_only.awq import weight_of
from tasks.ptq.weight_only.int4_grid import (
    MIDDLE_CODE,
    Floats,
    Grid,
    QuantizedWeight,
    as_blocks,
    column_chunks,
    join_columns,
    quantize_on,
)
from tasks.ptq.weight_only.sites import find_sites

BLOCK_SIZES = (64, 128)


@dataclass(frozen=True)
class BlockedWeight:
    """Codes (INT4 `[K, N]`), scales (float `[K / block, N]`) and the node that reads them."""

    codes: onnx.TensorProto
    scales: onnx.TensorProto
    node: onnx.NodeProto


@dataclass(frozen=True)
class BlocksReport:
    """Names of the `quantized` nodes; of those `left`, with the reason; and how many Gemm became MatMul and Add first."""

    quantized: tuple[str, ...]
    left: dict[str, str]
    gemm_split: int


def why_no_blocks(rows: int, block_size: int) -> str:
    """Why a weight of `rows` along K stays in float; empty when it does not.

    >>> why_no_blocks(384, 128), why_no_blocks(200, 128)
    ('', 'blocks of 128 do not divide its 200 channels')
    """
    return f"blocks of {block_size} do not divide its {rows} channels" if rows % block_size else ""


def positive_scales(low: Floats, high: Floats) -> Floats:
    """The scales of blocks with these least and greatest values (any shape): the smallest that let codes of -8 to 7 reach both.

    >>> positive_scales(np.array([-8.0, -1.0]), np.array([3.0, 14.0])).tolist()
    [1.0, 2.0]
    """
    return np.asarray(np.maximum(high / (MIDDLE_CODE - 1), low / -MIDDLE_CODE))


def round_blocks(weight: NDArray[Any], block_size: int) -> QuantizedWeight:
    """A weight `[K, N]`, of which `block_size` divides K, rounded to nearest on the smallest grids with positive scales."""
    parts = []
    for columns in column_chunks(weight.shape[1]):
        blocks = as_blocks(weight[:, columns], block_size)
        scales = positive_scales(blocks.min(axis=1), blocks.max(axis=1)).astype(weight.dtype).astype(np.float64)
        grid = Grid(np.where(scales > 0, scales, 1.0), np.full(scales.shape, float(MIDDLE_CODE)))
        parts.append(quantize_on(grid, weight[:, columns], block_size, symmetric=True))
    return join_columns(parts)


def dequantize_blocks(
    weight: QuantizedWeight, dtype: DTypeLike, names: tuple[str, str, str], node: str
) -> BlockedWeight:
    """The DequantizeLinear that gives a weight `[K, N]` back in `dtype`; `names` are of its codes, scales and output.

    Raises:
        ValueError: a zero point, a scale that is not above zero in `dtype`, or a block that does not divide K.
    """
    scales: NDArray[Any] = weight.grid.scales.astype(dtype)
    rows, columns = weight.codes.shape
    if not weight.symmetric or not (scales > 0).all() or rows % weight.block_size:
        raise ValueError(
            f"blocks of {weight.block_size} over {rows} rows: expected symmetric ones that divide K, scales > 0"
        )
    codes, scale, end = names
    # Two to a byte, the earlier in the low four bits, as two's complement (onnx.proto, TensorProto.raw_data).
    flat = (weight.codes.astype(np.int8) - MIDDLE_CODE).astype(np.int8).reshape(-1).view(np.uint8) & 0xF
    flat = np.pad(flat, (0, flat.size % 2))
    packed = flat[0::2] | (flat[1::2] << 4)
    return BlockedWeight(
        helper.make_tensor(codes, TensorProto.INT4, [rows, columns], packed.tobytes(), raw=True),
        from_array(scales, scale),
        helper.make_node("DequantizeLinear", [codes, scale], [end], name=node, axis=0, block_size=weight.block_size),
    )


def quantize_blocks(model: Path, variant: Path, *, block_size: int) -> BlocksReport:
    """Write a variant whose MatMul and Gemm nodes read constant weights from INT4 blocks; activations stay as they are.

    Raises:
        CandidateRefused: `unsupported`: no node can be quantized, or the model is quantized already; `invalid`: the result is
            not a valid model of the same interface.
    """
    proto = onnx.load(model)
    refuse_model(proto, "tensorrt", "int8", ())
    interface = interface_of(proto.graph)
    plan = find_sites(proto.graph, block_size=block_size, exclude=())
    left = dict(plan.left)
    left |= {site.node.name: why for site in plan.sites if (why := why_no_blocks(site.shape[0], block_size))}
    sites = [site for site in plan.sites if site.node.name not in left]
    if not sites:
        found = f"no MatMul or Gemm to quantize: {next(iter(left.items()), 'there is none')}"
        raise_problem(("unsupported", found, f"channels in blocks of {block_size}", "take smaller blocks, or INT8"))
    graph, constants, allocator = proto.graph, initializers(proto.graph), Names(proto.graph)
    made: dict[tuple[str, bool], BlockedWeight] = {}
    for site in sites:
        if site.key not in made:
            weight = weight_of(constants, site.key)
            stem = f"{site.constant}_transposed" if site.transposed else site.constant
            codes, scales, end = (allocator.new(f"{stem}_{part}") for part in ("int4", "scales", "dequantized"))
            node = allocator.new(f"{stem}_dequantize")
            rounded = round_blocks(weight, block_size)
            made[site.key] = dequantize_blocks(rounded, weight.dtype, (codes, scales, end), node)
        site.node.input[1] = made[site.key].node.output[0]
    graph.initializer.extend(tensor for one in made.values() for tensor in (one.codes, one.scales))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    read = {name for node in nodes for name in names_read(node)} | {value.name for value in graph.output}
    del graph.node[:]
    graph.node.extend(one.node for one in made.values())
    # A weight that came through a Transpose leaves that behind.
    graph.node.extend(node for node in nodes if operator_of(node) != "Transpose" or node.output[0] in read)
    drop_unused_initializers(graph)
    save_model(proto, variant)
    check_variant(variant, interface)
    return BlocksReport(tuple(site.node.name for site in sites), left, plan.gemm_split)

"""INT4 weights in standard ONNX for TensorRT: DequantizeLinear of opset 21 in blocks along K.

TensorRT has one grid: codes of -8 to 7 without a zero point, and strictly positive scales (NvInfer.h, IDequantizeLayer).
Scales have the shape of the weight with one row per block, so blocks must divide K. TensorRT's documentation advises blocks
of 64 and 128; blocks of 256 run as a separate dequantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper

from tasks.ptq.eight_bit.placement import IN_HALF
from tasks.ptq.eight_bit.qdq_checks import check_variant, refuse, refuse_model
from tasks.ptq.graph.edits import Names, initializers, interface_of
from tasks.ptq.weight_only.awq import weight_of
from tasks.ptq.weight_only.int4_grid import (
    MIDDLE_CODE,
    Floats,
    Grid,
    QuantizedWeight,
    as_blocks,
    column_chunks,
    join_columns,
    nibbles,
    quantize_on,
)
from tasks.ptq.weight_only.sites import Key, WeightOnlyReport, find_sites, replace_nodes
from validators.graph.stored import from_array, load_model, save_model, spilling

BLOCK_SIZES = (64, 128)


@dataclass(frozen=True)
class BlockedWeight:
    """Codes (INT4 `[K, N]`), scales (float `[K / block, N]`) and the DequantizeLinear that reads them."""

    codes: onnx.TensorProto
    scales: onnx.TensorProto
    node: onnx.NodeProto


def why_no_blocks(rows: int, block_size: int) -> str:
    """Return why a weight of `rows` along K stays in float, or "" if it can be quantized.

    >>> why_no_blocks(384, 128), why_no_blocks(200, 128)
    ('', 'blocks of 128 do not divide its 200 channels')
    """
    return f"blocks of {block_size} do not divide its {rows} channels" if rows % block_size else ""


def positive_scales(low: Floats, high: Floats) -> Floats:
    """Return the smallest scales with which codes of -8 to 7 reach both the least and the greatest values.

    `low`, `high` and the result are float64 of one shape.

    >>> positive_scales(np.array([-8.0, -1.0]), np.array([3.0, 14.0])).tolist()
    [1.0, 2.0]
    """
    return np.asarray(np.maximum(high / (MIDDLE_CODE - 1), low / -MIDDLE_CODE))


def round_blocks(weight: NDArray[Any], block_size: int) -> QuantizedWeight:
    """Round a float weight `[K, N]` to nearest on the smallest grids with positive scales; `block_size` must divide K."""
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
    """Return the DequantizeLinear, named `node`, that restores a weight `[K, N]` in `dtype`, with its constants.

    `names` are the names of its codes, scales and output.

    Raises:
        ValueError: the weight has zero points, a scale is not positive in `dtype`, or blocks do not divide K.
    """
    scales: NDArray[Any] = weight.grid.scales.astype(dtype)
    rows, columns = weight.codes.shape
    if not weight.symmetric or not (scales > 0).all() or rows % weight.block_size:
        raise ValueError(
            f"blocks of {weight.block_size} over {rows} rows: expected symmetric ones that divide K, scales > 0"
        )
    codes, scale, end = names
    # Two codes per byte in two's complement, the earlier in the low four bits (onnx.proto, TensorProto.raw_data).
    # Flipping the highest of four bits subtracts 8.
    packed = nibbles((weight.codes ^ np.uint8(MIDDLE_CODE)).reshape(1, -1))
    return BlockedWeight(
        helper.make_tensor(codes, TensorProto.INT4, [rows, columns], packed.tobytes(), raw=True),
        from_array(scales, scale),
        helper.make_node("DequantizeLinear", [codes, scale], [end], name=node, axis=0, block_size=weight.block_size),
    )


@spilling()
def quantize_blocks(model: Path, variant: Path, *, block_size: int) -> WeightOnlyReport:
    """Write a variant whose MatMul and Gemm nodes read constant weights from INT4 blocks; activations are unchanged.

    Raises:
        CandidateRefused: `unsupported`: no node can be quantized, or the model is quantized already; `invalid`: the result is
            not a valid model with the same inputs and outputs.
    """
    proto = load_model(model)
    refuse_model(proto, IN_HALF, "int8", ())
    interface = interface_of(proto.graph)
    plan = find_sites(proto.graph, block_size=block_size, exclude=())
    left = plan.left | {site.node.name: why for site in plan.sites if (why := why_no_blocks(site.shape[0], block_size))}
    sites = [site for site in plan.sites if site.node.name not in left]
    if not sites:
        found = f"no MatMul or Gemm to quantize: {next(iter(left.items()), 'there is none')}"
        refuse("unsupported", found, f"channels in blocks of {block_size}", "take smaller blocks, or INT8")
    graph, constants, allocator = proto.graph, initializers(proto.graph), Names(proto.graph)
    made: dict[Key, BlockedWeight] = {}
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
    replace_nodes(graph, [*(one.node for one in made.values()), *graph.node])
    save_model(proto, variant)
    check_variant(variant, interface)
    return WeightOnlyReport({site.node.name: 4 for site in sites}, left, plan.gemm_split)

"""Rewrites of an exported program for a GPU: products in 16 bits, INT8, FP8 and INT4 by the kernels that PyTorch brings.

Linear layers become the modules below; the other products are computed in the 16-bit type of the form. The same rewrites run
on a processor, whose ATen kernels have the same names, so that tests execute them.

Only the compiling process imports this module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._inductor.lowering import add_layout_constraint, require_contiguous
from torch.nn import functional

from tasks.engines.inductor.grams import grams
from tasks.engines.inductor.programs import IN_HALF, Tensors, in_half
from tasks.ptq.weight_only.int4_grid import MIDDLE_CODE, QuantizedWeight
from tasks.ptq.weight_only.roundings import BLOCKS
from validators.job.methods import NEAREST, ROUNDINGS

aten = torch.ops.aten
# aten/src/ATen/native/cuda/Blas.cpp: `_int_mm` takes more than 16 rows, and sizes that are multiples of 8; `_scaled_mm`
# takes multiples of 16.
_INT8_ROWS, _INT8_MULTIPLE, _FP8_MULTIPLE = 17, 8, 16
# aten/src/ATen/native/cuda/int4mm.cu: tiles of 8 columns, and of 16 rows times 2, 4 or 8.
_INT4_COLUMNS, _INT4_ROWS, _INT4_TILES = 8, 16, (8, 4, 2)
_LARGEST_INT8, _LARGEST_E4M3 = 127.0, 448.0
# A row of zeros has no range.
_SMALLEST = 1e-12
_ATTENTION = aten.scaled_dot_product_attention.default


@dataclass(frozen=True)
class LinearSite:
    """A product of a tensor with a constant matrix: the node, the weight `[N, K]` and the bias's node, if any."""

    node: torch.fx.Node
    weight: torch.Tensor
    bias: torch.fx.Node | None


class Int8Rows(torch.nn.Module):
    """Linear layer in INT8: a scale for each output channel, and one for each row of activations at run time.

    Both are amax / 127 without a zero point, as in LLM.int8() without outliers (Dettmers et al., 2022) and torchao's
    `Int8DynamicActivationInt8WeightConfig`.
    """

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=_SMALLEST) / _LARGEST_INT8
        self.register_buffer("weight", torch.round(weight / scale).to(torch.int8))
        self.register_buffer("scale", scale.t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).clamp(min=_SMALLEST) / _LARGEST_INT8
        codes = torch.round(rows / scale).to(torch.int8)
        count = codes.shape[0]
        missing = torch.sym_max(_INT8_ROWS - count, 0)  # type: ignore[no-untyped-call]  # torch has no types for it
        padded = functional.pad(codes, (0, 0, 0, missing))
        sums = torch._int_mm(padded, self.weight.t())[:count]
        return (sums.to(torch.float32) * scale * self.scale).reshape(*x.shape[:-1], -1)


class Fp8(torch.nn.Module):
    """Linear layer in E4M3, scale = amax / 448: by output channel and row of activations, or by tensor."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor, *, by_row: bool) -> None:
        super().__init__()
        self._by_row = by_row
        amax = weight.abs().amax(1, keepdim=True) if by_row else weight.abs().amax()
        scale = amax.clamp(min=_SMALLEST) / _LARGEST_E4M3
        self.register_buffer("weight", (weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        amax = rows.abs().amax(1, keepdim=True) if self._by_row else rows.abs().amax()
        scale = amax.clamp(min=_SMALLEST) / _LARGEST_E4M3
        # The cast does not saturate.
        codes = (rows / scale).clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)
        # Scales by row need an output in bfloat16.
        found = torch._scaled_mm(codes, self.weight.t(), scale, self.scale, out_dtype=torch.bfloat16)
        return found.to(torch.float32).reshape(*x.shape[:-1], -1)


class Int4Weight(torch.nn.Module):
    """Linear layer with a weight in INT4 by group along K, and activations in bfloat16 (`aten::_weight_int4pack_mm`)."""

    def __init__(self, quantized: QuantizedWeight, device: torch.device) -> None:
        super().__init__()
        codes = torch.from_numpy(np.ascontiguousarray(quantized.codes.T)).to(device)
        tiles = _int4_tiles(codes.shape[1])
        self._group, self._on_gpu = quantized.block_size, device.type == "cuda"
        if self._on_gpu:
            packed = aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)
        else:
            packed = aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), tiles)
        self.register_buffer("weight", packed)
        # The kernel computes (code - 8) * scale + zero.
        scales = torch.from_numpy(quantized.grid.scales)
        zeros = (MIDDLE_CODE - torch.from_numpy(quantized.grid.zero_points)) * scales
        self.register_buffer("scales", torch.stack([scales, zeros], dim=-1).to(device, torch.bfloat16).contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        multiply = aten._weight_int4pack_mm if self._on_gpu else aten._weight_int4pack_mm_for_cpu
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        found: torch.Tensor = multiply(rows, self.weight, self._group, self.scales)
        return found.to(torch.float32).reshape(*x.shape[:-1], -1)


def rewrite(
    module: torch.fx.GraphModule, recipe: dict[str, Any], device: torch.device, batches: Sequence[Tensors]
) -> dict[str, int]:
    """Rewrite the products of an exported module for a recipe; return the counts of changes.

    `recipe` has the fields of a `Candidate`; methods with Gram matrices read `batches`, the calibration samples. Everything but
    products stays in float32, as under `torch.autocast`.
    """
    precision = recipe["precision"]
    if precision == "fp32":
        return {}
    for multiply in (aten._weight_int4pack_mm.default, aten._weight_int4pack_mm_for_cpu.default):
        # The kernels check for it, and Inductor may choose another layout for what it fuses before them.
        add_layout_constraint(multiply, require_contiguous)
    changes: dict[str, int] = {}
    if precision in _LAYERS:
        fitting = []
        for site in sites_of(module):
            reason = _why_left(precision, recipe, site.weight)
            key = f"linear layers left in bfloat16: {reason}" if reason else f"linear layers in {precision.upper()}"
            changes[key] = changes.get(key, 0) + 1
            if not reason:
                fitting.append(site)
        # All layers are made before the first is put in place: the Gram matrices are those of the float model.
        for site, layer in list(_layers(module, fitting, recipe, device, batches)):
            _replace(module, site, layer)
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
    half = torch.float16 if precision == "fp16" else torch.bfloat16
    changes[f"products in {str(half).removeprefix('torch.')}"] = in_half(module, half, {*IN_HALF, _ATTENTION})
    return {what: count for what, count in changes.items() if count}


def sites_of(module: torch.fx.GraphModule) -> list[LinearSite]:
    """Return the products with a constant matrix, in the order of the graph."""
    found = []
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in (aten.linear.default, aten.matmul.default, aten.mm.default):
            continue
        weight = _constant(module, node.args[1])
        if weight is None or weight.dim() != 2 or weight.dtype != torch.float32:
            continue
        if node.target is aten.linear.default:
            found.append(LinearSite(node, weight, node.args[2] if len(node.args) > 2 else None))
        else:
            found.append(LinearSite(node, weight.t(), None))
    return found


def _layers(
    module: torch.fx.GraphModule,
    sites: Sequence[LinearSite],
    recipe: dict[str, Any],
    device: torch.device,
    batches: Sequence[Tensors],
) -> Iterable[tuple[LinearSite, torch.nn.Module]]:
    """Yield the layer for each site, those that read the same tensor one after the other."""
    make = _LAYERS[recipe["precision"]](recipe, device)
    # By the name of the tensor's node.
    readers: dict[str, list[LinearSite]] = {}
    for site in sites:
        readers.setdefault(str(site.node.args[0]), []).append(site)
    seen: Iterable[tuple[str, torch.Tensor | None]] = ((name, None) for name in readers)
    if ROUNDINGS.get(recipe["weight_method"], NEAREST).needs_grams:
        seen = grams(module, {name: read[0].weight.shape[1] for name, read in readers.items()}, batches)
    for name, gram in seen:
        for site in readers[name]:
            yield site, make(site.weight.detach().contiguous(), gram)


def _constant(module: torch.fx.GraphModule, node: Any) -> torch.Tensor | None:
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(module)
    return value if isinstance(value, torch.Tensor) else None


def _why_left(precision: str, recipe: dict[str, Any], weight: torch.Tensor) -> str:
    """Return why no kernel takes a weight `[N, K]`; empty if one does."""
    columns, rows = weight.shape
    if precision == "int4":
        group = recipe["block_size"]
        if columns % _INT4_COLUMNS or rows % group or not _int4_tiles(rows):
            return f"sizes that the kernel for groups of {group} does not take"
        return ""
    multiple = _INT8_MULTIPLE if precision == "int8" else _FP8_MULTIPLE
    return f"sizes that are no multiples of {multiple}" if columns % multiple or rows % multiple else ""


def _int4_tiles(rows: int) -> int:
    return next((tiles for tiles in _INT4_TILES if rows % (tiles * _INT4_ROWS) == 0), 0)


def _replace(module: torch.fx.GraphModule, site: LinearSite, layer: torch.nn.Module) -> None:
    """Put a module in the place of a product; the bias is added to its float32 result."""
    name = f"quantized_{site.node.name}"
    module.add_submodule(name, layer)
    with module.graph.inserting_before(site.node):
        made = module.graph.call_module(name, (site.node.args[0],))
        if site.bias is not None:
            made = module.graph.call_function(aten.add.Tensor, (made, site.bias))
    site.node.replace_all_uses_with(made)
    module.graph.erase_node(site.node)
    module.recompile()


# From a weight `[N, K]`, and the Gram matrix `[K, K]` of its activations, if the method reads one.
_Make = Callable[[torch.Tensor, torch.Tensor | None], torch.nn.Module]


def _int8(_recipe: dict[str, Any], _device: torch.device) -> _Make:
    return lambda weight, _gram: Int8Rows(weight)


def _fp8(recipe: dict[str, Any], _device: torch.device) -> _Make:
    return lambda weight, _gram: Fp8(weight, by_row=recipe["granularity"] == "pc")


def _int4(recipe: dict[str, Any], device: torch.device) -> _Make:
    size, symmetric, round_blocks = recipe["block_size"], not recipe["asymmetric"], BLOCKS[recipe["weight_method"]]

    def make(weight: torch.Tensor, gram: torch.Tensor | None) -> torch.nn.Module:
        values, sums = weight.t().cpu().numpy(), None if gram is None else gram.numpy()
        return Int4Weight(round_blocks(values, sums, block_size=size, symmetric=symmetric, dtype=np.float32), device)

    return make


_LAYERS: dict[str, Callable[[dict[str, Any], torch.device], _Make]] = {"int8": _int8, "fp8": _fp8, "int4": _int4}

"""Weight-only quantization: MatMul nodes with a constant weight become MatMulNBits.

The methods that round are in `roundings.py`; INT8, where little is left to gain, is rounded to nearest. Where factors for the
activations cannot be folded, there is one Mul per activation. An embedding becomes INT8, and a tied one for the head too,
rounded to nearest (see `tasks.ptq.eight_bit.tied`). Each layer is treated separately, with activations of the float model:
activations behind quantized layers, which differ slightly, are not collected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.eight_bit.tied import EmbeddingTable, TableBits, find_tables, product_of, quantize_table, retie
from tasks.ptq.forms import Remember, make_now
from tasks.ptq.graph.edits import (
    Names,
    drop_unused_initializers,
    import_runtime_operators,
    initializers,
    interface_of,
    scratch,
)
from tasks.ptq.weight_only.awq import Scaling, gram_of, scale_channels, weight_of
from tasks.ptq.weight_only.int4_grid import Floats, Packed, pack, round_to_bytes
from tasks.ptq.weight_only.roundings import BLOCKS
from tasks.ptq.weight_only.sites import Key, Site, SitePlan, WeightOnlyReport, find_sites, replace_nodes
from validators.errors import CandidateRefused
from validators.graph.stored import load_model, save_model, spilling
from validators.job.candidate_name import BLOCK_SIZES
from validators.job.methods import NEAREST, ROUNDINGS, VALUES_ALONE, Rounding


@dataclass(frozen=True)
class BlockForm:
    """Bits and block size of one weight."""

    bits: TableBits
    block_size: int

    @property
    def name(self) -> str:
        """The form as text, which `read` turns back: `int4-g32`."""
        return f"int{self.bits}-g{self.block_size}"

    @staticmethod
    def read(name: str) -> BlockForm:
        """Return the form of a name.

        >>> BlockForm.read("int8-g128")
        BlockForm(bits=8, block_size=128)
        """
        bits, _, size = name.removeprefix("int").partition("-g")
        return BlockForm(8 if bits == "8" else 4, int(size))


@dataclass(frozen=True)
class BlockWeights:
    """Settings of weights in blocks: rounding method, channels in per block, whether blocks have a zero point, and bits.

    `forms` has the other forms of INT4 weights, and of embeddings that are not tied, by the nodes that read them.
    `accuracy_level` is that of MatMulNBits.
    """

    method: str
    block_size: int
    symmetric: bool
    accuracy_level: int = 4
    bits: TableBits = 4
    forms: Mapping[str, BlockForm] = field(default_factory=dict)

    @property
    def rounding(self) -> Rounding:
        """The method's row of the catalogue."""
        return ROUNDINGS[self.method]


@spilling()
def quantize_weights(
    model: Path,
    variant: Path,
    weights: BlockWeights,
    *,
    grams: Mapping[str, Gram] | None = None,
    exclude: Collection[str] = (),
    check: Callable[[Path], None] | None = None,
    remember: Remember = make_now,
) -> WeightOnlyReport:
    """Write a variant whose MatMul and Gemm nodes with a constant weight read it from blocks of INT4 or INT8.

    `exclude` names nodes that stay in float (a Gemm by its own name). `grams` holds the Gram matrices of the activations that
    `tensors_to_collect` returns. `check` compares the float graph whose channels a method has scaled with `model`. `remember`
    keeps each weight that is not rounded to nearest. A weight that several nodes read is quantized once, for all their inputs
    together. A weight with other readers also keeps its float form, unless it is a tied embedding.

    Raises:
        CandidateRefused: `unsupported`: no node can be quantized, or the settings exclude each other; `invalid`: the model
            or the variant is not valid ONNX, `exclude` has an unknown name, or Gram matrices are missing or unusable.
    """
    _check_settings(weights)
    _check_valid(model, "the float graph", "export the model again")
    proto = load_model(model)
    before = interface_of(proto.graph)
    plan = plan_weights(proto.graph, weights, exclude=exclude)
    tables, sites = plan.tables, plan.sites
    seen = grams_of(sites, grams or {}) if weights.rounding.needs_grams else {}
    scaling = Scaling()
    if weights.rounding.scales_inputs:
        scaling = scale_channels(proto.graph, sites, seen, block_size=weights.block_size, symmetric=weights.symmetric)
        if check is not None and "folded" in scaling.placed.values():
            with scratch() as folder:
                save_model(_scaled_float(proto, sites, scaling), folder / "scaled.onnx")
                check(folder / "scaled.onnx")
    if weights.rounding.fractions:
        weights = replace(weights, accuracy_level=0)
    new: dict[str, list[onnx.NodeProto]] = {}
    names = Names(proto.graph)
    looked_up: dict[str, int] = {}
    for table in tables:
        form = weights.forms.get(table.gathers[0], BlockForm(8, weights.block_size))
        new |= quantize_table(proto.graph, table, names, form.bits, form.block_size, weights.accuracy_level)
        if not table.sites:
            looked_up |= dict.fromkeys(table.gathers, form.bits)
    stored = _store_all(proto.graph, sites, seen, scaling, weights, names, remember)
    _replace(proto, sites, stored, scaling, weights, new, names)
    if interface_of(proto.graph) != before:
        raise _invalid(
            "other inputs or outputs after the pass", "the same as before", "report it with the source model"
        )
    save_model(proto, variant)
    _check_valid(variant, "the variant", "report it with the source model; take another candidate meanwhile")
    counts = list(scaling.placed.values())
    tied = tuple(table.constant for table in tables if table.sites)
    return WeightOnlyReport(
        {site.node.name: stored[site.key].form.bits for site in sites},
        plan.skipped.left,
        plan.skipped.gemm_split,
        counts.count("folded"),
        counts.count("inserted"),
        tied,
        looked_up,
    )


@dataclass(frozen=True)
class WeightPlan:
    """Embeddings of a graph, the sites that are no heads of tied ones, and what is skipped."""

    tables: tuple[EmbeddingTable, ...]
    sites: tuple[Site, ...]
    skipped: SitePlan


def plan_weights(graph: onnx.GraphProto, weights: BlockWeights, *, exclude: Collection[str] = ()) -> WeightPlan:
    """Find what a candidate quantizes, after tying embeddings again, splitting Gemms and naming nodes in `graph`.

    Raises:
        CandidateRefused: `unsupported`: there is no product, or nothing at all outside `exclude`; `invalid`: `exclude` has an
            unknown name.
    """
    retie(graph)
    plan = find_sites(graph, block_size=weights.block_size, exclude=exclude, bits=weights.bits)
    tables = find_tables(graph, plan.sites, block_size=weights.block_size, exclude=exclude)
    if not plan.sites and not (exclude and tables):
        raise _nothing(plan)
    heads = {site.node.name for table in tables for site in table.sites}
    return WeightPlan(tables, tuple(site for site in plan.sites if site.node.name not in heads), plan)


def _scaled_float(proto: onnx.ModelProto, sites: Sequence[Site], scaling: Scaling) -> onnx.ModelProto:
    """Return the float graph whose sites have weights divided by the factors that were folded into their activations."""
    scaled = onnx.ModelProto()
    scaled.CopyFrom(proto)
    constants, names = initializers(proto.graph), Names(scaled.graph)
    nodes = {node.name: node for node in scaled.graph.node}
    for site in sites:
        if scaling.placed.get(site.activation) == "folded":
            weight = weight_of(constants, site.key)
            divided = weight / scaling.factors[site.activation][:, None]
            name = names.store(scaled.graph, f"{site.constant}_scaled", divided.astype(weight.dtype))
            nodes[site.node.name].input[1] = name
    drop_unused_initializers(scaled.graph)
    return scaled


def _check_settings(weights: BlockWeights) -> None:
    method, wrong = weights.rounding, None
    if weights.block_size not in BLOCK_SIZES:
        wrong = f"blocks of {weights.block_size}", f"one of {BLOCK_SIZES}, which the kernel supports"
    elif weights.bits == 8 and ("int8-weights" not in method.precisions or not weights.symmetric):
        wrong = f"INT8 weights by {method.word}", "symmetric, rounded to nearest"
    elif weights.forms and method.word not in VALUES_ALONE:
        wrong = f"forms of weights from a search by {method.word}", " or ".join(VALUES_ALONE)
    if wrong:
        raise CandidateRefused(kind="unsupported", found=wrong[0], expected=wrong[1], fix="take another candidate")


def _check_valid(path: Path, what: str, fix: str) -> None:
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise _invalid(
            f"{what} is no valid ONNX: {str(error).splitlines()[0]}", "a file that passes onnx.checker", fix
        ) from error


def _nothing(plan: SitePlan) -> CandidateRefused:
    but = "; ".join(f"{name}: {why}" for name, why in list(plan.left.items())[:5])
    return CandidateRefused(
        kind="unsupported",
        found="no MatMul or Gemm with a constant weight" + (f" to quantize ({but})" if but else ""),
        expected="at least one: weight-only exists for these alone",
        fix="take a candidate that quantizes activations too",
    )


def _invalid(found: str, expected: str, fix: str) -> CandidateRefused:
    return CandidateRefused(kind="invalid", found=found, expected=expected, fix=fix)


def grams_of(sites: Sequence[Site], grams: Mapping[str, Gram]) -> dict[str, Gram]:
    """Return the Gram matrix of each activation; raise CandidateRefused if one is missing or has another shape."""
    needed = {site.activation: site.shape[0] for site in sites}
    for name, channels in needed.items():
        if name not in grams or grams[name].matrix.shape != (channels, channels):
            found = f"one of shape {grams[name].matrix.shape}" if name in grams else "none"
            raise _invalid(
                f"Gram matrix of {name!r}: {found}",
                f"one of shape {(channels, channels)}",
                "collect them on this graph",
            )
    return {name: grams[name] for name in needed}


def _in_int4(
    weight: NDArray[Any], gram: Floats | None, factors: Floats | None, settings: BlockWeights
) -> list[NDArray[Any]]:
    """Return the packed arrays of a weight `[K, N]`, its rows first divided by the factors of its activation, if any."""
    size, dtype = settings.block_size, weight.dtype
    if factors is not None and gram is not None:
        weight, gram = weight / factors[:, None], gram * np.outer(factors, factors)
    try:
        rounded = BLOCKS[settings.method](weight, gram, block_size=size, symmetric=settings.symmetric, dtype=dtype)
    except np.linalg.LinAlgError as error:
        raise _invalid(
            f"a Gram matrix without an inverse: {error}", "sums over finite activations", "collect it again"
        ) from error
    return pack(rounded, dtype).arrays


@dataclass(frozen=True)
class _InBlocks:
    """A weight in blocks: its form, the type of its scales, and the constants in the order of the node's inputs."""

    form: BlockForm
    dtype: np.dtype[Any]
    names: list[str]


def _store_all(
    graph: onnx.GraphProto,
    sites: Sequence[Site],
    seen: Mapping[str, Gram],
    scaling: Scaling,
    settings: BlockWeights,
    names: Names,
    remember: Remember,
) -> dict[Key, _InBlocks]:
    """Add each weight in blocks to the constants."""
    if settings.rounding is NEAREST:
        remember = make_now
    constants = initializers(graph)
    own = BlockForm(settings.bits, settings.block_size)
    first = {site.key: site for site in reversed(sites)}
    stored: dict[Key, _InBlocks] = {}
    for key in dict.fromkeys(site.key for site in sites):
        weight, form = weight_of(constants, key), settings.forms.get(first[key].node.name, own)
        if form.bits == 8:
            packed = round_to_bytes(weight, block_size=form.block_size, dtype=weight.dtype)
        else:
            gram = gram_of(key, sites, seen).matrix if seen else None
            of_this = replace(settings, block_size=form.block_size)
            make = partial(_in_int4, weight, gram, scaling.factors.get(first[key].activation), of_this)
            told = settings.method, settings.symmetric, form.name, weight.dtype.str
            codes, scales, *zeros = remember((first[key].node.name, *told), make)
            packed = Packed(codes, scales, zeros[0] if zeros else None)
        stored[key] = _InBlocks(form, packed.scales.dtype, _add_weight(graph, first[key], packed, names))
    return stored


def _replace(
    proto: onnx.ModelProto,
    sites: Sequence[Site],
    stored: Mapping[Key, _InBlocks],
    scaling: Scaling,
    settings: BlockWeights,
    new: dict[str, list[onnx.NodeProto]],
    names: Names,
) -> None:
    """Replace the sites by MatMulNBits, add a Mul where factors must be inserted, and drop unread nodes and constants.

    `new` maps the names of other replaced nodes to their replacements.
    """
    graph = proto.graph
    scaled: dict[str, str] = {}
    for site in sites:
        activation, made = site.activation, []
        if scaling.placed.get(activation) == "inserted" and activation not in scaled:
            array = scaling.factors[activation].astype(stored[site.key].dtype)
            factors = names.store(graph, f"{activation}_factors", array)
            scaled[activation] = names.new(f"{activation}_scaled")
            name = names.new(f"{site.node.name}_factors")
            made.append(make_node("Mul", [activation, factors], [scaled[activation]], name=name))
        inputs, form = [scaled.get(activation, activation), *stored[site.key].names], stored[site.key].form
        new[site.node.name] = [
            *made,
            product_of(site, inputs, form.bits, form.block_size, settings.accuracy_level),
        ]
    replace_nodes(graph, [made for node in graph.node for made in new.get(node.name, [node])])
    import_runtime_operators(proto)


def _add_weight(graph: onnx.GraphProto, site: Site, packed: Packed, names: Names) -> list[str]:
    """Add the constants of a weight; return their names in the order of the node's inputs."""
    stem = site.constant + ("_transposed" if site.transposed else "")
    parts = zip((f"Q{packed.bits}", "scales", "zero_points"), packed.arrays, strict=False)
    return [names.store(graph, f"{stem}_{part}", array) for part, array in parts]

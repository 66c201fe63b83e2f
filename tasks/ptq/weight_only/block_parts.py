"""Forms that a search chooses from for the weights of a candidate of INT4, with their noise and bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.eight_bit.tied import ROWS_AT_ONCE
from tasks.ptq.graph.edits import initializers
from tasks.ptq.search import Form, Part
from tasks.ptq.sensitivity import SensitivePart
from tasks.ptq.weight_only.awq import gram_of, weight_of
from tasks.ptq.weight_only.clipping import output_error
from tasks.ptq.weight_only.int4_grid import MIDDLE_BYTE, Floats, round_to_bytes, round_to_nearest
from tasks.ptq.weight_only.matmul_nbits import BlockForm, BlockWeights, grams_of, plan_weights
from validators.graph.stored import load_model, to_array

# Block sizes of other forms than a candidate's own. Blocks of 16 cost 2 bits a weight for their scales.
SIZES = (128, 64, 32)


def find_block_parts(
    model: Path, weights: BlockWeights, grams: Mapping[str, Gram], *, table_bits: Collection[int] = (8, 4)
) -> tuple[Part, ...]:
    """Return a part for each weight of a float model that a candidate of INT4 quantizes, with its forms.

    The candidate's own form is first. A form's noise is `||X dW||^2` over the calibration samples, of the weight rounded to
    nearest: methods lower it for all forms in about the same ratio. That of an embedding is of as many look-ups, each row as
    often. Its cost is the bytes of codes, scales and zero points. Tied embeddings are no parts. `table_bits` are those that the
    engine looks up.

    Raises:
        CandidateRefused: as `quantize_weights`.
    """
    graph = load_model(model).graph
    plan = plan_weights(graph, weights)
    seen, constants = grams_of(plan.sites, grams), initializers(graph)
    found = []
    for key in dict.fromkeys(site.key for site in plan.sites):
        sites = [site for site in plan.sites if site.key == key]
        weight, gram = weight_of(constants, key), gram_of(key, plan.sites, seen).matrix
        nodes = tuple(site.node.name for site in sites)
        alternatives = []
        for form in forms_of(len(weight), BlockForm(weights.bits, weights.block_size)):
            rounded = _rounded(weight, replace(weights, bits=form.bits, block_size=form.block_size))
            noise = float(output_error(rounded - weight, gram).sum())
            alternatives.append(Form(form.name, noise, _bytes(weight.shape, form, weight.itemsize, weights.symmetric)))
        found.append(Part(SensitivePart(", ".join(nodes), nodes), tuple(alternatives)))
    look_ups = max(gram.rows for gram in seen.values())
    for table in (table for table in plan.tables if not table.sites):
        array, own = to_array(constants[table.constant]), BlockForm(8, weights.block_size)
        alternatives = [
            Form(form.name, look_ups * _table_noise(array, form, weights), _table_bytes(array, form))
            for form in forms_of(array.shape[1], own)
            if form.bits in table_bits
        ]
        found.append(Part(SensitivePart(", ".join(table.gathers), table.gathers), tuple(alternatives)))
    return tuple(found)


def _table_noise(table: NDArray[Any], form: BlockForm, weights: BlockWeights) -> float:
    """Return the mean over the rows of a table `[tokens, K]` of the squared error of a row in blocks."""
    total = 0.0
    for rows in np.array_split(table, max(1, len(table) // ROWS_AT_ONCE)):
        in_blocks = replace(weights, bits=form.bits, block_size=form.block_size, symmetric=False)
        total += float(np.square(_rounded(rows.T, in_blocks) - rows.T).sum())
    return total / len(table)


def _table_bytes(table: NDArray[Any], form: BlockForm) -> float:
    """Return the bytes of a table `[tokens, K]` in blocks, all with zero points."""
    blocks = table.shape[1] // form.block_size
    return float(len(table) * (table.shape[1] * form.bits // 8 + blocks * table.itemsize + -(-blocks * form.bits // 8)))


def forms_of(rows: int, own: BlockForm) -> tuple[BlockForm, ...]:
    """Return the forms of a weight with so many rows: its own, INT4 in other blocks, and INT8 in the largest blocks.

    Blocks divide the rows: OpenVINO computes a weight with a part of a block in float.

    >>> [form.name for form in forms_of(576, BlockForm(4, 32))]
    ['int4-g32', 'int4-g64', 'int8-g64']
    """
    whole = [size for size in SIZES if rows % size == 0]
    others = (*(BlockForm(4, size) for size in whole), BlockForm(8, whole[0] if whole else own.block_size))
    return (own, *(form for form in others if form != own))


def _rounded(weight: Floats, weights: BlockWeights) -> Floats:
    if weights.bits == 4:
        size, symmetric = weights.block_size, weights.symmetric
        return round_to_nearest(weight, block_size=size, symmetric=symmetric, dtype=weight.dtype).dequantized()
    packed = round_to_bytes(weight, block_size=weights.block_size, dtype=weight.dtype)
    columns, blocks, _ = packed.codes.shape
    steps = packed.scales.astype(np.float64).reshape(columns, blocks, 1)
    rows: Floats = ((packed.codes - float(MIDDLE_BYTE)) * steps).reshape(columns, -1)[:, : len(weight)].T
    return rows


def _bytes(shape: tuple[int, ...], form: BlockForm, scale_bytes: int, symmetric: bool) -> float:
    """Return the bytes of a weight `[K, N]` in blocks.

    >>> _bytes((64, 10), BlockForm(4, 32), 4, True), _bytes((64, 10), BlockForm(4, 32), 4, False)
    (400.0, 410.0)
    """
    rows, columns = shape
    blocks = -(-rows // form.block_size)
    zero_points = 0.0 if symmetric or form.bits == 8 else -(-blocks // 2)
    return float(columns * (blocks * (form.block_size * form.bits / 8 + scale_bytes) + zero_points))

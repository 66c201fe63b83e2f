"""Gram matrices of convolutions in order: of what each reads once the weights before it are rounded, against the float model.

With them, a rounding aims at the output of the float layer on the inputs of the float model, and so corrects what roundings
before it left (M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020, equation 25; Y. Li
et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", ICML 2025). Matrix products keep the inputs
of the float model: in MiniLM-L6 this aim left more error of the outputs, with INT8 weights nearly as much as rounding to
nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.calibrate.grams import Gram, refuse_full_disk, refuse_too_large, zeros_in_file
from tasks.ptq.calibrate.patches import MOST_PATCHES, Patches
from tasks.ptq.calibrate.staged import StagedRun
from tasks.ptq.graph.edits import initializers, name_nodes, scratch
from validators.graph.stored import from_array, to_array
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

# The weight and the Gram matrix of a convolution; returns the rounded weight as floats, in the same shape.
Round = Callable[[NDArray[Any], Gram], NDArray[Any]]


def collect_in_order(
    model: Path,
    layers: Mapping[str, Patches],
    batches: Sequence[Arrays],
    round_weight: Round,
    settings: SessionSettings,
    *,
    max_memory_mb: float,
) -> dict[str, Gram]:
    """Return the Gram matrix of each convolution, `[groups, K, K]` with that against the float model, by the node's name.

    `layers` are the convolutions that will be rounded. The float model, and a copy of it whose weights `round_weight` rounds
    one after the other, each run over the batches once, in stages.

    Raises:
        CandidateRefused: `invalid`: the runtime does not run the model, or a value is not finite; `unsupported`: a convolution
            takes more than `max_memory_mb` (1e6 bytes; the session does not count); `infrastructure`: the temporary folder is
            full.
    """
    before, after = (onnx.load(model, load_external_data=False) for _ in range(2))
    for proto in (before, after):
        name_nodes(proto.graph)
    weights, constants = initializers(before.graph), initializers(after.graph)
    found = {}
    size = sum(16e-6 * one.groups * one.channels**2 for one in layers.values())
    with refuse_full_disk(size), scratch() as first, scratch() as second:
        # What a run needs for their outputs includes what they read, until it is past them.
        ends = [node.output[0] for node in after.graph.node if node.name in layers]
        seen = StagedRun(before, model, ends, batches, first, settings)
        rounded = StagedRun(after, model, ends, batches, second, settings)
        for position, node in enumerate(after.graph.node):
            if node.name not in layers:
                continue
            patches = layers[node.name]
            read = (run.values(patches.tensor, position) for run in (rounded, seen))
            gram = _gram(node.name, patches, zip(*read, strict=True), max_memory_mb)
            # A weight that two convolutions read is rounded anew for each.
            weight = to_array(weights[node.input[1]], model.parent)
            constants[node.input[1]].CopyFrom(
                from_array(round_weight(weight, gram).astype(weight.dtype), node.input[1])
            )
            found[node.name] = gram
    return found


def _gram(node: str, patches: Patches, read: Any, max_memory_mb: float) -> Gram:
    """Return the Gram matrix over pairs of batches: what the node reads after rounded weights, and in the float model."""
    shape = patches.groups, patches.channels, patches.channels
    # Both matrices with their products, the solution of a linear system, and a sample's patches as float32 and float64.
    needed = 48.0 * math.prod(shape) + 24.0 * MOST_PATCHES * math.prod(shape[:2])
    refuse_too_large(needed, f"the convolution {node!r}", max_memory_mb)
    matrix, cross = zeros_in_file((2, *shape))
    absolute, rows = np.zeros(shape[:2]), 0
    for own, other in (pair for both in read for pair in zip(*both, strict=True)):
        own, other = (patches.rows(values[None]).astype(np.float64) for values in (own, other))
        matrix += own.transpose(0, 2, 1) @ own
        cross += own.transpose(0, 2, 1) @ other
        absolute += np.abs(own).sum(axis=1)
        rows += own.shape[1]
    return Gram(matrix, absolute / max(rows, 1), rows, cross).checked(node)

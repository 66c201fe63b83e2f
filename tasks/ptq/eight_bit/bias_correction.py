"""Bias correction: subtract from a layer's bias the shift that quantization causes in the mean of its outputs.

M. Nagel, M. van Baalen, T. Blankevoort, M. Welling, "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV 2019, section 4.2 and the empirical form of appendix D. The shift is E[y] of the quantized model minus E[y] of the float
model, per output channel. Layers are corrected in order, so that each is measured on the outputs of corrected layers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.calibrate.staged import StagedRun
from tasks.ptq.calibrate.watched import WATCHING
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import initializers, name_nodes, operator_of, scratch, weight_input
from tasks.ptq.graph.fuse_bias import bias_behind
from validators.graph.stored import from_array, locate, save_model, to_array
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

log = logging.getLogger("quantgate")
LOG_LINES = 10  # progress lines per correction


@dataclass(frozen=True)
class Corrections:
    """Result of a bias correction, by node name.

    `largest` is the largest absolute shift of each corrected bias, in units of the node's output. `left` gives the reason
    why a quantized node was not corrected.
    """

    largest: dict[str, float]
    left: dict[str, str]


@dataclass(frozen=True)
class _Layer:
    """A quantized node, its output after the bias in the variant and in the source, and the names of its bias and scale."""

    node: str
    output: str
    source_output: str
    bias: str
    scale: str | None
    channel_axis: int


def correct_bias(
    source: Path, variant: Path, corrected: Path, batches: Sequence[Arrays], libraries: Libraries = ()
) -> Corrections:
    """Write the variant with corrected biases to `corrected`.

    `quantize_qdq` made `variant` from `source`. A batch maps input names to arrays. Each model runs over the batches once,
    in stages: a layer's shift depends on the corrections before it, so the variant continues from each layer with the
    corrected bias.

    Raises:
        CandidateRefused: `invalid`: the runtime does not run one of the models.
    """
    # Only biases are read here, so external weights are not loaded.
    float_model, model = (onnx.load(path, load_external_data=False) for path in (source, variant))
    name_nodes(float_model.graph)
    layers, left = _find_layers(GraphView(float_model.graph), GraphView(model.graph))
    settings = replace(WATCHING, libraries=libraries)
    expected = _expected_means(float_model, source, layers, batches, settings)
    largest = {}
    with scratch() as folder:
        run = StagedRun(model, variant, [layer.output for layer in layers], batches, folder, settings)
        starts = {node.name: index for index, node in enumerate(model.graph.node)}
        for done, layer in enumerate(layers, 1):
            values = run.values(layer.output, restart=starts[layer.node])
            shift = channel_mean(values, layer.channel_axis) - expected[layer.source_output]
            _shift_bias(model.graph, variant.parent, layer, shift)
            largest[layer.node] = float(np.abs(shift).max())
            if done * LOG_LINES // len(layers) > (done - 1) * LOG_LINES // len(layers):
                log.info("bias correction: %d of %d layers", done, len(layers))
    locate(model, variant.parent)
    save_model(model, corrected)
    return Corrections(largest, left)


def _expected_means(
    model: onnx.ModelProto,
    path: Path,
    layers: Sequence[_Layer],
    batches: Iterable[Arrays],
    settings: SessionSettings,
) -> dict[str, NDArray[np.float64]]:
    """Return the mean of each layer's output channels in the float model, by output name."""
    axes = {layer.source_output: layer.channel_axis for layer in layers}
    with scratch() as folder:
        run = StagedRun(model, path, axes, batches, folder, settings)
        order = sorted(axes, key=run.position)
        return {name: channel_mean(run.values(name, run.position(name) + 1), axes[name]) for name in order}


def channel_mean(batches: Iterable[NDArray[Any]], channel_axis: int) -> NDArray[np.float64]:
    """Return the mean of each channel over all batches, float64 `(channels,)`.

    Each batch is a float array with its channels on `channel_axis`.

    >>> channel_mean([np.array([[1.0, 2.0]]), np.array([[2.0, 4.0], [3.0, 6.0]])], -1).tolist()
    [2.0, 4.0]
    """
    total, count = np.zeros(()), 0
    for array in batches:
        rows = np.moveaxis(array, channel_axis, -1).reshape(-1, array.shape[channel_axis])
        total = total + rows.sum(axis=0, dtype=np.float64)
        count += len(rows)
    return np.asarray(total / count)


def _find_layers(source: GraphView, variant: GraphView) -> tuple[list[_Layer], dict[str, str]]:
    """Return the quantized nodes with a bias, in graph order, and the reason why the rest are skipped, by node name."""
    float_nodes = {node.name: node for node in source.graph.node}
    layers, left = [], {}
    for node in variant.graph.node:
        origin = float_nodes.get(node.name)
        weight = variant.producer.get(node.input[1]) if weight_input(node) else None
        if (
            origin is None
            or weight is None
            or operator_of(weight) != "DequantizeLinear"
            or weight.input[0] not in variant.constants
        ):
            continue
        behind, before = bias_behind(variant, node), bias_behind(source, origin)
        bias = node.input[2] if len(node.input) > 2 else ""
        if behind is not None:
            bias = next(name for name in behind.input if name in variant.constants)
        stored, scale = bias, None
        if bias in variant.producer:
            stored, scale = variant.producer[bias].input[:2]
        if stored not in variant.constants:
            left[node.name] = "has no bias"
            continue
        output = (behind or node).output[0]
        axis = 1 if node.op_type == "Conv" else -1
        merged = origin.op_type == "MatMul" and before is not None
        layers.append(
            _Layer(node.name, output, (before if merged and before else origin).output[0], stored, scale, axis)
        )
    return layers, left


def _shift_bias(graph: onnx.GraphProto, folder: Path, layer: _Layer, shift: NDArray[np.float64]) -> None:
    constants = initializers(graph)
    stored = to_array(constants[layer.bias], folder)
    if layer.scale is None:
        shifted = (stored - shift.reshape(stored.shape)).astype(stored.dtype)
    else:
        limits = np.iinfo(stored.dtype)
        steps = np.rint(shift / to_array(constants[layer.scale], folder).astype(np.float64)).reshape(stored.shape)
        shifted = np.clip(stored - steps, limits.min, limits.max).astype(stored.dtype)
    constants[layer.bias].CopyFrom(from_array(shifted, layer.bias))

"""Caches of keys and values in INT8 or INT4: GroupQueryAttention (com.microsoft) with one scale per channel.

The operator rounds what it appends to the cache, and reads it back as `code * scale` (ONNX Runtime, ContribOperators.md). Codes
of INT8 are -128 to 127. Two codes of INT4, -8 to 7, share a byte: the last axis of the cache is half as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_attribute

from tasks.ptq.calibrate.pass_batches import pass_batch_size
from tasks.runtimes.decoder_session import PAST, PRESENT
from tasks.runtimes.ort import open_session, run_outputs, with_mapped_weights
from validators.errors import CandidateRefused
from validators.graph.stored import from_array, load_model, save_model
from validators.job.candidate_name import CacheBits
from validators.records.run import SessionSettings
from validators.samples.datasets import Samples

ATTENTION = "GroupQueryAttention"
# Shares of a channel's largest magnitude that are tried as its range in INT4.
SHARES = np.arange(0.4, 1.01, 0.05)
# Positions in the inputs and outputs of the operator.
PAST_INPUTS, PRESENT_OUTPUTS, SCALE_INPUTS = (3, 4), (1, 2), (12, 13)


class CacheType(NamedTuple):
    """Storage of a cache: ONNX element type, largest code, and values in a byte."""

    element: int
    top: int
    in_byte: int


TYPES: dict[int, CacheType] = {
    8: CacheType(onnx.TensorProto.INT8, 127, 1),
    4: CacheType(onnx.TensorProto.UINT8, 7, 2),
}


def make_cache_ranges(
    model: Callable[[], Path],
    calibration: Samples,
    threads: int,
    fixed_batch: int | None,
    bits: CacheBits,
    folder: Path,
) -> Path:
    """Write the range of each channel of the caches, over the calibration windows; return the file.

    The file is an .npz with float32 `(heads, size of a head)` by the name of the cache as an output (`present.0.key`). For INT8
    the range is the largest magnitude. For INT4 it is the one with the least squared error of the rounded values, which clips a
    few; it is negative where the code -8, which has no counterpart, suits positive values better.

    Raises:
        CandidateRefused: `unsupported`: the model has no caches; `invalid`: it does not run.
    """
    graph = model()
    names = [value.name for value in onnx.load(graph, load_external_data=False).graph.output]
    names = [name for name in names if name.startswith(PRESENT)]
    if not names:
        raise _no_caches("no cache of keys and values")
    found: dict[str, NDArray[np.float32]] = {}
    settings = with_mapped_weights(SessionSettings.reference(threads).without_spinning(), graph)
    with open_session(graph, settings) as session:

        def caches() -> Iterator[tuple[str, NDArray[np.float32]]]:
            for batch in calibration.batches(pass_batch_size(fixed_batch)):
                yield from zip(names, run_outputs(session, batch, names), strict=True)

        for name, values in caches():
            largest = np.abs(values).max(axis=(0, 2)).astype(np.float32)
            found[name] = np.maximum(found[name], largest) if name in found else largest
        if bits == 4:
            trials = {name: np.multiply.outer([*SHARES, *-SHARES], largest) for name, largest in found.items()}
            errors = {name: np.zeros(ranges.shape) for name, ranges in trials.items()}
            for name, values in caches():
                errors[name] += [_squared_error(values, ranges, TYPES[bits].top) for ranges in trials[name]]
            for name, ranges in trials.items():
                best = errors[name].argmin(axis=0)[None]
                found[name] = np.take_along_axis(ranges, best, axis=0)[0].astype(np.float32)
    path = folder / "caches.npz"
    np.savez(path, **found)  # type: ignore[arg-type]  # its keyword-only arguments
    return path


def _squared_error(values: NDArray[np.float32], ranges: NDArray[Any], top: int) -> NDArray[np.float64]:
    """Return the squared error of rounding a cache `(rows, heads, tokens, size)` with these ranges, `(heads, size)`."""
    steps = np.where(ranges == 0, 1, ranges / top)[:, None, :].astype(np.float32)
    rounded = np.clip(np.rint(values / steps), -top - 1, top) * steps
    return np.asarray(np.square(rounded - values).sum(axis=(0, 2), dtype=np.float64))


def quantize_caches(path: Path, ranges: Path, bits: CacheBits) -> int:
    """Rewrite the graph in `path` with caches of `bits`; return the number of attentions.

    `ranges` is the file of `make_cache_ranges` for these bits.

    Raises:
        CandidateRefused: `unsupported`: an attention is no GroupQueryAttention, or INT4 does not fit its heads.
    """
    stored = TYPES[bits]
    model = load_model(path)
    caches = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    nodes = [node for node in model.graph.node if node.op_type == ATTENTION]
    held = {name for node in nodes for name in (*_at(node.input, PAST_INPUTS), *_at(node.output, PRESENT_OUTPUTS))}
    if other := sorted(name for name in caches if name.startswith((PAST, PRESENT)) and name not in held):
        raise _no_caches(f"{other[0]}, which no {ATTENTION} of the graph holds")
    if not nodes:
        raise _no_caches("no cache of keys and values")
    with np.load(ranges) as archive:
        for node in nodes:
            scales = [_scales(archive[name], stored) for name in _at(node.output, PRESENT_OUTPUTS)]
            _rewrite(model.graph, node, scales, bits)
    for name in held:
        _retype(caches[name], stored)
    save_model(model, path)
    return len(nodes)


def _scales(ranges: NDArray[Any], stored: CacheType) -> NDArray[np.float32]:
    """Return the scale of each channel, float32 `(1, heads, 1, size of a head)`; 1 for a channel of zeros."""
    if ranges.shape[-1] % stored.in_byte:
        raise _no_caches(f"heads of {ranges.shape[-1]} values, an odd number, for codes of 4 bits")
    scales = (ranges / stored.top)[None, :, None, :].astype(np.float32)
    scales[scales == 0] = 1
    return scales


def _rewrite(graph: onnx.GraphProto, node: onnx.NodeProto, scales: list[NDArray[np.float32]], bits: int) -> None:
    """Add the scales to the inputs of an attention, and say how its caches are stored."""
    # Optional inputs between the last one and the scales are left empty.
    node.input.extend([""] * (SCALE_INPUTS[0] - len(node.input)))
    for kind, position, values in zip(("k", "v"), SCALE_INPUTS, scales, strict=True):
        name = f"{node.name}/{kind}_scale"
        graph.initializer.append(from_array(values, name))
        if position < len(node.input):
            node.input[position] = name
        else:
            node.input.append(name)
    stored = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": bits}
    others = [item for item in node.attribute if item.name not in stored]
    del node.attribute[:]
    node.attribute.extend([*others, *(make_attribute(name, value) for name, value in stored.items())])


def _retype(cache: onnx.ValueInfoProto, stored: CacheType) -> None:
    tensor = cache.type.tensor_type
    tensor.elem_type = stored.element
    size = tensor.shape.dim[-1]
    size.dim_value //= stored.in_byte


def _at(names: Any, positions: tuple[int, ...]) -> list[str]:
    return [names[position] for position in positions if position < len(names) and names[position]]


def _no_caches(found: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=found,
        expected=f"a decoder whose caches are those of {ATTENTION}",
        fix="leave out +kv8 or +kv4",
    )

"""Rewriting a decoder for OpenVINO: caches become states, and attention becomes operators that its kernels recognize.

OpenVINO reads GroupQueryAttention (com.microsoft, ONNX Runtime's ContribOperators.md) and computes it as many small operators,
with caches that are copied at each step. Here each one becomes the subgraph that OpenVINO's own exports of decoders have:
rotary embedding, a state that grows, and ScaledDotProductAttention. Its plugin for processors fuses them into kernels that
append to the cache in place and may store it in 8 or 4 bits (`KV_CACHE_PRECISION`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops

ATTENTION = "GroupQueryAttention"
TOKENS, MASK, POSITIONS, BEAMS, LOGITS = "input_ids", "attention_mask", "position_ids", "beam_idx", "logits"
# Index of the first token whose logits are computed; a negative one counts from the end.
FIRST = "first_logits"
# Added to scores of tokens that may not be read: the lowest float16, which softmax turns into 0.
_MASKED = -65504.0
_END = np.iinfo(np.int64).max


def with_states(model: ov.Model, config: Mapping[str, Any], *, cut: bool = True) -> ov.Model:
    """Return a decoder whose caches are states; `config` is the part `model` of its `genai_config.json`.

    Its inputs are token ids, mask and positions, int64 `(rows, length)`, `(rows, past + length)` and `(rows, length)`; the row
    of the states that each row continues, int32 `(rows,)`; and the index of the first token whose logits are computed, int64
    `(1,)`. Its output is float32 `(rows, tokens, vocabulary)`. Without `cut` that last input is left out, as OpenVINO GenAI
    expects, and the logits of all tokens are computed.

    Raises:
        RuntimeError: the model has no attention with caches, or attention that is not supported; see `_attend`.
    """
    if model.get_sinks():  # its caches are states already, as OpenVINO's own exports have them
        if cut:
            first = _new_parameter(FIRST, [1], np.int64)
            _cut(model.get_results()[0], first)
            model.add_parameters([first])
            model.validate_nodes_and_infer_types()
        return model
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]
    if not nodes:
        raise RuntimeError(f"the graph has no {ATTENTION}, which reads and extends the caches of a decoder")
    tokens = _parameter(model, TOKENS)
    shared = _Shared(tokens, _find(model, POSITIONS) or _new_parameter(POSITIONS, [-1, -1], np.int64))
    states: list[ov.Node] = []
    for layer, node in enumerate(nodes):
        attended, own = _attend(node, shared, _window_of(config, layer))
        node.output(0).replace(attended.output(0))
        states += own
    logits = next(result for result in model.get_results() if LOGITS in result.input(0).get_tensor().get_names())
    inputs = [tokens, shared.mask, shared.positions, shared.beams]
    if cut:
        first = _new_parameter(FIRST, [1], np.int64)
        _cut(logits, first)
        inputs.append(first)
    return ov.Model([logits], states, inputs, "decoder")


class _Shared:
    """Inputs, and nodes that all layers read."""

    def __init__(self, tokens: ov.Node, positions: ov.Node) -> None:
        self.positions = positions
        self.mask = _new_parameter(MASK, [-1, -1], np.int64)
        self.beams = _new_parameter(BEAMS, [-1], np.int32)
        self.rows = _size(tokens, 0)
        length, total = _scalar(_size(tokens, 1)), _scalar(_size(self.mask, 1))
        keys = ops.unsqueeze(ops.range(_scalar_of(0), total, _scalar_of(1), "i64"), _ints(0))
        queries = ops.unsqueeze(ops.range(ops.subtract(total, length), total, _scalar_of(1), "i64"), _ints(1))
        self._distances = ops.subtract(queries, keys)
        self._masks: dict[int, ov.Node] = {}
        self._angles: dict[tuple[str, str], tuple[ov.Node, ov.Node]] = {}

    def scores(self, window: int) -> ov.Node:
        """Return what is added to the scores, `(rows, 1, length, total)`.

        A token reads the last `window` tokens, with itself; all if it is not positive.
        """
        if window not in self._masks:
            reads = ops.greater_equal(self._distances, _ints(0))
            if window > 0:
                reads = ops.logical_and(reads, ops.less(self._distances, _ints(window)))
            there = ops.unsqueeze(ops.convert(self.mask, "boolean"), _ints(1, 2))
            both = ops.logical_and(ops.unsqueeze(reads, _ints(0, 1)), there)
            self._masks[window] = ops.select(both, _float(0.0), _float(_MASKED))
        return self._masks[window]

    def angles(self, node: ov.Node) -> tuple[ov.Node, ov.Node]:
        """Return cosines and sines of the positions, `(rows, 1, length, 2 * columns)`, from the tables of an attention."""
        tables = node.input_value(7), node.input_value(8)
        key = tables[0].get_node().get_friendly_name(), tables[1].get_node().get_friendly_name()
        if key not in self._angles:
            halves = [ops.gather(table, self.positions, _scalar_of(0)) for table in tables]
            both = [ops.unsqueeze(ops.concat([half, half], -1), _ints(1)) for half in halves]
            self._angles[key] = both[0], both[1]
        return self._angles[key]


def _window_of(config: Mapping[str, Any], layer: int) -> int:
    """Return the number of tokens that a layer reads back, by the configuration; 0 for all.

    onnxruntime-genai keeps no more of them in its caches, so that its model builder writes no window into the graph.
    """
    sliding = config.get("decoder", {}).get("sliding_window") or {}
    layers = sliding.get("layers") or []
    return int(sliding.get("window_size", 0)) if not layers or layer in layers else 0


def _attend(node: ov.Node, shared: _Shared, window: int) -> tuple[ov.Node, list[ov.Node]]:
    """Return the output of an attention, `(rows, length, heads * size)`, and the nodes that write its states.

    `window` counts the tokens that it reads back, if the node itself has no such window; 0 for all.

    Raises:
        RuntimeError: its rotary embedding turns neighbours, its softmax has a sink, or its caches are quantized.
    """
    told = node.get_attributes()
    wrong = {
        "rotary embedding of neighbours": told["rotary_interleaved"],
        "a softmax with a sink": told["smooth_softmax"],
        "quantized caches": told["kv_cache_bit_width"],
    }
    for name, has in wrong.items():
        if has:
            raise RuntimeError(f"{name} in {node.get_friendly_name()}")
    heads, kv_heads = told["num_heads"], told["kv_num_heads"]
    query, key, value = (node.input_value(index) for index in range(3))
    size = query.get_partial_shape()[3].get_length()
    if told["do_rotary"]:
        query, key = (_rotate(one, shared.angles(node)) for one in (query, key))
    writes, read = [], []
    for new, cache in ((key, node.input_value(3)), (value, node.input_value(4))):
        shape = ov.PartialShape([-1, kv_heads, -1, size])
        empty = ops.broadcast(_float(0.0), ops.concat([shared.rows, _ints(kv_heads), _ints(0), _ints(size)], 0))
        past = ops.read_value(empty, cache.get_any_name(), ov.Type.f32, shape)
        whole = ops.concat([ops.gather(past, shared.beams, _scalar_of(0)), new], 2)
        writes.append(ops.assign(whole, cache.get_any_name()))
        read.append(_repeat(whole, heads, kv_heads, size))
    scale = _float(told["scale"] or size**-0.5)
    own = told["local_window_size"]
    scores = shared.scores(own if own > 0 else window)
    attended = ops.scaled_dot_product_attention(query, *read, scores, scale, causal=False)
    joined = ops.reshape(ops.transpose(attended, _ints(0, 2, 1, 3)), _ints(0, 0, heads * size), True)
    # The new nodes keep names of their own: coverage would take a step with the name of this one for a product before it.
    return joined, writes


def _rotate(values: Any, angles: tuple[ov.Node, ov.Node]) -> ov.Node:
    """Return `(rows, heads, length, size)` with its first channels rotated, as many as the angles have."""
    cosines, sines = angles
    size, turned = (one.get_partial_shape()[3].get_length() for one in (values, cosines.output(0)))
    first, second = _channels(values, 0, turned // 2), _channels(values, turned // 2, turned)
    other = ops.concat([ops.multiply(second, _float(-1.0)), first], -1)
    whole = values if turned == size else _channels(values, 0, turned)
    rotated = ops.add(ops.multiply(whole, cosines), ops.multiply(other, sines))
    return rotated if turned == size else ops.concat([rotated, _channels(values, turned, size)], -1)


def _channels(values: Any, start: int, stop: int) -> ov.Node:
    return ops.slice(values, _ints(start), _ints(stop), _ints(1), _ints(3))


def _repeat(values: ov.Node, heads: int, kv_heads: int, size: int) -> ov.Node:
    """Return keys or values with those of each head for the queries that share them."""
    if heads == kv_heads:
        return values
    copies = ops.broadcast(
        ops.unsqueeze(values, _ints(2)), _ints(1, 1, heads // kv_heads, 1, 1), broadcast_spec="BIDIRECTIONAL"
    )
    return ops.reshape(copies, _ints(0, heads, -1, size), True)


def _cut(logits: ov.Node, first: ov.Node) -> None:
    """Compute the logits of the tokens from `first` alone: the head is the largest product of a model with many tokens."""
    product = logits.input_value(0).get_node()
    while product.get_type_name() != "MatMul" and product.get_input_size():
        product = product.input_value(0).get_node()
    # A graph without a product at its end gets its logits cut.
    taken = product.input(0) if product.get_type_name() == "MatMul" else logits.input(0)
    cut = ops.slice(taken.get_source_output(), first, _ints(_END), _ints(1), _ints(1))
    taken.replace_source_output(cut.output(0))


def _parameter(model: ov.Model, name: str) -> ov.Node:
    found = _find(model, name)
    if found is None:
        raise RuntimeError(f"the graph has no input {name}")
    return found


def _find(model: ov.Model, name: str) -> ov.Node | None:
    return next((port.get_node() for port in model.inputs if name in port.get_names()), None)


def _new_parameter(name: str, shape: list[int], dtype: type) -> ov.Node:
    made = ops.parameter(shape, dtype, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def _size(node: ov.Node, axis: int) -> ov.Node:
    """Return the size of an axis, int64 `(1,)`."""
    return ops.gather(ops.shape_of(node), _ints(axis), _scalar_of(0))


def _scalar(node: ov.Node) -> ov.Node:
    return ops.squeeze(node, _ints(0))


def _ints(*values: int) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def _scalar_of(value: int) -> ov.Node:
    return ops.constant(np.array(value, np.int64))


def _float(value: float) -> ov.Node:
    return ops.constant(np.array(value, np.float32))

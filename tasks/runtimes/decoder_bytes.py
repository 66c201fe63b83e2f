"""Bytes of the weights and of the cache of a decoder, read from its graph without its weights."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tasks.runtimes.decoder_session import PAST
from validators.records.generation import DecoderBytes

# Inputs of operators that read rows of a table.
TABLES = {
    "Gather": {0},
    "GatherBlockQuantized": {0, 2, 3},
    # Cosines and sines of positions.
    "GroupQueryAttention": {7, 8},
    "RotaryEmbedding": {2, 3},
}
_BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4}


def decoder_bytes(model: Path) -> DecoderBytes:
    """Return the bytes of the decoder in the folder of a model file, whose `genai_config.json` has its context."""
    graph = onnx.load(model, load_external_data=False).graph
    readers = defaultdict(set)
    for node in graph.node:
        for index, name in enumerate(node.input):
            readers[name].add(index in TABLES.get(node.op_type, ()))
    weights = {one.name: _bytes(one.data_type, list(one.dims)) for one in graph.initializer}
    context = json.loads(model.with_name("genai_config.json").read_text(encoding="utf-8"))["model"]["context_length"]
    return DecoderBytes(
        weights=sum(weights.values()),
        read_weights=sum(size for name, size in weights.items() if readers[name] != {True}),
        cache=sum(_bytes_a_token(value) for value in graph.input if value.name.startswith(PAST)),
        context=int(context),
    )


def _bytes_a_token(cache: onnx.ValueInfoProto) -> int:
    """Return the bytes that one token of one sequence adds to a cache of the axes sequence, heads, tokens, head size."""
    kind = cache.type.tensor_type
    sizes = [axis.dim_value for index, axis in enumerate(kind.shape.dim) if index not in (0, 2)]
    return _bytes(kind.elem_type, sizes)


def _bytes(element_type: int, sizes: list[int]) -> int:
    bits = _BITS.get(TensorProto.DataType.Name(element_type))
    if bits is None:
        bits = 8 * helper.tensor_dtype_to_np_dtype(element_type).itemsize
    return math.ceil(math.prod(sizes) * bits / 8)

"""What TensorRT's parser refuses, or its builder silently runs in float, as assertions over a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
STORED = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn), "int4": np.dtype(ml_dtypes.int4)}


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def check_form(path: Path, precision: str) -> Counter[str]:
    """Every rule of the parser and of the builder, as assertions over the file; returns its operators."""
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(path)
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.value_info, *graph.input, *graph.output]}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    assert not {TensorProto.UINT4, TensorProto.INT16, TensorProto.FLOAT8E5M2, TensorProto.UINT8} & {*types.values()}
    assert [item.domain for item in proto.opset_import] == [""] and proto.opset_import[0].version >= 21
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale = stored[node.input[1]]
            assert np.isfinite(scale).all() and (scale > 0).all()
            # Floats on either side have the type of the scale.
            outside = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]
            assert types[outside] == types[node.input[1]]
            if len(node.input) > 2:
                assert not stored[node.input[2]].astype(np.float32).any()
                assert stored[node.input[2]].dtype == STORED[precision]
        elif node.op_type in ("Conv", "MatMul", "Gemm"):
            check_product(node, made, stored, precision)
        else:
            # Nothing else reads integers: residual sums, concatenations, activations, biases.
            assert not any(name in made and made[name].op_type == "DequantizeLinear" for name in node.input)
    return Counter(node.op_type for node in graph.node)


def check_product(
    node: onnx.NodeProto, made: dict[str, onnx.NodeProto], stored: dict[str, Array], precision: str
) -> None:
    sources = [made.get(name) for name in node.input]
    pairs = [source is not None and source.op_type == "DequantizeLinear" for source in sources]
    assert not any(pairs[2:]), "a quantized bias"
    if not any(pairs):
        return
    weight = sources[1]
    assert weight is not None and pairs == [precision != "int4", True, *pairs[2:]], "one side only"
    codes, scale = stored[weight.input[0]], stored[weight.input[1]]
    assert codes.dtype == STORED[precision]
    attributes = {item.name: helper.get_attribute_value(item) for item in weight.attribute}
    if precision == "int4":
        assert attributes["axis"] == 0 and attributes["block_size"] in (64, 128) and len(weight.input) == 2
        assert (codes.shape[0], codes.shape[1]) == (scale.shape[0] * attributes["block_size"], scale.shape[1])
        return
    trans = any(item.name == "transB" and item.i for item in node.attribute)
    channel_axis = 0 if node.op_type == "Conv" or trans else codes.ndim - 1
    assert scale.shape == () or (scale.shape == (codes.shape[channel_axis],) and attributes["axis"] == channel_axis)
    data = sources[0]
    assert data is not None and stored[data.input[1]].shape == () and made[data.input[0]].op_type == "QuantizeLinear"
    assert list(data.input[1:]) == list(made[data.input[0]].input[1:])

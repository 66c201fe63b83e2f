"""Models with settings of operators that TensorRT's parser refuses, and the words of its error."""

from __future__ import annotations

import numpy as np
import onnx
from broken_models import Broken
from onnx import TensorProto
from qdq_models import IMAGE, SINGLE, Part, const, model, op

HEADS = (1, 4, 8, 16)
ENDS = (1, 4, 8, 8)
FACTORS = const(by=np.array([1, 1, 2, 2], np.float32))
SIZES = const(to=np.array([1, 4, 16, 16]))
REGION = const(roi=np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32))
CHANNEL = np.ones(4, np.float32)
GATES = const(w=np.ones((1, 32, 64), np.float32), r=np.ones((1, 32, 8), np.float32))


def single(part: Part, shape: tuple[int | str, ...], **others: tuple[object, tuple[int, ...]]) -> onnx.ModelProto:
    return model(part, shape, floats=SINGLE, opset=23, others=others)  # type: ignore[arg-type]  # the table gives the right types


def attention(outputs: str = "y", **settings: object) -> onnx.ModelProto:
    return single(op("Attention", "x k v", outputs, **settings), HEADS, k=(SINGLE, HEADS), v=(SINGLE, HEADS))


def resize(part: Part, inputs: list[str], **settings: object) -> onnx.ModelProto:
    resized = op("Resize", "x", "y", mode="linear", **settings)
    resized.nodes[0].input.extend(inputs)
    return single(resized + part, ENDS)


def scatter(kind: str, at: object, updates: tuple[int, ...], reduction: str) -> onnx.ModelProto:
    part = op(kind, "x at up", "y", reduction=reduction) + const(at=np.array(at))
    return single(part, (4, 8), up=(SINGLE, updates))


def cast(kind: str) -> onnx.ModelProto:
    part = op("Cast", "x", "c", to=TensorProto.DataType.Value(kind)) + op("Cast", "c", "y", to=TensorProto.FLOAT)
    return single(part, (4, 8))


def pool_without_indices() -> onnx.ModelProto:
    """A second output that is named, and left out."""
    pool = op("MaxPool", "x", "y", kernel_shape=[2, 2])
    pool.nodes[0].output.append("")
    return single(pool, IMAGE)


def refused(made: onnx.ModelProto, words: str) -> Broken:
    return Broken("TRT009", made, words)


LIMITS: dict[str, Broken] = {
    "Attention with its keys and values as outputs": refused(
        attention("y keys values"), "only supports Attention nodes with one output"
    ),
    "Attention with softcap": refused(attention(softcap=30.0), "Setting softcap is not supported"),
    "Attention with softmax_precision": refused(
        attention(softmax_precision=1), "Setting softmax precision is not supported"
    ),
    "Resize with antialias": refused(resize(FACTORS, ["", "by"], antialias=1), "Antialiasing is not supported"),
    "Resize of a region": refused(
        resize(FACTORS + REGION, ["roi", "by"], coordinate_transformation_mode="tf_crop_and_resize"),
        "TensorRT only supports half_pixel",
    ),
    "Resize of symmetric half pixels": refused(
        resize(FACTORS, ["", "by"], coordinate_transformation_mode="half_pixel_symmetric"),
        "TensorRT only supports half_pixel",
    ),
    "Resize that keeps the aspect ratio": refused(
        resize(SIZES, ["", "", "to"], keep_aspect_ratio_policy="not_larger"), "Only `stretch` is supported"
    ),
    **{
        f"{kind} with dilations": refused(
            single(op(kind, "x", "y", kernel_shape=[2, 2], dilations=[2, 2]), IMAGE),
            "does not support dilations other than 1",
        )
        for kind in ("AveragePool", "LpPool", "MaxPool")
    },
    "MaxPool with indices": refused(
        single(op("MaxPool", "x", "y indices", kernel_shape=[2, 2]), IMAGE), "outputs for MaxPool nodes"
    ),
    "ScatterND that adds": refused(
        scatter("ScatterND", [[0], [2]], (2, 8), "add"), "ScatterND with reduction is not supported"
    ),
    "ScatterElements that takes the largest": refused(
        scatter("ScatterElements", [[0, 1], [2, 3]], (2, 2), "max"), "Unsupported reduction type"
    ),
    "LSTM with input_forget": refused(
        single(op("LSTM", "x w r", "y", hidden_size=8, input_forget=1) + GATES, (5, 2, 64)),
        "Coupled input/forget is unsupported",
    ),
    "BatchNormalization in training": refused(
        single(
            op("BatchNormalization", "x a b c d", "y", training_mode=1)
            + const(a=CHANNEL, b=CHANNEL, c=CHANNEL, d=CHANNEL),
            IMAGE,
        ),
        "does not support training_mode == 1",
    ),
    "Cast to UINT8 inside": refused(cast("UINT8"), "does not support UINT8 types for intermediate tensors"),
    **{
        f"Cast to {kind}": refused(cast(kind), "Unsupported data type for the Cast operator")
        for kind in ("INT16", "UINT16", "UINT32", "UINT64")
    },
    "Cast to INT4": refused(cast("INT4"), "has datatype Int4 but is not produced by"),
    "Cast to FLOAT8E4M3FN": refused(cast("FLOAT8E4M3FN"), "has datatype FP8 but is not produced by"),
}
# The same operators with settings that it takes.
WITHIN: dict[str, onnx.ModelProto] = {
    "Resize": resize(FACTORS, ["", "by"], antialias=0),
    "MaxPool": single(op("MaxPool", "x", "y", kernel_shape=[2, 2], dilations=[1, 1]), IMAGE),
    "MaxPool with an empty second output": pool_without_indices(),
    "ScatterND": scatter("ScatterND", [[0], [2]], (2, 8), "none"),
    "LSTM": single(op("LSTM", "x w r", "y", hidden_size=8, clip=1.0) + GATES, (5, 2, 64)),
    "Cast": cast("INT64"),
}

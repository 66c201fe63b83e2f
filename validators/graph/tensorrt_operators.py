"""Operators for which TensorRT's ONNX parser has importers, and settings of them that it refuses.

From `OnnxParser.supports_operator` and the errors of TensorRT-RTX 1.7.1. The parser matches names and ignores domains. Tests
query the installed parser for each operator, and see each error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import TensorProto

from validators.graph.graph_scope import Scope, attribute, is_standard, label, type_name
from validators.graph.lint import Findings, Rule
from validators.graph.quantized_graph import QuantizedGraph

# Standard ONNX operators, opset 1 to 28.
_STANDARD = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BlackmanWindow
    Cast CastLike CausalConvWithState Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum
    DepthToSpace DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf
    IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual LinearAttention Log LogSoftmax Loop LpNormalization
    LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression NonZero Not OneHot
    Or PRelu Pad Pow QuantizeLinear RMSNormalization RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike
    Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round STFT Scan Scatter ScatterElements
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
    Squeeze Sub Sum Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
STANDARD_IMPORTED = frozenset(_STANDARD.split())

# ONNX Runtime's operators. MatMulNBits is excluded: its importer needs a plugin that TensorRT-RTX 1.7.1 does not have.
CONTRIB_IMPORTED = frozenset(
    {
        "GroupQueryAttention",
        "MultiHeadAttention",
        "QMoE",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
IMPORTED = STANDARD_IMPORTED | CONTRIB_IMPORTED

# Operators of ONNX Runtime's domain with the meaning of the standard operator of the same name.
CONTRIB_AS_STANDARD = frozenset({"DequantizeLinear", "GatherND", "Gelu", "Pad", "QuantizeLinear", "Range", "Trilu"})

RESIZE_MODES = frozenset(
    {b"align_corners", b"asymmetric", b"half_pixel", b"pytorch_half_pixel", b"tf_half_pixel_for_nn"}
)
CAST_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL}
    | {TensorProto.INT8, TensorProto.INT32, TensorProto.INT64}
)


def refused_setting(graph: QuantizedGraph) -> Findings:
    """A setting that the importer of an operator does not take is a parse error, or of Cast to FP8 or INT4 a build error.

    Of Attention: several outputs, softcap and softmax_precision. Of Resize: antialias, keep_aspect_ratio_policy, and the modes
    tf_crop_and_resize and half_pixel_symmetric. Of pooling: dilations, and indices. Of Scatter: a reduction. Of LSTM:
    input_forget. Of BatchNormalization: training_mode. Cast: types other than FLOAT, FLOAT16, BFLOAT16, DOUBLE, BOOL, INT8,
    INT32 and INT64; UINT8 only as an output of the model.
    """
    for scope, node in graph.of_kind(*_LIMITS):
        for found in _LIMITS[node.op_type](scope, node) if is_standard(node) else ():
            yield label(node), f"{node.op_type} with {found}"


def _attention(_: Scope, node: onnx.NodeProto) -> Iterator[str]:
    if any(node.output[1:]):
        yield f"{sum(map(bool, node.output))} outputs"
    if attribute(node, "softcap", 0.0):
        yield "softcap"
    if attribute(node, "softmax_precision", 0):
        yield "softmax_precision"


def _resize(_: Scope, node: onnx.NodeProto) -> Iterator[str]:
    if attribute(node, "antialias", 0):
        yield "antialias"
    if (mode := attribute(node, "coordinate_transformation_mode", b"half_pixel")) not in RESIZE_MODES:
        yield str(mode.decode())
    if (policy := attribute(node, "keep_aspect_ratio_policy", b"stretch")) != b"stretch":
        yield f"keep_aspect_ratio_policy {policy.decode()}"


def _pool(_: Scope, node: onnx.NodeProto) -> Iterator[str]:
    if any(size != 1 for size in attribute(node, "dilations", ())):
        yield "dilations"
    if any(node.output[1:]):
        yield "indices as a second output"


def _scatter(_: Scope, node: onnx.NodeProto) -> Iterator[str]:
    if (reduction := attribute(node, "reduction", b"none")) != b"none":
        yield f"reduction {reduction.decode()}"


def _switch(name: str) -> Callable[[Scope, onnx.NodeProto], Iterator[str]]:
    """Return the check of a setting that must be 0."""
    return lambda _, node: iter([name] if attribute(node, name, 0) else [])


def _cast(scope: Scope, node: onnx.NodeProto) -> Iterator[str]:
    kind = attribute(node, "to", 0)
    leaves = isinstance(scope.graph, onnx.GraphProto) and node.output[0] in {one.name for one in scope.graph.output}
    if kind not in CAST_TYPES and not (kind == TensorProto.UINT8 and leaves):
        yield type_name(kind)


_LIMITS: dict[str, Callable[[Scope, onnx.NodeProto], Iterator[str]]] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "BatchNormalization": _switch("training_mode"),
    "Cast": _cast,
    "LSTM": _switch("input_forget"),
    "LpPool": _pool,
    "MaxPool": _pool,
    "Resize": _resize,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}
LIMIT_RULES = (
    Rule("TRT009", "fails", refused_setting, "export the model without it, or express it in other operators"),
)

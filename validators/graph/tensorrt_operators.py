"""Operators for which TensorRT's ONNX parser has importers, from `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1.

The parser matches names and ignores domains. A test queries the installed parser for each operator.
"""

from __future__ import annotations

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

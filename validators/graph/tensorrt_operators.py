"""The operators that TensorRT's ONNX parser has importers for, as `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1 tells.

It goes by names and looks at no domain. A test asks the installed parser for each.
"""

from __future__ import annotations

# Of ONNX's own operators, opset 1 to 28.
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

# Of ONNX Runtime's own. MatMulNBits is left out: its importer looks for a plugin that TensorRT-RTX 1.7.1 does not have.
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

# Operators of ONNX Runtime's domain that mean what ONNX's own of the same name do.
CONTRIB_AS_STANDARD = frozenset({"DequantizeLinear", "GatherND", "Gelu", "Pad", "QuantizeLinear", "Range", "Trilu"})

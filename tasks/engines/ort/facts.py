"""Plain facts of `ort-cpu` and `ort-cuda`."""

from __future__ import annotations

from validators.target_facts import CPU_PROVIDER, CUDA_PROVIDER, TargetFacts

# Integer and low-bit kernels of ONNX Runtime 1.31, from its lists of kernels (OperatorKernels.md). Kernels that do not multiply
# compute on integers what a float model computes in float; those that only move integers about (Transpose, MaxPool) are not
# among them, nor are conversions.
CPU_KERNELS = frozenset(
    {
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "QAttention",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "ConvInteger",
        "MatMulNBits",
        "QEmbedLayerNormalization",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
    }
)
# Operators that its lists have in float alone. Recurrent layers of many units are rewritten (`tasks/ptq/eight_bit/gru.py`).
CPU_FLOAT = frozenset({"ConvTranspose", "GRU", "RNN"})
# It has no QLinearConv and no QLinearMatMul: a Q/DQ file runs there in float, or by another provider.
CUDA_KERNELS = frozenset(
    {
        "MatMulNBits",
        "QAttention",
        "QOrderedMatMul",
        "QOrderedAttention",
        "QOrderedLongformerAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "MatMulInteger",
        "GemmFloat8",
        "MatMulBlockQuantizedFp8Weight",
    }
)

CPU = TargetFacts(
    name="ort-cpu",
    provider=CPU_PROVIDER,
    simulated=frozenset({"fp8"}),
    loads_anywhere=True,
    default_candidates=(
        "fp32-fused@ort-cpu",
        "int8-static-minmax-pc@ort-cpu",
        "int8-static-mse-pc@ort-cpu",
        "int8-static-mse-pc-all@ort-cpu",
        "int8-static-mse-pc-smooth@ort-cpu",
        "int8-static-mse-pc-bc@ort-cpu",
        "int8-dynamic-pc@ort-cpu",
        "int8-dynamic-pc-smooth@ort-cpu",
        "int8-dynamic-pc+fused@ort-cpu",
        "int4-g32-rtn@ort-cpu",
        "int4-g32-gptq@ort-cpu",
        "fp8-amax-pc@ort-cpu",
    ),
    low_precision=CPU_KERNELS,
    without_form=CPU_FLOAT,
    classes={
        "cpu": (
            "fp32-fused@ort-cpu",
            "int8-static-minmax-pc@ort-cpu",
            "int8-static-mse-pc-all@ort-cpu",
            "int8-static-mse-pc-bc@ort-cpu",
            "int8-dynamic-pc+fused@ort-cpu",
            "int4-g32-rtn@ort-cpu",
        ),
    },
)

CUDA = TargetFacts(
    name="ort-cuda",
    provider=CUDA_PROVIDER,
    libraries={"cublas": ("nvidia-cublas",), "cudnn": ("nvidia-cudnn-cu13",)},
    without={"+fused": "fused operators are no ONNX", "g256": "it has kernels for blocks of 16 to 128"},
    # The provider has no kernels for pairs of INT8 or FP8.
    default_candidates=(
        "fp32-fused@ort-cuda",
        "fp16@ort-cuda",
        "int4-g32-rtn@ort-cuda",
        "int4-g128-rtn@ort-cuda",
        "int4-g128-gptq@ort-cuda",
        "int4-g128-awq@ort-cuda",
    ),
    on_gpu=True,
    low_precision=CUDA_KERNELS,
    classes={
        "cuda": (
            "fp32-fused@ort-cuda",
            "fp16@ort-cuda",
            "int4-g128-rtn@ort-cuda",
        ),
    },
)

FACTS = (CPU, CUDA)

"""Plain facts of `torch-inductor` and `torch-cuda`."""

from __future__ import annotations

from dataclasses import replace

from validators.job import methods
from validators.processors import TORCH_BF16
from validators.target_facts import INDUCTOR, INDUCTOR_CUDA, TargetFacts, bfloat16

CPU = TargetFacts(
    name="torch-inductor",
    provider=INDUCTOR,
    libraries={"torch": ("torch",), "torchao": ("torchao",)},
    without={
        "pt": "its quantizer scales output channels",
        "+fused": "TorchInductor fuses what it compiles",
        methods.EVERY_OPERATOR.word: "its quantizer chooses the operators",
        methods.SIGNED.word: "its kernels take UINT8",
        methods.SMOOTH.word: "it rewrites ONNX graphs",
        methods.CORRECTED.word: "it rewrites ONNX graphs",
        methods.FAST.word: "slow products are found in profiles of ONNX Runtime",
        methods.BF16_REST.word: "the rest is computed in float32",
        **dict.fromkeys(methods.UNOBSERVED, "its quantizer has no observer that finds these ranges"),
        **dict.fromkeys(methods.NOT_NEAREST, "its quantizer rounds to the nearest"),
    },
    fused_words="the float model as TorchInductor compiles it",
    runs_sources=False,
    needs=(bfloat16(TORCH_BF16, "by torch's own list"),),
    default_candidates=(
        "fp32-fused@torch-inductor",
        "bf16@torch-inductor",
        "int8-static-minmax-pc@torch-inductor",
        "int8-static-mse-pc@torch-inductor",
        "int8-dynamic-pc@torch-inductor",
    ),
    session="tasks.engines.inductor.session",
    room="inductor",
    shipped="tasks.engines.inductor.shipped",
    coverage="tasks.engines.inductor.coverage",
    distributions=("torch",),
    compiles=True,
    runtime="torch",
    hub_library="pytorch",
    coverage_source="oneDNN's executed primitives",
    classes={
        "cpu": (
            "fp32-fused@torch-inductor",
            "int8-static-mse-pc@torch-inductor",
        ),
    },
)

CUDA = replace(
    CPU,
    name="torch-cuda",
    provider=INDUCTOR_CUDA,
    libraries={"torch": ("torch",)},
    without={
        "static": "it has no fixed ranges, but a scale for each row of activations: int8-dynamic-pc",
        "dynamic-pt": "a weight has a scale for each output channel",
        "g16": "its kernel takes blocks of 32, 64, 128 or 256",
        "+fused": "TorchInductor fuses what it compiles",
        methods.SMOOTH.word: "it rewrites ONNX graphs",
        methods.FAST.word: "slow products are found in profiles of ONNX Runtime",
        methods.BF16_REST.word: "what is left in float is in bfloat16 anyway",
        **dict.fromkeys(methods.SCALING, "it rewrites ONNX graphs"),
    },
    int8_words="INT8",
    needs=(),
    default_candidates=(
        "fp32-fused@torch-cuda",
        "fp16@torch-cuda",
        "bf16@torch-cuda",
        "int8-dynamic-pc@torch-cuda",
        "fp8-amax-pc@torch-cuda",
        "fp8-amax-pt@torch-cuda",
        "int4-g128-rtn@torch-cuda",
        "int4-g64-hqq-asym@torch-cuda",
        "int4-g128-gptq-asym@torch-cuda",
    ),
    on_gpu=True,
    coverage_source="the kernels that torch's profiler recorded",
    classes={
        "cuda": (
            "fp16@torch-cuda",
            "int8-dynamic-pc@torch-cuda",
            "fp8-amax-pc@torch-cuda",
            "int4-g128-gptq-asym@torch-cuda",
        ),
    },
)

FACTS = (CPU, CUDA)

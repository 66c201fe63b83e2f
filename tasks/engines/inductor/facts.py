"""Plain facts of `torch-inductor` and `torch-cuda`."""

from __future__ import annotations

from dataclasses import replace

from validators.job.methods import (
    BF16_REST,
    CORRECTED,
    EVERY_OPERATOR,
    FAST,
    OUR_RANGES,
    OUR_ROUNDING,
    RANGES,
    SCALED_INPUTS,
    SIGNED,
    SMOOTH,
    words_of,
)
from validators.processors import TORCH_BF16
from validators.target_facts import INDUCTOR, INDUCTOR_CUDA, TargetFacts, bfloat16

CPU = TargetFacts(
    name="torch-inductor",
    provider=INDUCTOR,
    libraries={"torch": ("torch",), "torchao": ("torchao",)},
    without={
        "pt": "",
        "+fused": "",
        OUR_RANGES: f"{words_of(row for row in RANGES.values() if row.observer)}: its quantizer has no other observers",
        OUR_ROUNDING: "the name without it: torch rounds to the nearest",
        EVERY_OPERATOR.word: "its quantizer chooses the operators",
        SIGNED.word: "its kernels take UINT8",
        SMOOTH.word: "it rewrites ONNX graphs",
        CORRECTED.word: "it rewrites ONNX graphs",
        FAST.word: "slow products are found in profiles of ONNX Runtime",
        BF16_REST.word: "take bf16, or leave the rest in float32",
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
    documented=True,
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
        "static": "",
        "pt": "",
        FAST.word: "",
        "+fused": "",
        SMOOTH.word: "it rewrites ONNX graphs",
        SCALED_INPUTS: "a method that leaves activations as they are: factors are multiplied into ONNX graphs",
        BF16_REST.word: "what is left in float is in bfloat16 anyway",
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

"""Plain facts of `torch-inductor` and `torch-cuda`."""

from __future__ import annotations

from dataclasses import replace

from validators.processors import TORCH_BF16
from validators.target_facts import INDUCTOR, INDUCTOR_CUDA, TargetFacts, bfloat16

CPU = TargetFacts(
    name="torch-inductor",
    provider=INDUCTOR,
    libraries={"torch": ("torch",), "torchao": ("torchao",)},
    without=frozenset({"pt", "p99.9", "percentile", "entropy", "all", "smooth", "bc", "fast", "learned", "+fused"}),
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
    without=frozenset({"static", "pt", "smooth", "awq", "learned", "fast", "+fused"}),
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

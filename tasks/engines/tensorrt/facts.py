"""Plain facts of `tensorrt`."""

from __future__ import annotations

from validators.job import methods
from validators.target_facts import TENSORRT, TargetFacts

CANDIDATES = (
    "fp16@tensorrt",
    "int8-static-minmax-pc@tensorrt",
    "int8-static-entropy-pc@tensorrt",
    "fp8-amax-pc@tensorrt",
    "int4-g128-rtn@tensorrt",
    # Blocks of 128 divide few widths of small models.
    "int4-g64-rtn@tensorrt",
)

TENSORRT_FACTS = TargetFacts(
    name="tensorrt",
    provider=TENSORRT,
    libraries={"tensorrt": ("tensorrt", "tensorrt-cu13"), "tensorrt_rtx": ("tensorrt-rtx",)},
    without={
        "+fused": "fused operators are no ONNX",
        "dynamic": "it has no INT8 kernels with ranges at run time",
        **dict.fromkeys(("g16", "g32", "g256"), "it fuses blocks of 64 or 128 with the product"),
        methods.ASYMMETRIC.word: "it parses no zero point but 0",
        methods.CORRECTED.word: "corrections are measured on the CPU's integers",
        **dict.fromkeys(methods.NOT_NEAREST, "their scales are below zero, which it does not take"),
    },
    default_candidates=CANDIDATES,
    on_gpu=True,
    builds_engines=True,
    session="tasks.engines.tensorrt.runner",
    room="tensorrt",
    coverage="tasks.engines.tensorrt.coverage",
    runtime="TensorRT",
    hub_library="tensorrt",
    coverage_source="the engine's layers",
    shipped="tasks.engines.tensorrt.shipped",
    classes={"cuda": CANDIDATES},
)

FACTS = (TENSORRT_FACTS,)

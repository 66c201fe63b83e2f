"""Plain facts of `ort-genai`, whose kernels are those of ONNX Runtime."""

from __future__ import annotations

from tasks.engines.ort.facts import CPU_FLOAT, CPU_KERNELS
from validators.target_facts import GENAI, TargetFacts

GENAI_FACTS = TargetFacts(
    name="ort-genai",
    provider=GENAI,
    libraries={"onnxruntime-genai": ("onnxruntime-genai",)},
    without={
        "+fused": "the model builder has fused the graph",
        "static": "a decoder's outliers fit no fixed ranges, take int8-dynamic",
    },
    fused_words="the float decoder as the library's model builder writes it",
    generates=True,
    # Without INT8 dynamic: blocks of INT8 lose far less on decoders, in as many bytes.
    loads_anywhere=True,
    default_candidates=(
        "int8-g32-rtn@ort-genai",
        # Half as many scales to read, which shows where memory bounds the speed.
        "int8-g64-rtn@ort-genai",
        "int8-g64-rtn+kv8@ort-genai",
        "int4-g32-gptq-asym@ort-genai",
    ),
    low_precision=CPU_KERNELS,
    without_form=CPU_FLOAT,
    session="tasks.engines.genai.session",
    room="genai",
    shipped="tasks.engines.genai.shipped",
    coverage="tasks.engines.genai.session",
    distributions=("onnxruntime-genai",),
    beside=("onnxruntime",),
    runtime="onnxruntime-genai",
    classes={
        "cpu-decoder": (
            "int8-g32-rtn@ort-genai",
            "int8-g64-rtn@ort-genai",
            "int4-g32-gptq-asym@ort-genai",
        ),
    },
)

FACTS = (GENAI_FACTS,)

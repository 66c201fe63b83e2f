"""Plain facts of `openvino-decoder`."""

from __future__ import annotations

from tasks.engines.openvino.facts import OPENVINO_FACTS, openvino_needs
from validators.job import methods
from validators.target_facts import OPENVINO_DECODER, TargetFacts

DECODER = TargetFacts(
    name="openvino-decoder",
    provider=OPENVINO_DECODER,
    libraries={"openvino": ("openvino",)},
    without={
        **OPENVINO_FACTS.without,
        "static": "a decoder's outliers fit no fixed ranges, take int8-dynamic",
        methods.SMOOTH.word: "its groups of channels have scales of their own",
        methods.CORRECTED.word: "a decoder has few biases",
    },
    fused_words="the float decoder as OpenVINO fuses it when it loads, computed in float32",
    generates=True,
    needs=openvino_needs(instead="int8-g64-rtn"),
    loads_anywhere=True,
    default_candidates=(
        "bf16@openvino-decoder",
        "int8-dynamic-pc@openvino-decoder",
        "int8-g32-rtn@openvino-decoder",
        "int8-g64-rtn@openvino-decoder",
        "int8-g64-rtn+kv8@openvino-decoder",
        "int4-g32-gptq-asym@openvino-decoder",
    ),
    session="tasks.engines.openvino_decoder.session",
    room="openvino_decoder",
    shipped="tasks.engines.openvino_decoder.shipped",
    coverage="tasks.engines.openvino_decoder.session",
    distributions=("openvino",),
    beside=("tokenizers",),
    runtime="OpenVINO",
    hub_library="openvino",
    classes={
        "cpu-decoder": (
            "bf16@openvino-decoder",
            "int8-dynamic-pc@openvino-decoder",
            "int8-g64-rtn@openvino-decoder",
            "int4-g32-gptq-asym@openvino-decoder",
        ),
    },
)

FACTS = (DECODER,)

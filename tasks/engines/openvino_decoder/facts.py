"""Plain facts of `openvino-decoder`."""

from __future__ import annotations

from tasks.engines.openvino.facts import openvino_needs
from validators.target_facts import OPENVINO_DECODER, TargetFacts

DECODER = TargetFacts(
    name="openvino-decoder",
    provider=OPENVINO_DECODER,
    libraries={"openvino": ("openvino",)},
    without=frozenset({"+fused", "static", "smooth", "bc"}),
    fused_words="the float decoder as OpenVINO fuses it when it loads, computed in float32",
    generates=True,
    mixes=True,
    needs=openvino_needs(instead="int8-g64-rtn"),
    loads_anywhere=True,
    default_candidates=(
        "bf16@openvino-decoder",
        "int8-dynamic-pc@openvino-decoder",
        "int8-g32-rtn@openvino-decoder",
        "int8-g64-rtn@openvino-decoder",
        "int8-g64-rtn+kv8@openvino-decoder",
        "int4-g32-gptq-asym@openvino-decoder",
        "int4-g32-gptq-asym-mix50@openvino-decoder",
    ),
    session="tasks.engines.openvino_decoder.session",
    documented=True,
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
            "int4-g32-gptq-asym-mix50@openvino-decoder",
        ),
    },
)

FACTS = (DECODER,)

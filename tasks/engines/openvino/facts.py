"""Plain facts of `openvino`."""

from __future__ import annotations

from validators.job import methods
from validators.processors import OPENVINO_BF16, VNNI
from validators.target_facts import OPENVINO, Need, TargetFacts, bfloat16


def openvino_needs(*, instead: str) -> tuple[Need, ...]:
    """Return the needs of OpenVINO; `instead` is the recipe to take for one with ranges at run time."""
    return (
        bfloat16(OPENVINO_BF16, "by OpenVINO's own list"),
        Need(
            word="dynamic",
            name="VNNI",
            instructions=VNNI,
            why="OpenVINO quantizes activations at run time with them alone",
            fix=f"take {instead}",
        ),
    )


OPENVINO_FACTS = TargetFacts(
    name="openvino",
    provider=OPENVINO,
    libraries={"openvino": ("openvino",)},
    without={
        "+fused": "it fuses attention, sums and normalizations itself",
        methods.FAST.word: "slow products are found in the profile of ort-cpu",
        methods.SIGNED.word: "activations have a sign where they need one",
    },
    fused_words="the float model as OpenVINO fuses it when it loads, computed in float32",
    int8_words="INT8 or UINT8",
    needs=openvino_needs(instead="int8-static"),
    loads_anywhere=True,
    rewrites=True,
    default_candidates=(
        "fp32-fused@openvino",
        "bf16@openvino",
        "int8-static-minmax-pc@openvino",
        "int8-static-mse-pc@openvino",
        "int8-static-mse-pc-all@openvino",
        "int8-static-mse-pc-all-smooth-bf16@openvino",
        "int8-static-mse-pc-smooth@openvino",
        "int8-static-mse-pc-all-smooth@openvino",
        "int8-dynamic-pc@openvino",
        "int4-g32-gptq@openvino",
    ),
    session="tasks.engines.openvino.session",
    room="openvino",
    shipped="tasks.engines.openvino.shipped",
    coverage="tasks.engines.openvino.coverage",
    distributions=("openvino",),
    runtime="OpenVINO",
    hub_library="openvino",
    coverage_source="the graph that ran",
    classes={
        "cpu": (
            "fp32-fused@openvino",
            "bf16@openvino",
            "int8-static-mse-pc@openvino",
            "int8-static-mse-pc-all@openvino",
            "int8-static-mse-pc-all-smooth@openvino",
            "int8-static-mse-pc-all-smooth-bf16@openvino",
            "int8-dynamic-pc@openvino",
        ),
    },
)

FACTS = (OPENVINO_FACTS,)

"""Processors for tests: every kind by its instruction sets, and those whose variants this machine computes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from tasks.measure.inventory import this_processor
from tasks.ptq.build_variant import Materials
from tasks.ptq.eight_bit.affine import WeightBits
from validators.processors import Processor

KINDS = {
    "AVX2": Processor(("avx2",)),
    "AVX-VNNI": Processor(("avx2", "avx_vnni")),
    "AVX-VNNI with bfloat16": Processor(("avx2", "avx_vnni", "avx_ne_convert")),
    "AVX512": Processor(("avx2", "avx512f")),
    "AVX512-VNNI": Processor(("avx2", "avx512f", "avx512_vnni")),
    "AVX512-VNNI with bfloat16": Processor(("avx2", "avx512f", "avx512_vnni", "avx512_bf16")),
    "AMX": Processor(("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")),
    "ARM": Processor(("asimddp",)),
    "ARM with i8mm": Processor(("asimddp", "i8mm", "bf16", "sve")),
}
AVX2, AMX = KINDS["AVX2"], KINDS["AMX"]
HERE = this_processor()
# Variants for these have exact sums in this machine's kernels: its own, and where 8 bits are exact, those of 7 bits too.
RUN_HERE = (AVX2,) if HERE.adds_pairs_in_16_bits else (AVX2, HERE)
# The bits of INT8 weights of the same variants; the last are those of this machine's own.
BITS_HERE: tuple[WeightBits, ...] = (7,) if HERE.adds_pairs_in_16_bits else (7, 8)


def source_alone(source: Path) -> Materials:
    """Materials of which a pass may read the source alone."""

    def refuse(*_given: object) -> NoReturn:
        raise AssertionError("a material was made")

    return Materials(refuse, refuse, refuse, refuse, refuse, refuse, refuse, HERE, source=source)


def openvino_capabilities() -> tuple[str, ...]:
    """What OpenVINO says that this processor computes in, such as `FP32`, `BF16` and `INT8`; needs the package."""
    from tasks.engines.openvino.shipped.model import core

    return tuple(core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))

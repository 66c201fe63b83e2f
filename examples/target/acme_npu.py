"""A target of another package: here one that computes as `ort-cpu` does, and takes INT8 and fused float alone."""

from dataclasses import replace

from tasks.engines.engine import RefusedPrecision
from tasks.engines.ort import engine as ort

BASE = ort.CPU
FACTS = replace(
    BASE.facts,
    name="acme-npu",
    simulated=frozenset(),
    loads_anywhere=False,
    default_candidates=("fp32-fused@acme-npu", "int8-static-minmax-pc@acme-npu", "int8-dynamic-pc@acme-npu"),
)
NO_KERNELS = RefusedPrecision("{target} has no kernels for it", "int8")

TARGET = replace(
    BASE,
    facts=FACTS,
    passes={name: BASE.passes[name] for name in ("fp32", "int8")},
    refused={"fp16": NO_KERNELS, "fp8": NO_KERNELS, "int4": NO_KERNELS},
)

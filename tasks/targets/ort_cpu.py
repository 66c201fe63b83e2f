"""The target `ort-cpu`: ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.ptq.build_variant import PASSES
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import Availability
from tasks.targets.ort_lint import observe_session
from tasks.targets.target import RefusedPrecision, Target
from validators.graph.ort_rules import CPU_RULES
from validators.job.candidate_name import Candidate
from validators.providers import CPU_PROVIDER
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of

# The kernel that adds and normalizes at once works number by number: five to six times the time of Add and
# LayerNormalization in ONNX Runtime 1.31.1 (`benchmarks/README.md`), and the runtime makes it of them when it loads.
SLOW_FUSION = {"optimization.disable_specified_optimizers": "SkipLayerNormFusion"}


def _session(
    candidate: Candidate, threads: int, libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    if candidate.is_simulated:
        # At higher levels releases before 1.32 fuse FP8 Q/DQ into QLinearConv, which does not exist for FP8.
        return SessionSettings(CPU_PROVIDER, threads, optimization="basic", libraries=libraries)
    if candidate.precision == "fp32" and not candidate.fused:
        return SessionSettings(CPU_PROVIDER, threads, libraries=libraries)  # the baseline: ONNX Runtime's own defaults
    return SessionSettings(CPU_PROVIDER, threads, entries=dict(SLOW_FUSION), libraries=libraries)


def _availability(_providers: Collection[str]) -> Availability:
    return Availability(True, "ONNX Runtime's CPU provider")


TARGET = Target(
    facts=facts_of("ort-cpu"),
    runtime=provider_of(CPU_PROVIDER),
    passes=PASSES,
    session=_session,
    availability=_availability,
    refused={
        "fp16": RefusedPrecision(
            "fp16 on {target}",
            "a precision with CPU kernels",
            "ONNX Runtime's CPU provider computes fp16 in fp32: take int8 or fp32-fused",
        )
    },
    lint_rules=CPU_RULES,
    observe=observe_session,
    recovers_parts=True,
)

"""ONNX Runtime's CPU provider, the engine `ort-cpu`, and its CUDA provider, `ort-cuda`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.engines.availability import NO_GPU, Availability, describe_missing, install, mend_on_gpu
from tasks.engines.engine import Engine, RefusedPrecision
from tasks.engines.given import take_onnx
from tasks.engines.ort import facts
from tasks.engines.ort.forms import cuda_form
from tasks.engines.ort.lint import observe_session
from tasks.engines.ort.pairs import PAIRS
from tasks.engines.ort.rules import CPU_RULES, CUDA_RULES
from tasks.measure.inventory import find_gpu
from tasks.ptq.build_variant import fp8_form, fused_float_form, int8_form, weights_form
from tasks.ptq.slow_parts import profile_costs
from tasks.runtimes.ort_gpu import probe, why_missing
from validators.job.candidate_name import Candidate
from validators.records.libraries import Libraries
from validators.records.run import LEFT_OUT, ROUNDS_FLOATS, SessionSettings
from validators.target_facts import CPU_PROVIDER, CUDA_PROVIDER

# What the runtime would make of a graph when it loads. The kernel that adds and normalizes at once works number by number: five
# to six times the time of Add and LayerNormalization in ONNX Runtime 1.31.1 (`benchmarks/README.md`).
NOT_FUSED = f"SkipLayerNormFusion;{ROUNDS_FLOATS}"


def _cpu_session(
    candidate: Candidate, threads: int, libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    if candidate.is_simulated:
        # At higher levels releases before 1.32 fuse FP8 Q/DQ into QLinearConv, which does not exist for FP8.
        return SessionSettings.reference(threads, "basic", libraries=libraries)
    if candidate.precision == "fp32" and not candidate.fused:
        return SessionSettings(CPU_PROVIDER, threads, libraries=libraries)  # the baseline: ONNX Runtime's own defaults
    return SessionSettings(CPU_PROVIDER, threads, entries={LEFT_OUT: NOT_FUSED}, libraries=libraries)


def _cpu_availability(_providers: Collection[str]) -> Availability:
    return Availability(True, "ONNX Runtime's CPU provider")


CPU = Engine(
    facts=facts.CPU,
    passes={"fp32": fused_float_form, "int8": int8_form, "int4": weights_form, "fp8": fp8_form},
    pairs=PAIRS,
    session=_cpu_session,
    availability=_cpu_availability,
    refused={
        "fp16": RefusedPrecision(
            "fp16 on {target}",
            "a precision with CPU kernels",
            "ONNX Runtime's CPU provider computes fp16 in fp32: take int8 or fp32-fused",
        )
    },
    lint_rules=CPU_RULES,
    observe=observe_session,
    searches=frozenset({"int8", "int4"}),
    profile_costs=profile_costs,
    takes={".onnx": take_onnx},
)

_NO_PAIRS = (
    "fp16 or int4: the CUDA provider has no kernels for Q/DQ pairs, and would compute in float; they are for tensorrt"
)


def _cuda_session(
    _candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    # The runtime's own default, named: an environment variable or another version must not change what was approved.
    options = {"use_tf32": "1"} | dict(provider_options)
    return SessionSettings(CUDA_PROVIDER, threads, libraries=libraries, provider_options=options)


def _cuda_availability(providers: Collection[str]) -> Availability:
    gpu = find_gpu()
    missing = why_missing(providers) or (probe(CUDA_PROVIDER) if gpu else NO_GPU)
    if missing or gpu is None:
        mend = mend_on_gpu(gpu, install("gpu", instead_of="onnxruntime"))
        return Availability(False, describe_missing(missing or NO_GPU), mend)
    where = f"{gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}"
    return Availability(True, f"{CUDA_PROVIDER} on {where}")


CUDA = Engine(
    facts=facts.CUDA,
    passes={"fp32": fused_float_form, "fp16": cuda_form, "int4": cuda_form},
    session=_cuda_session,
    availability=_cuda_availability,
    refused={
        "int8": RefusedPrecision("INT8 for {target}", _NO_PAIRS),
        "fp8": RefusedPrecision("FP8 for {target}", _NO_PAIRS),
    },
    why_unmeasured=why_missing,
    lint_rules=CUDA_RULES,
    takes={".onnx": take_onnx},
)
ENGINES = (CPU, CUDA)

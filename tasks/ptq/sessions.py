"""How each target loads what candidates make for it, and what is not measured where nothing can run it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from tasks.runtimes.openvino import Missing
from tasks.runtimes.ort_gpu import ENGINE_CACHE, why_missing
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate
from validators.providers import CPU_PROVIDER, CUDA_PROVIDER, OPENVINO_PROVIDER, ORT_TENSORRT_PROVIDER, TENSORRT
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings, Variant

# The kernel that adds and normalizes at once works number by number: five to six times the time of Add and
# LayerNormalization in ONNX Runtime 1.31.1 (`benchmarks/README.md`), and the runtime makes it of them when it loads.
SLOW_FUSION = {"optimization.disable_specified_optimizers": "SkipLayerNormFusion"}
# What ONNX Runtime does to pairs of Q and DQ before a provider sees the graph, seen in 1.31.1: float biases become integers,
# which TensorRT does not parse, pairs are moved and doubled, and MatMul with INT4 weights becomes Gemm.
AS_WRITTEN = {
    "optimization.disable_specified_optimizers": "WeightBiasQuantization;QDQPropagationTransformer;MatMulAddFusion"
}


def session_settings(
    candidate: Candidate,
    threads: int,
    libraries: Libraries = (),
    provider_options: Mapping[str, str] | None = None,
) -> SessionSettings:
    """How the runtime must load the candidate's artifact; `provider_options` are for ONNX Runtime's providers on a GPU."""
    options = dict(provider_options or {})
    match candidate.target:
        case "tensorrt":
            return SessionSettings(TENSORRT, threads)
        case "ort-cuda":
            return SessionSettings(CUDA_PROVIDER, threads, libraries=libraries, provider_options=options)
        case "ort-tensorrt":
            return SessionSettings(
                ORT_TENSORRT_PROVIDER, threads, "basic", dict(AS_WRITTEN), libraries, provider_options=options
            )
        case "ort-openvino":
            return SessionSettings(OPENVINO_PROVIDER, threads, libraries=libraries)
    if candidate.is_simulated:
        # At higher levels the CPU provider fuses FP8 Q/DQ into QLinearConv, which does not exist for FP8.
        return SessionSettings(CPU_PROVIDER, threads, optimization="basic", libraries=libraries)
    return SessionSettings(CPU_PROVIDER, threads, entries=dict(SLOW_FUSION), libraries=libraries)


def with_engine_cache(settings: SessionSettings, state: Path) -> SessionSettings:
    """The same, with what ONNX Runtime's TensorRT provider builds kept in the state folder, unless the job names another."""
    if settings.provider != ORT_TENSORRT_PROVIDER:
        return settings
    return replace(settings, provider_options={ENGINE_CACHE: str(state / "engines")} | settings.provider_options)


def why_unmeasured(variant: Variant, providers: Collection[str]) -> CandidateRefused | None:
    """Why a variant that was made and checked is not measured, given the providers that can run something on this worker."""
    provider = variant.session.provider
    missing = why_missing(provider, providers)
    if provider == TENSORRT and TENSORRT not in providers:
        missing = Missing(
            "no TensorRT on this worker", "a GPU and TensorRT", "install the extra `tensorrt` on such a machine"
        )
    if missing is None:
        return None
    return CandidateRefused(
        kind="unsupported",
        found=f"{missing.found}: {variant.path} was made and checked, and not measured",
        expected=missing.expected,
        fix=f"{missing.fix}, or take candidates for ort-cpu",
    )

"""The target `ort-tensorrt`: ONNX Runtime's provider over TensorRT 10; its files are those of `tensorrt`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from tasks.ptq.forms import refuse_any
from tasks.runtimes.missing import Missing
from tasks.runtimes.ort_gpu import ENGINE_CACHE, why_missing
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import Availability, install, provider_on_gpu
from tasks.targets.target import Target
from tasks.targets.tensorrt import PASSES, REFUSED, refuse_recipe
from validators.job.candidate_name import Candidate
from validators.providers import ORT_TENSORRT_PROVIDER
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of

# What ONNX Runtime does to pairs of Q and DQ before a provider sees the graph, seen in 1.31.1: float biases become integers,
# which TensorRT does not parse, pairs are moved and doubled, and MatMul with INT4 weights becomes Gemm.
AS_WRITTEN = {
    "optimization.disable_specified_optimizers": "WeightBiasQuantization;QDQPropagationTransformer;MatMulAddFusion"
}


def _refuse_recipe(candidate: Candidate) -> None:
    reason = "no -fast: it needs the layers of engines, which ONNX Runtime does not report; take tensorrt"
    refuse_any(candidate.target, {"products left in float by layers": (candidate.fast, reason)})
    refuse_recipe(candidate)


def _session(
    _candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    options = dict(provider_options)
    return SessionSettings(
        ORT_TENSORRT_PROVIDER, threads, "basic", dict(AS_WRITTEN), libraries, provider_options=options
    )


def _keep_caches(settings: SessionSettings, state: Path) -> SessionSettings:
    if settings.provider != ORT_TENSORRT_PROVIDER:
        return settings
    # A folder that the job names comes first.
    return replace(settings, provider_options={ENGINE_CACHE: str(state / "engines")} | settings.provider_options)


def _availability(providers: Collection[str]) -> Availability:
    commands = [install("gpu", instead_of="onnxruntime"), install("ort-tensorrt")]
    return provider_on_gpu(ORT_TENSORRT_PROVIDER, providers, commands)


def _why_unmeasured(providers: Collection[str]) -> Missing | None:
    return why_missing(ORT_TENSORRT_PROVIDER, providers)


TARGET = Target(
    facts=facts_of("ort-tensorrt"),
    runtime=provider_of(ORT_TENSORRT_PROVIDER),
    passes=PASSES,
    session=_session,
    availability=_availability,
    refused=REFUSED,
    refuse_recipe=_refuse_recipe,
    keep_caches=_keep_caches,
    why_unmeasured=_why_unmeasured,
)

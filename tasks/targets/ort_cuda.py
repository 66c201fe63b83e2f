"""The target `ort-cuda`: ONNX Runtime's CUDA provider."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.measure.inventory import find_gpu
from tasks.ptq.build_variant import cuda_form, fused_float_form
from tasks.ptq.cuda_forms import BLOCK_SIZES
from tasks.ptq.forms import refuse_any
from tasks.runtimes.ort_gpu import probe, why_missing
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import NO_GPU, Availability, describe_missing, install, mend_on_gpu
from tasks.targets.target import RefusedPrecision, Target
from validators.errors import Missing
from validators.graph.ort_rules import CUDA_RULES
from validators.job.candidate_name import Candidate
from validators.providers import CUDA_PROVIDER
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of

_NO_PAIRS = (
    "fp16 or int4: the CUDA provider has no kernels for Q/DQ pairs, and would compute in float; they are for tensorrt"
)


def _session(
    _candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    # The runtime's own default, named: an environment variable or another version must not change what was approved.
    options = {"use_tf32": "1"} | dict(provider_options)
    return SessionSettings(CUDA_PROVIDER, threads, libraries=libraries, provider_options=options)


def _availability(providers: Collection[str]) -> Availability:
    gpu = find_gpu()
    missing = why_missing(providers) or (probe(CUDA_PROVIDER) if gpu else NO_GPU)
    if missing or gpu is None:
        mend = mend_on_gpu(gpu, install("gpu", instead_of="onnxruntime"))
        return Availability(False, describe_missing(missing or NO_GPU), mend)
    where = f"{gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}"
    return Availability(True, f"{CUDA_PROVIDER} on {where}")


def _why_unmeasured(providers: Collection[str]) -> Missing | None:
    return why_missing(providers)


def _refuse_recipe(candidate: Candidate) -> None:
    wrong = {
        f"{candidate.precision} on the fused graph": (
            candidate.fused and candidate.precision in ("fp16", "int4"),
            "the plain one, which becomes float16: fused operators are no ONNX",
        ),
        f"INT4 in blocks of {candidate.block_size}": (
            candidate.block_size not in (None, *BLOCK_SIZES),
            "16 to 128: the CUDA provider has no kernel for others",
        ),
    }
    refuse_any(candidate.target, wrong)


TARGET = Target(
    facts=facts_of("ort-cuda"),
    runtime=provider_of(CUDA_PROVIDER),
    passes={"fp32": fused_float_form, "fp16": cuda_form, "int4": cuda_form},
    session=_session,
    availability=_availability,
    refused={
        "int8": RefusedPrecision("INT8 for {target}", _NO_PAIRS),
        "fp8": RefusedPrecision("FP8 for {target}", _NO_PAIRS),
    },
    refuse_recipe=_refuse_recipe,
    why_unmeasured=_why_unmeasured,
    lint_rules=CUDA_RULES,
)

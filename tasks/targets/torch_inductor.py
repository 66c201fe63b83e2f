"""The target `torch-inductor`: PyTorch programs that TorchInductor compiled for the processor."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.ptq.forms import refuse_any
from tasks.ptq.inductor.compile import inductor_form
from tasks.runtimes.inductor import session as inductor
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import Availability, describe_missing, install
from tasks.targets.target import RefusedPrecision, Target
from validators.errors import CandidateRefused, Missing
from validators.job.candidate_name import Candidate
from validators.providers import INDUCTOR
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of


def _session(
    candidate: Candidate, threads: int, _libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    # The coverage refuses products in bfloat16 that were not asked for.
    return SessionSettings(INDUCTOR, threads, provider_options={"precision": "bf16" if candidate.in_bf16 else "f32"})


def _availability(_providers: Collection[str]) -> Availability:
    if missing := inductor.why_missing():
        return Availability(False, describe_missing(missing), missing.fix)
    found = f"torch {inductor.installed_version()} and {inductor.compiler()}"
    if missing := inductor.why_no_int8():
        return Availability(True, f"{found}, without INT8: {missing.found}", install("inductor"))
    return Availability(True, found)


def _check_device() -> None:
    if missing := inductor.why_missing():
        raise _unsupported(missing)


def _refuse_recipe(candidate: Candidate) -> None:
    method = candidate.range_method
    refuse_any(
        candidate.target,
        {
            "INT8 per tensor": (candidate.granularity == "pt", "-pc: its quantizer scales output channels"),
            f"ranges by {method}": (
                method not in (None, "minmax", "mse"),
                "minmax, or mse: its quantizer has no other observers",
            ),
            "every operator": (candidate.every_operator, "no -all: its quantizer chooses the operators"),
            "signed activations": (candidate.signed_activations, "no -s8s8: its kernels take UINT8"),
            "smoothing": (candidate.smooth, "no -smooth: it rewrites ONNX graphs"),
            "corrected biases": (candidate.bias_corrected, "no -bc: it rewrites ONNX graphs"),
            "parts kept in float": (candidate.kept_parts > 0, "no -keep: parts are ranked in ONNX graphs"),
            "products left in float": (candidate.fast, "no -fast: slow products are found in profiles of ONNX Runtime"),
            "INT8 with the rest in bfloat16": (
                candidate.bf16_floats,
                "bf16, or INT8 with the rest in float32",
            ),
            "the fused graph": (
                candidate.fused and candidate.precision != "fp32",
                "the plain one: TorchInductor fuses what it compiles",
            ),
        },
    )
    if candidate.precision == "int8" and (missing := inductor.why_no_int8()):
        raise _unsupported(missing)


def _unsupported(missing: Missing) -> CandidateRefused:
    return CandidateRefused(kind="unsupported", found=missing.found, expected=missing.expected, fix=missing.fix)


TARGET = Target(
    facts=facts_of("torch-inductor"),
    runtime=provider_of(INDUCTOR),
    passes={"fp32": inductor_form, "bf16": inductor_form, "int8": inductor_form},
    session=_session,
    availability=_availability,
    refused={
        "int4": RefusedPrecision("INT4 for {target}", "int8: its quantizer for x86 has no INT4"),
        "fp8": RefusedPrecision("FP8 for {target}", "int8: a CPU has no FP8 kernels"),
        "fp16": RefusedPrecision("float16 for {target}", "bf16: a CPU computes float16 in float32"),
    },
    refuse_recipe=_refuse_recipe,
    check_device=_check_device,
    artifact="model.pt2",
)

"""PyTorch programs compiled by TorchInductor: the engines `torch-inductor`, on processors, and `torch-cuda`, on NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from tasks.engines.availability import Availability, describe_missing, install
from tasks.engines.engine import Engine, RefusedPrecision
from tasks.engines.inductor import facts
from tasks.engines.inductor import session as inductor
from tasks.engines.inductor.compile import compile_seconds, inductor_form, take_program
from tasks.measure.inventory import find_gpu
from validators.errors import CandidateRefused, Missing
from validators.job.candidate_name import Candidate
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.target_facts import INDUCTOR, TargetFacts


def _cpu_session(
    candidate: Candidate, threads: int, _libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    # The coverage refuses products in bfloat16 that were not asked for.
    return SessionSettings(INDUCTOR, threads, provider_options={"precision": "bf16" if candidate.in_bf16 else "f32"})


def _cpu_availability(_providers: Collection[str]) -> Availability:
    if missing := inductor.why_missing():
        return Availability(False, describe_missing(missing), missing.fix)
    found = f"torch {inductor.installed_version()} and {inductor.compiler()}"
    if missing := inductor.why_no_int8():
        return Availability(True, f"{found}, without INT8: {missing.found}", install("inductor"))
    return Availability(True, found)


def _cpu_check_device() -> None:
    if missing := inductor.why_missing():
        raise missing.refused()


def _cpu_refuse_recipe(candidate: Candidate) -> None:
    if candidate.precision == "int8" and (missing := inductor.why_no_int8()):
        raise missing.refused()


CPU = Engine(
    facts=facts.CPU,
    passes={"fp32": inductor_form, "bf16": inductor_form, "int8": inductor_form},
    session=_cpu_session,
    compile_seconds=compile_seconds,
    availability=_cpu_availability,
    refused={
        "int4": RefusedPrecision("INT4 for {target}", "int8: its quantizer for x86 has no INT4"),
        "fp8": RefusedPrecision("FP8 for {target}", "int8: a CPU has no FP8 kernels"),
        "fp16": RefusedPrecision("float16 for {target}", "bf16: a CPU computes float16 in float32"),
    },
    refuse_recipe=_cpu_refuse_recipe,
    check_device=_cpu_check_device,
    artifact="model.pt2",
    takes={".pt2": take_program},
)

# The first GPUs with products in E4M3.
FP8_CAPABILITY = (8, 9)


def make_engine(plain: TargetFacts, device: str) -> Engine:
    """Return the target whose packages run on the torch device `device`; tests take `cpu`."""

    def session(
        candidate: Candidate, threads: int, _libraries: Libraries, _provider_options: Mapping[str, str]
    ) -> SessionSettings:
        # The coverage refuses products in 16 bits that were not asked for.
        precision = {"fp32": "f32", "fp16": "fp16"}.get(candidate.precision, "bf16")
        return SessionSettings(plain.provider, threads, provider_options={"precision": precision})

    form = partial(inductor_form, device=device, for_gpu=True)
    on_gpu = device != "cpu"
    return Engine(
        facts=plain,
        passes={"fp32": form, "fp16": form, "bf16": form, "int8": form, "int4": form, "fp8": form},
        session=session,
        compile_seconds=compile_seconds,
        availability=_cuda_availability if on_gpu else lambda _providers: Availability(True, "torch"),
        refused={
            "int8-weights": RefusedPrecision(
                "INT8 in blocks for {target}", "int8-dynamic-pc or int4: PyTorch has no kernel for blocks of INT8"
            )
        },
        refuse_recipe=_cuda_refuse_recipe,
        check_device=_cuda_check_device if on_gpu else lambda: None,
        why_unmeasured=_why_missing if on_gpu else lambda _providers: None,
        artifact="model.pt2",
        takes={".pt2": partial(take_program, device=device, for_gpu=True)},
    )


def _why_missing(_providers: Collection[str] = ()) -> Missing | None:
    return inductor.why_missing() or inductor.why_no_gpu()


def _cuda_availability(_providers: Collection[str]) -> Availability:
    if missing := _why_missing():
        return Availability(False, describe_missing(missing), missing.fix)
    gpu = find_gpu()
    where = f"{gpu.name}, compute capability {gpu.compute_capability}" if gpu else "a GPU"
    return Availability(True, f"torch {inductor.installed_version()} and {inductor.compiler()} on {where}")


def _cuda_check_device() -> None:
    if missing := _why_missing():
        raise missing.refused()


def _cuda_refuse_recipe(candidate: Candidate) -> None:
    if candidate.precision != "fp8":
        return
    gpu = find_gpu()
    found = tuple(int(part) for part in gpu.compute_capability.split(".")) if gpu else FP8_CAPABILITY
    if found < FP8_CAPABILITY:
        raise CandidateRefused(
            kind="unsupported",
            found=f"a GPU of compute capability {gpu.compute_capability if gpu else ''}",
            expected="8.9 or more, which multiplies E4M3",
            fix="take int8-dynamic-pc",
        )


CUDA = make_engine(facts.CUDA, "cuda")
ENGINES = (CPU, CUDA)

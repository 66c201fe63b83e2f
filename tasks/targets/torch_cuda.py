"""The target `torch-cuda`: PyTorch programs that TorchInductor compiled for a GPU, with the kernels that PyTorch brings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from tasks.measure.inventory import find_gpu
from tasks.ptq.forms import refuse_any
from tasks.ptq.inductor.compile import inductor_form
from tasks.runtimes.inductor import session as inductor
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import Availability, describe_missing
from tasks.targets.target import RefusedPrecision, Target
from validators.errors import CandidateRefused, Missing
from validators.job.candidate_name import Candidate
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import TargetFacts, facts_of

# aten/src/ATen/native/cuda/int4mm.cu
INT4_GROUPS = (32, 64, 128, 256)
# The first GPUs with products in E4M3.
FP8_CAPABILITY = (8, 9)


def make_target(facts: TargetFacts, device: str) -> Target:
    """Return the target whose packages run on the torch device `device`; tests take `cpu`."""

    def session(
        candidate: Candidate, threads: int, _libraries: Libraries, _provider_options: Mapping[str, str]
    ) -> SessionSettings:
        # The coverage refuses products in 16 bits that were not asked for.
        precision = {"fp32": "f32", "fp16": "fp16"}.get(candidate.precision, "bf16")
        return SessionSettings(facts.provider, threads, provider_options={"precision": precision})

    form = partial(inductor_form, device=device, for_gpu=True)
    on_gpu = device != "cpu"
    return Target(
        facts=facts,
        runtime=provider_of(facts.provider),
        passes={"fp32": form, "fp16": form, "bf16": form, "int8": form, "int4": form, "fp8": form},
        session=session,
        availability=_availability if on_gpu else lambda _providers: Availability(True, "torch"),
        refused={
            "int8-weights": RefusedPrecision(
                "INT8 in blocks for {target}", "int8-dynamic-pc or int4: PyTorch has no kernel for blocks of INT8"
            )
        },
        refuse_recipe=_refuse_recipe,
        check_device=_check_device if on_gpu else lambda: None,
        why_unmeasured=_why_unmeasured if on_gpu else lambda _providers: None,
        artifact="model.pt2",
    )


def _why_missing() -> Missing | None:
    if missing := inductor.why_missing():
        return missing
    return inductor.why_no_gpu()


def _why_unmeasured(_providers: Collection[str]) -> Missing | None:
    return _why_missing()


def _availability(_providers: Collection[str]) -> Availability:
    if missing := _why_missing():
        return Availability(False, describe_missing(missing), missing.fix)
    gpu = find_gpu()
    where = f"{gpu.name}, compute capability {gpu.compute_capability}" if gpu else "a GPU"
    return Availability(True, f"torch {inductor.installed_version()} and {inductor.compiler()} on {where}")


def _check_device() -> None:
    if missing := _why_missing():
        raise CandidateRefused(kind="unsupported", found=missing.found, expected=missing.expected, fix=missing.fix)


def _refuse_recipe(candidate: Candidate) -> None:
    refuse_any(
        candidate.target,
        {
            "INT8 with fixed ranges": (
                candidate.precision == "int8" and not candidate.dynamic,
                "int8-dynamic-pc: a scale for each row of activations, at run time",
            ),
            "INT8 per tensor": (
                candidate.precision == "int8" and candidate.granularity == "pt",
                "-pc: scales of output channels",
            ),
            "smoothing": (candidate.smooth, "no -smooth: it rewrites ONNX graphs"),
            "parts kept in float": (candidate.kept_parts > 0, "no -keep: parts are ranked in ONNX graphs"),
            f"INT4 by {candidate.weight_method}": (
                candidate.precision == "int4" and candidate.weight_method == "awq",
                "rtn, gptq or hqq: its factors are folded into ONNX graphs",
            ),
            "HQQ without zero points": (
                candidate.weight_method == "hqq" and not candidate.asymmetric,
                "-asym: it searches for zero points",
            ),
            f"INT4 in blocks of {candidate.block_size}": (
                candidate.precision == "int4" and candidate.block_size not in INT4_GROUPS,
                "32, 64, 128 or 256: its kernel takes no others",
            ),
            "the rest in bfloat16, by name": (
                candidate.bf16_floats,
                "no -bf16: what is left in float is in bfloat16 anyway",
            ),
            "the fused graph": (
                candidate.fused and candidate.precision != "fp32",
                "the plain one: TorchInductor fuses what it compiles",
            ),
        },
    )
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


TARGET = make_target(facts_of("torch-cuda"), "cuda")

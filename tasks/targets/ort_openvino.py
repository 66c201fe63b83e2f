"""The target `ort-openvino`: the OpenVINO provider of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.ptq.build_variant import int4_form, int8_form, plain_float_form
from tasks.ptq.forms import refuse_any
from tasks.runtimes import openvino
from tasks.runtimes.providers import provider_of
from tasks.targets.availability import Availability, describe_missing, install
from tasks.targets.target import RefusedPrecision, Target
from validators.job.candidate_name import Candidate
from validators.providers import OPENVINO_PROVIDER
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of


def _session(
    _candidate: Candidate, threads: int, libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    return SessionSettings(OPENVINO_PROVIDER, threads, libraries=libraries)


def _availability(_providers: Collection[str]) -> Availability:
    missing = openvino.why_missing()
    if missing:
        mend = missing.fix if openvino.installed_version() else install("openvino")
        return Availability(False, describe_missing(missing), mend)
    return Availability(True, f"the OpenVINO provider, {openvino.DISTRIBUTION} {openvino.installed_version()}")


def _check_device() -> None:
    openvino.find_device()


def _refuse_recipe(candidate: Candidate) -> None:
    wrong = {
        "INT8 with ranges at run time": (candidate.dynamic, "int8-static: it computes those operators in float"),
        "the fused graph": (
            candidate.fused and candidate.precision != "fp32",
            "the plain one: it fuses attention, sums and normalizations itself",
        ),
        "signed activations": (candidate.signed_activations, "no -s8s8: activations have a sign where they need one"),
    }
    refuse_any(candidate.target, wrong)


TARGET = Target(
    facts=facts_of("ort-openvino"),
    runtime=provider_of(OPENVINO_PROVIDER),
    passes={"fp32": plain_float_form, "int8": int8_form, "int4": int4_form},
    session=_session,
    availability=_availability,
    refused={
        "fp8": RefusedPrecision("FP8 for {target}", "int8: it has no FP8 kernels for a CPU"),
        "fp16": RefusedPrecision("float16 for {target}", "int8 or fp32-fused: its float kernels are asked for float32"),
    },
    refuse_recipe=_refuse_recipe,
    check_device=_check_device,
)

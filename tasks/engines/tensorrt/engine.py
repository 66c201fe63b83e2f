"""The target `tensorrt`: engines of TensorRT itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.engines.availability import NO_GPU, Availability, install, mend_on_gpu
from tasks.engines.engine import Engine, RefusedPrecision
from tasks.engines.given import take_onnx
from tasks.engines.tensorrt.builder import BUILDER
from tasks.engines.tensorrt.facts import FACTS
from tasks.engines.tensorrt.forms import tensorrt_form
from tasks.engines.tensorrt.lint import observe_parser
from tasks.engines.tensorrt.rules import TENSORRT_RULES
from tasks.measure.inventory import find_gpu, take_inventory
from validators.errors import Missing
from validators.job.candidate_name import Candidate
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.target_facts import TENSORRT


def _session(
    _candidate: Candidate, threads: int, _libraries: Libraries, _provider_options: Mapping[str, str]
) -> SessionSettings:
    return SessionSettings(TENSORRT, threads)


def _availability(_providers: Collection[str]) -> Availability:
    installed = take_inventory("tensorrt").runtimes
    gpu = find_gpu()
    if "tensorrt" in installed and gpu is not None:
        why = f"TensorRT {installed['tensorrt']} on {gpu.name}, compute capability {gpu.compute_capability}"
        return Availability(True, why)
    mend = mend_on_gpu(gpu, install("tensorrt"))
    if "tensorrt_rtx" in installed:
        there = f"{gpu.name} is here, but TensorRT is not installed" if gpu else NO_GPU.found
        built = (
            f"TensorRT-RTX {installed['tensorrt_rtx']} builds engines ahead of time, which are inspected and never run"
        )
        return Availability(False, f"{there}; {built}", mend)
    found = "TensorRT is not installed" if gpu else f"{NO_GPU.found}, and TensorRT is not installed"
    ahead = "" if gpu else f"; to build and inspect engines without a GPU: {install('tensorrt-aot')}"
    return Availability(False, f"{found}; expected both", mend + ahead)


def _why_unmeasured(providers: Collection[str]) -> Missing | None:
    if TENSORRT in providers:
        return None
    return Missing("no TensorRT on this worker", "a GPU and TensorRT", "install the extra `tensorrt` on such a machine")


ENGINE = Engine(
    facts=FACTS[0],
    passes={"fp16": tensorrt_form, "int8": tensorrt_form, "int4": tensorrt_form, "fp8": tensorrt_form},
    session=_session,
    availability=_availability,
    refused={"fp32": RefusedPrecision("the fused graph for {target}", "the plain one: fused operators are no ONNX")},
    why_unmeasured=_why_unmeasured,
    lint_rules=TENSORRT_RULES,
    observe=observe_parser,
    builder=BUILDER,
    takes={".onnx": take_onnx},
)
ENGINES = (ENGINE,)

"""The target `tensorrt`: engines of TensorRT itself, and their builder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tasks.engines.availability import NO_GPU, Availability, install, mend_on_gpu
from tasks.engines.engine import Builder, Engine, RefusedPrecision
from tasks.engines.given import take_onnx
from tasks.engines.tensorrt.build import available, make_engine, settings_of
from tasks.engines.tensorrt.build_process import copy_log, read_log
from tasks.engines.tensorrt.costs import EngineCosts
from tasks.engines.tensorrt.coverage import coverage_of_layers, kernels_of_nodes
from tasks.engines.tensorrt.errors import notes_in
from tasks.engines.tensorrt.facts import FACTS
from tasks.engines.tensorrt.forms import quantize_for_tensorrt, tensorrt_form
from tasks.engines.tensorrt.lint import observe_parser
from tasks.engines.tensorrt.rules import TENSORRT_RULES
from tasks.measure.inventory import find_gpu, take_inventory
from tasks.ptq.build_variant import Materials
from tasks.ptq.graph.edits import scratch
from tasks.ptq.slow_parts import SlowParts, find_slow_parts
from validators.errors import Missing
from validators.job.candidate_name import Candidate
from validators.records.engines import BuildSettings, BuiltEngine
from validators.records.libraries import Libraries
from validators.records.run import LEFT_OUT, ROUNDS_FLOATS, Gpu, SessionSettings
from validators.samples.datasets import Arrays
from validators.target_facts import TENSORRT


def _warnings(engine: BuiltEngine) -> tuple[str, ...]:
    return notes_in(read_log(engine.log))


def _least_covered(model: Path, engines: Sequence[BuiltEngine], batch: Callable[[], Arrays]) -> BuiltEngine:
    kernels = [kernels_of_nodes(engine.layers) for engine in engines]
    if all(found == kernels[0] for found in kernels):
        return engines[0]
    found = [coverage_of_layers(model, engine.layers, batch()) for engine in engines]
    shares = [(coverage.share, coverage.half_share) for coverage in found]
    return engines[shares.index(min(shares))]


def _slow_parts(
    candidate: Candidate,
    materials: Materials,
    builds: Sequence[BuildSettings],
    gpu: Gpu | None,
    batch: Arrays,
    timing_caches: Path,
) -> SlowParts:
    with scratch() as folder:
        in_float = folder / "float16.onnx"
        quantize_for_tensorrt(replace(candidate, precision="fp16"), materials, in_float)
        costs = EngineCosts(builds, gpu, batch, in_float, timing_caches)
        form = partial(quantize_for_tensorrt, candidate, materials)
        return find_slow_parts(in_float, lambda _, keep_float, path: form(path, keep_float=keep_float), costs)


BUILDER = Builder(
    # ONNX Runtime 1.31.1 rewrites Q/DQ pairs also at the level `basic`: float biases become integers, pairs are moved and
    # duplicated, and MatMul with INT4 weights becomes Gemm. The simulation must compute the pairs that TensorRT reads.
    as_written={LEFT_OUT: f"{ROUNDS_FLOATS};QDQPropagationTransformer;MatMulAddFusion"},
    available=available,
    settings=settings_of,
    make_engine=make_engine,
    copy_log=copy_log,
    warnings=_warnings,
    least_covered=_least_covered,
    slow_parts=_slow_parts,
)


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

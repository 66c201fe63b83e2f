"""TensorRT's builder, as a run uses it; see `tasks.engines.engine.Builder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tasks.engines.engine import Builder
from tasks.engines.tensorrt.build import available, make_engine, settings_of
from tasks.engines.tensorrt.build_process import copy_log, read_log
from tasks.engines.tensorrt.costs import EngineCosts
from tasks.engines.tensorrt.coverage import coverage_of_layers, kernels_of_nodes
from tasks.engines.tensorrt.errors import notes_in
from tasks.engines.tensorrt.forms import quantize_for_tensorrt
from tasks.ptq.build_variant import Materials
from tasks.ptq.graph.edits import scratch
from tasks.ptq.slow_parts import SlowParts, find_slow_parts
from validators.job.candidate_name import Candidate
from validators.records.engines import BuildSettings, BuiltEngine
from validators.records.run import LEFT_OUT, ROUNDS_FLOATS, Gpu
from validators.samples.datasets import Arrays


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

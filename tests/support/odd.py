"""Small models with odd parts, for the tests that take them through every pass.

Each variant is held against the source on other samples than calibration saw, as ONNX Runtime computes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import HERE

from tasks.engines.catalog import find_target
from tasks.engines.variants import make_variant
from tasks.measure.activations import open_tapped, view_samples
from tasks.measure.taps import find_taps
from tasks.ptq.build_variant import Materials, gram_inputs, quantize_int8
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.eight_bit.qdq import QdqReport
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.edits import gather_weights
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.search import Form, Part
from tasks.ptq.sensitivity import Sensitivity, find_parts, rank_parts
from tasks.runtimes.coverage import measure_coverage
from validators.graph.source_graph import check_source_graph
from validators.job.candidate_name import Candidate, decode
from validators.records.libraries import Libraries
from validators.records.run import DataFile, SessionSettings, Variant
from validators.samples.datasets import Arrays, Samples

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
node = helper.make_node

# The bounds are what INT8, INT4 and FP8 of random weights and values lose: 2^-8, 2^-4 and 2^-4 of a range, over two layers.
CANDIDATES = {
    "int8-static-minmax-pc@ort-cpu": 0.04,
    "int8-static-minmax-pc-all@ort-cpu": 0.06,
    "int8-static-mse-pc-smooth@ort-cpu": 0.08,
    "int8-static-mse-pc-bc@ort-cpu": 0.06,
    "int8-static-minmax-pc-10db@ort-cpu": 0.04,
    "int8-dynamic-pc@ort-cpu": 0.04,
    "int4-g32-rtn@ort-cpu": 0.25,
    "int4-g32-gptq@ort-cpu": 0.25,
    "int4-g32-awq@ort-cpu": 0.25,
    "fp8-amax-pc@ort-cpu": 0.1,
}


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def info(name: str, kind: int = FLOAT, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weights(dtype: type = np.float32) -> dict[str, NDArray[Any]]:
    """Two layers, 64 to 128 to 64."""
    constants = {"w1": draw(64, 128, seed=1) / 8, "b1": draw(128, seed=2) / 4, "w2": draw(128, 64, seed=3) / 11}
    return {name: array.astype(dtype) for name, array in constants.items()}


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, NDArray[Any]],
    *,
    kind: int = FLOAT,
    domains: tuple[str, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    """A model of `x[batch, 64]` to `y`."""
    graph = helper.make_graph(
        nodes,
        "odd",
        [info("x", kind, ["batch", 64])],
        [info("y", kind, ["batch", 64])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def layers(*between: onnx.NodeProto) -> list[onnx.NodeProto]:
    """MatMul, Add, what makes `h` of `s`, and MatMul."""
    return [
        node("MatMul", ["x", "w1"], ["p"], name="first"),
        node("Add", ["p", "b1"], ["s"], name="add"),
        *between,
        node("MatMul", ["h", "w2"], ["y"], name="second"),
    ]


@dataclass(frozen=True)
class Odd:
    """A source as it is after step 1, and all that passes start from."""

    source: Path
    folder: Path
    dtype: type = np.float32
    libraries: Libraries = ()
    shape: tuple[int, ...] = (64,)

    def batch(self, rows: int, seed: int) -> Arrays:
        return {"x": draw(rows, *self.shape, seed=seed).astype(self.dtype)}

    @cached_property
    def samples(self) -> Samples:
        return Samples(DataFile(self.source, "", 512), self.batch(512, 5), None, {})

    def batches(self) -> list[Arrays]:
        return list(self.samples.batches(8))

    @cached_property
    def prepared(self) -> Path:
        prepare_graph(self.source, self.folder / "prepared.onnx", self.libraries)
        return self.folder / "prepared.onnx"

    @cached_property
    def smoothed(self) -> SmoothedGraph:
        seen = read_channels(self.prepared, self.batches(), libraries=self.libraries)
        ways = [one.way for one in smooth(self.prepared, self.folder / "smoothed.onnx", seen, symmetric=False).values()]
        return SmoothedGraph(self.folder / "smoothed.onnx", ways.count("folded"), ways.count("multiplied"))

    def statistics(self, of_smoothed: bool) -> Path:
        graph = self.smoothed.path if of_smoothed else self.prepared
        path = graph.with_suffix(".npz")
        calibrate(graph, self.samples, path, threads=1, max_memory_mb=200, libraries=self.libraries)
        return path

    def grams(self, candidate: Candidate, float_model: Path) -> dict[str, Gram]:
        tensors = gram_inputs(candidate, float_model)
        return collect_grams(float_model, tensors, self.batches, max_memory_mb=200, libraries=self.libraries)

    def ranking(self, candidate: Candidate) -> tuple[Sensitivity, ...]:
        def quantize(model: Path, kept: Any, path: Path) -> QdqReport:
            return quantize_int8(candidate, self.materials_for(candidate), model, path, keep_float=kept)

        everything = quantize(self.prepared, (), self.folder / "everything.onnx")
        parts = find_parts(onnx.load(self.prepared).graph, everything.quantized)

        return rank_parts(self.prepared, parts, quantize, self.samples, "y", self.settings)

    def parts(self, candidate: Candidate) -> tuple[Part, ...]:
        """The noisiest part as noisy as the output, and the others without noise: it alone stays in float at any level."""
        return tuple(
            Part(one.part, (Form("int8", float(not rank), 0.0), Form("float", 0.0, 1.0)))
            for rank, one in enumerate(self.ranking(candidate))
        )

    @property
    def settings(self) -> SessionSettings:
        return SessionSettings("CPUExecutionProvider", 1, libraries=self.libraries).without_spinning()

    def materials_for(self, candidate: Candidate) -> Materials:
        return replace(self.materials, pairs=find_target(candidate.target).pairs)

    @property
    def materials(self) -> Materials:
        return Materials(
            prepared=lambda: self.prepared,
            fused=lambda: self.prepared,
            smoothed=lambda: self.smoothed,
            statistics=self.statistics,
            ranking=self.ranking,
            batches=self.batches,
            grams=self.grams,
            processor=HERE,
            libraries=self.libraries,
            parts=self.parts,
        )


def run(model: Path, batch: Arrays, optimization: str = "all", libraries: Libraries = ()) -> NDArray[Any]:
    """What a session of ONNX Runtime gives, opened here."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimization == "basic":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    for library in libraries:
        options.register_custom_ops_library(str(library.path))
    outputs: NDArray[Any] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(["y"], batch)[
        0
    ]
    return outputs


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The root of the mean squared difference, in units of the first."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(np.sqrt(np.square(a - b).mean() / np.square(a).mean()))


GetOdd = Callable[[str], Odd]


def gathered(
    models: Mapping[str, Callable[[], onnx.ModelProto]], factory: pytest.TempPathFactory, libraries: Libraries = ()
) -> GetOdd:
    """Each of some sources once, gathered as step 1 does."""
    seen: dict[str, Odd] = {}

    def get(name: str) -> Odd:
        if name not in seen:
            folder = factory.mktemp(name)
            onnx.save(models[name](), folder / "registered.onnx")
            check_source_graph(folder / "registered.onnx", custom_operators=bool(libraries))
            gather_weights(folder / "registered.onnx", folder / "source.onnx", custom_operators=bool(libraries))
            kind = onnx.load(folder / "source.onnx").graph.input[0].type.tensor_type.elem_type
            seen[name] = Odd(
                folder / "source.onnx", folder, np.float16 if kind == HALF else np.float32, libraries=libraries
            )
        return seen[name]

    return get


def check_prepared(odd: Odd) -> None:
    """The prepared graph is the same function: rounding apart, and half precision rounds itself, by 2^-11 a value."""
    batch = odd.batch(32, 9)
    before, after = (run(model, batch, libraries=odd.libraries) for model in (odd.source, odd.prepared))
    assert before.dtype == after.dtype == odd.dtype
    assert distance(before, after) < (2e-3 if odd.dtype == np.float16 else 1e-6)


def check_pass(odd: Odd, candidate: str, folder: Path) -> Variant:
    """The variant runs low-precision kernels, is not the source, and computes nearly the same."""
    batch = odd.batch(32, 9)
    variant = make_variant(decode(candidate), odd.materials, folder, threads=1)
    before = run(odd.source, batch, libraries=odd.libraries)
    lost = distance(before, run(variant.path, batch, variant.session.optimization, odd.libraries))
    assert 1e-4 < lost < CANDIDATES[candidate]
    coverage = measure_coverage(variant.path, variant.session, batch)
    assert sum(coverage.macs_by_kernel.values()) >= 32 * 64 * 128
    assert variant.proof == "simulated" or coverage.share > 0
    return variant


def check_viewed(odd: Odd) -> None:
    """What the checks of calibration data look at: finite ranges of what the layers read, a vector a sample."""
    other = Samples(DataFile(odd.source, "", 64), odd.batch(64, 6), None, {})
    with open_tapped(odd.source, odd.settings, lambda graph: find_taps(graph, "y", None)) as watch:
        view = view_samples(watch, odd.samples, other, most=32, fixed_batch=None, seed=0)
    assert view is not None and np.isfinite(view.reference.vectors).all()
    assert len(view.clipping) >= 1 and all(np.isfinite([one.low, one.high]).all() for one in view.clipping)

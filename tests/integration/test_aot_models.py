"""Every form for TensorRT of three real models: built ahead of time for two GPUs, and read layer by layer; numbers simulated.

Nothing here ran on a GPU. What it proves: the file parses and builds, and the layers that multiply do so in the precision of
the candidate, by share of multiply-accumulates. What the numbers are worth is told by ONNX Runtime, which computes the same
Q/DQ file in float.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tensorrt_rules import check_form, draw

from tasks.engines.tensorrt.build import available, build_engine, profile_of
from tasks.engines.tensorrt.costs import EngineCosts
from tasks.engines.tensorrt.coverage import coverage_of_layers
from tasks.engines.tensorrt.forms import make_form
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.slow_parts import find_slow_parts
from tasks.runtimes.ort import describe_inputs, open_session, run_batches
from validators.job.candidate_name import decode
from validators.job.job_engines import Engines
from validators.job.job_measurement import OperatingPoint
from validators.records.engines import BuildSettings, ShapeRange
from validators.records.measurements import Coverage
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Arrays, Samples
from validators.targets import facts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("tensorrt_rtx" not in available(), reason="the extra tensorrt-aot is not installed"),
]
BASIC = SessionSettings("CPUExecutionProvider", 2, "basic")
# ONNX Runtime 1.31.1 would store the float16 biases of convolutions as INT32 with scales that float16 rounds to zero.
EXCEPT = ("WeightBiasQuantization",)
# Ada and Blackwell, of consumers: with FP8 kernels both.
GPUS = ("8.9", "12.0")
# SmolLM2's first layers, embeddings and head for its first tokens, on tokens drawn at random: all 30 layers take minutes to
# export, and repeat themselves.
LAYERS, VOCABULARY = 3, 8192


@dataclass(frozen=True)
class Material:
    """A prepared model with its statistics, a request, and what float makes of it."""

    name: str
    folder: Path
    batch: Arrays
    output: str
    exact: NDArray[Any]

    def form(self, name: str) -> Path:
        """The candidate's file; the one before is gone."""
        path = self.folder / "form.onnx"
        make_form(decode(name), self.folder / "prepared.onnx", self.folder / "s.npz", path)
        return path


@pytest.fixture(scope="module", params=["text", "image", "language"])
def material(request: pytest.FixtureRequest) -> Iterator[Material]:
    """One model at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, calibration, batch, output = {"text": demo, "image": demo, "language": language}[request.param](
            request.param, folder
        )
        prepare_graph(model, folder / "prepared.onnx")
        calibrate(folder / "prepared.onnx", calibration, folder / "s.npz", threads=2, max_memory_mb=1000)
        exact = outputs(folder / "prepared.onnx", batch, output)
        yield Material(request.param, folder, batch, output, exact)


def demo(name: str, folder: Path) -> tuple[Path, Samples, Arrays, str]:
    from models.pools import image_pool, text_pool

    pool = {"image": image_pool, "text": text_pool}[name](folder)
    model = onnx.load(pool.model)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("head.weight"):  # zeros in the pools, which any quantization leaves exact
            tensor.CopyFrom(numpy_helper.from_array(draw(*tensor.dims) / 20, tensor.name))
    onnx.save(model, pool.model)
    rows = np.random.default_rng(0).permutation(len(pool.labels))
    return pool.model, pool.take(rows[:32]), pool.take(rows[32:40]).inputs, pool.output


def language(name: str, folder: Path) -> tuple[Path, Samples, Arrays, str]:
    from models.llama import exported, fold_gains, load_model
    from models.pools import STATE

    from tasks.demo.language import read_gguf

    pytest.importorskip("gguf", reason="the extra `genai`")
    metadata, tensors = read_gguf(STATE)
    cut = {"llama.block_count": LAYERS, "llama.vocab_size": VOCABULARY}
    embedding = {"token_embd.weight": tensors["token_embd.weight"][:VOCABULARY]}
    model = load_model({**metadata, **cut}, {**tensors, **embedding})
    fold_gains(model)
    onnx.save(exported(model), folder / "language.onnx")
    windows = np.random.default_rng(0).integers(0, VOCABULARY, (12, 32))
    calibration = Samples(DataFile(Path("drawn.npz"), "0" * 64, 8), {"input_ids": windows[:8]}, None)
    return folder / "language.onnx", calibration, {"input_ids": windows[8:]}, "logits"


def outputs(path: Path, batch: Arrays, output: str) -> NDArray[Any]:
    with open_session(path, BASIC, without=EXCEPT) as session:
        return run_batches(session, [batch], output)


def sqnr_db(exact: NDArray[Any], found: NDArray[Any]) -> float:
    exact = exact.astype(np.float64)
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


def profile(form: Path, batch: Arrays) -> dict[str, ShapeRange]:
    """From one sample to 32 at once."""
    with open_session(form, BASIC, without=EXCEPT) as session:
        inputs = describe_inputs(session)
    shapes = {name: [array.shape] for name, array in batch.items()}
    point = OperatingPoint(len(next(iter(batch.values()))), {}, 1)
    return profile_of(inputs, Engines(), [point], shapes, accuracy_batch=32)


def coverages(form: Path, batch: Arrays, folder: Path) -> list[Coverage]:
    """Of the engines for each GPU."""
    shapes = profile(form, batch)
    found = []
    for gpu in GPUS:
        build = BuildSettings(shapes, compute_capabilities=(gpu,))
        engine = build_engine(form, build, folder / f"engine {gpu}", gpu=None, timing_caches=None)
        found.append(coverage_of_layers(form, engine.layers, batch))
        engine.path.unlink()
    return found


# Share of multiply-accumulates in low precision, at least and at most; all others are in float16.
# Of the text model 2 % are those of attention, whose factors both are activations: they are float16 in one fused layer.
# INT4 has a form for products with weights alone, whose channels its blocks divide: of the CNN that is the head, and of
# SmolLM2, 576 channels wide, blocks of 128 leave all but the products of 1536 channels.
QUANTIZED = (0.97, 1.0)
SHARES = {
    "text": {"int8": QUANTIZED, "fp8": QUANTIZED, "int4": QUANTIZED},
    "image": {"int8": (1.0, 1.0), "fp8": (1.0, 1.0), "int4": (0.0001, 0.0003)},
    "language": {"int8": QUANTIZED, "fp8": QUANTIZED, "int4": (0.1, 0.3), "int4-g64-rtn@tensorrt": QUANTIZED},
}
# Signal to noise in dB that the output keeps, in the order of the default candidates: two to five below what was found.
# Convolutions of EfficientNet-Lite0 lose most, in FP8 for its three bits, and with ranges that cut off.
LEAST_DB = {"text": (60, 14, 11, 23, 11, 11), "image": (45, 14, 1, -3, 20, 20), "language": (65, 13, 12, 23, 24, 13)}


@pytest.mark.parametrize("name", facts_of("tensorrt").default_candidates)
def test_a_form_is_built_and_multiplies_in_its_precision(material: Material, tmp_path: Path, name: str) -> None:
    candidate = decode(name)
    form = material.form(name)
    check_form(form, candidate.precision)
    shares = SHARES[material.name]
    low, high = shares.get(name, shares.get(candidate.precision, (0.0, 0.0)))
    for found in coverages(form, material.batch, tmp_path):
        assert low <= found.share <= high
        assert found.unknown == 0 and found.float_nodes == () and found.half_share == pytest.approx(1)
    least_db = dict(zip(facts_of("tensorrt").default_candidates, LEAST_DB[material.name], strict=True))[name]
    assert sqnr_db(material.exact, outputs(form, material.batch, material.output)) > least_db


def test_what_the_defaults_leave_out(material: Material, tmp_path: Path) -> None:
    """Of attention in INT8 nothing tells what the fused layer computes its second product in: it counts as unknown."""
    if material.name == "text":
        found = coverages(material.form("int8-static-minmax-pc-all@tensorrt"), material.batch, tmp_path)
        assert all(coverage.unknown > 0.02 and coverage.share + coverage.unknown == 1 for coverage in found)


# Products whose pairs `-fast` removes, and layers that quantization adds before and after, as docs/low-precision.md has them.
REMOVED = {
    ("text", "8.9"): (0, 13, 13),
    ("image", "8.9"): (0, 48, 48),
    ("image", "7.5"): (49, 65, 0),
    ("language", "8.9"): (0, 0, 0),
}


def test_pairs_of_products_in_float_are_all_that_is_removed(material: Material, tmp_path: Path) -> None:
    """Of TensorRT-RTX 1.7.1: on 7.5 convolutions with pairs run in float16."""
    candidate = decode("int8-static-minmax-pc@tensorrt")
    in_float = tmp_path / "float16.onnx"

    def quantize(_: Path, keep_float: Collection[str], path: Path) -> None:
        prepared, statistics = material.folder / "prepared.onnx", material.folder / "s.npz"
        make_form(candidate, prepared, statistics, path, keep_float=keep_float)

    make_form(
        replace(candidate, precision="fp16"), material.folder / "prepared.onnx", material.folder / "s.npz", in_float
    )
    shapes = profile(in_float, material.batch)
    for (name, gpu), expected in REMOVED.items():
        if name == material.name:
            build = BuildSettings(shapes, compute_capabilities=(gpu,))
            found = find_slow_parts(in_float, quantize, EngineCosts([build], None, material.batch, in_float))
            # Before, each product with useless pairs counts beside the added layers.
            assert (len(found.nodes), found.before - len(found.nodes), found.after) == expected

"""From source to variant: the prepared and the fused graph compute what the source does; every precision has its pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny, statistics_of, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import AMX, BITS_HERE, RUN_HERE

from tasks.engines.ort.engine import NOT_FUSED
from tasks.engines.variants import make_variant, refuse_other_targets, session_settings
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.graph.edits import model_bytes
from tasks.ptq.graph.prepare import fuse_graph, prepare_graph
from tasks.ptq.search import Form, Part
from tasks.ptq.sensitivity import SensitivePart, Sensitivity
from tasks.ptq.weight_only.sites import tensors_to_collect
from tasks.runtimes.ort import open_session
from validators.digests import digest_file
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.processors import Processor
from validators.records.run import LEFT_OUT, ROUNDS_FLOATS, SessionSettings
from validators.samples.datasets import Arrays
from validators.targets import facts_of

FLOAT = TensorProto.FLOAT


def run(model: Path, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first output, computed without any optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return outputs


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def save_block(path: Path) -> Path:
    """A block as transformers have it, of plain operators: projection, GELU by Erf, projection, sum, layer norm.

    Most nodes have no name, and one weight is computed from constants.
    """
    constants = {
        "up_half": draw(8, 16),
        "two": np.float32(2),
        "down": draw(16, 8, seed=1),
        "root": np.float32(math.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "epsilon": np.float32(1e-5),
        "gamma": np.ones(8, np.float32) * 1.5,
        "beta": np.ones(8, np.float32) * 0.1,
    }
    node = helper.make_node
    nodes = [
        node("Mul", ["up_half", "two"], ["up"], name="weight"),
        node("MatMul", ["x", "up"], ["p"], name="up_product"),
        node("Div", ["p", "root"], ["e0"]),
        node("Erf", ["e0"], ["e1"]),
        node("Add", ["e1", "one"], ["e2"]),
        node("Mul", ["p", "e2"], ["e3"]),
        node("Mul", ["e3", "half"], ["g"]),
        node("MatMul", ["g", "down"], ["q"]),
        node("Add", ["q", "x"], ["r"]),
        node("ReduceMean", ["r"], ["m"], axes=[-1], keepdims=1),
        node("Sub", ["r", "m"], ["c"]),
        node("Pow", ["c", "two"], ["c2"]),
        node("ReduceMean", ["c2"], ["v"], axes=[-1], keepdims=1),
        node("Add", ["v", "epsilon"], ["ve"]),
        node("Sqrt", ["ve"], ["s"]),
        node("Div", ["c", "s"], ["n"]),
        node("Mul", ["n", "gamma"], ["ng"]),
        node("Add", ["ng", "beta"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 5, 8])],
        [helper.make_tensor_value_info("y", FLOAT, ["batch", 5, 8])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_prepared_graph_is_folded_named_and_the_same_function(tmp_path: Path) -> None:
    """Constants are computed, shapes known, every node has a name of its own; the outputs stay."""
    source = save_block(tmp_path / "source.onnx")
    before = source.read_bytes()
    changes = prepare_graph(source, tmp_path / "prepared.onnx")
    model = onnx.load(tmp_path / "prepared.onnx")
    names = [node.name for node in model.graph.node]
    assert all(names) and len(set(names)) == len(names)
    assert changes["nodes folded"] == 18 - len(names) >= 1
    assert "up_half" not in {item.name for item in model.graph.initializer}
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    projection = next(node for node in model.graph.node if node.op_type == "MatMul")
    np.testing.assert_array_equal(weights[projection.input[1]], draw(8, 16) * 2)
    assert {value.name for value in model.graph.value_info} >= {projection.output[0]}
    x = draw(3, 5, 8, seed=9)
    np.testing.assert_allclose(run(tmp_path / "prepared.onnx", x), run(source, x), rtol=1e-5, atol=1e-5)
    assert source.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"source.onnx", "prepared.onnx"}


def test_preparing_twice_gives_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    """What is made from the graph is found again by its digest."""
    for name in ("one", "two"):
        prepare_graph(tiny.model, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    x = np.load(tiny.evaluation)["x"][:50]
    np.testing.assert_allclose(run(tmp_path / "one", x), run(tiny.model, x), rtol=1e-5, atol=1e-4)


def test_a_fused_graph_has_the_fusions_and_is_the_same_function(tmp_path: Path) -> None:
    """GELU and layer norm of ten nodes become two operators; the count says so."""
    source = save_block(tmp_path / "source.onnx")
    made = fuse_graph(source, tmp_path / "fused.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node]
    assert made and all(kinds.count(name) == count for name, count in made.items())
    assert any("Gelu" in name for name in made) and any("LayerNormalization" in name for name in made)
    assert "Erf" not in kinds and "Sqrt" not in kinds
    x = draw(3, 5, 8, seed=9)
    np.testing.assert_allclose(run(tmp_path / "fused.onnx", x), run(source, x), rtol=1e-4, atol=1e-4)


def test_the_sum_before_a_layer_norm_runs_by_itself(tmp_path: Path) -> None:
    """The runtime would fuse the two into a slow kernel; with the variant's settings it does not, in either graph."""
    source = save_block(tmp_path / "source.onnx")
    fuse_graph(source, tmp_path / "fused.onnx")

    def kinds(model: Path, settings: SessionSettings) -> set[str]:
        with open_session(model, settings, optimized_model=tmp_path / "optimized.onnx"):
            pass
        return {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}

    settings = session_settings(decode("fp32-fused@ort-cpu"), 1)
    for model in (source, tmp_path / "fused.onnx"):
        assert "SkipLayerNormalization" in kinds(model, replace(settings, entries={}))
        assert kinds(model, settings) >= {"Add", "LayerNormalization"}
        assert "SkipLayerNormalization" not in kinds(model, settings)


def test_a_graph_whose_patterns_are_fused_already_is_refused(tmp_path: Path) -> None:
    """A LayerNormalization that was there before is nothing that was made."""
    fuse_graph(save_block(tmp_path / "source.onnx"), tmp_path / "fused.onnx")
    with pytest.raises(CandidateRefused, match="no attention, layer normalization or GELU"):
        fuse_graph(tmp_path / "fused.onnx", tmp_path / "again.onnx")


def save_mean(
    path: Path,
    rank: int,
    axes: list[int],
    *,
    keepdims: int = 1,
    opset: int = 18,
    behind: str = "Conv",
    norm: bool = False,
) -> Path:
    """A mean over axes of what an operator makes of `x`, whose batch is dynamic; the axes are an attribute before opset 18.

    With `norm` the mean is subtracted from its own input.
    """
    shape = ["batch", 3, 4, 5, 2][:rank]
    held = {"Conv": {"w": draw(3, 3, *[1] * (rank - 2))}, "MatMul": {"w": draw(4, 4)}}.get(behind, {})
    end = "m" if norm else "y"
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]) if behind == "Relu" else helper.make_node(behind, ["x", "w"], ["a"]),
        helper.make_node("LeakyRelu", ["a"], ["b"]),
        helper.make_node("ReduceMean", ["b", "axes"], [end], keepdims=keepdims)
        if opset >= 18
        else helper.make_node("ReduceMean", ["b"], [end], keepdims=keepdims, axes=axes),
        *([helper.make_node("Sub", ["b", "m"], ["y"])] if norm else []),
    ]
    held |= {"axes": np.array(axes, np.int64)} if opset >= 18 else {}
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("rank", "axes", "changes", "made"),
    [
        (4, [2, 3], {}, 1),
        (4, [-1, -2], {"opset": 13}, 1),
        (3, [2], {}, 1),
        (5, [2, 3, 4], {}, 1),
        (4, [2, 3], {"keepdims": 0}, 0),
        (4, [3], {}, 0),
        (4, [1, 2], {}, 0),
        (3, [1], {"opset": 13}, 0),
        (2, [], {"behind": "Relu"}, 0),
        (3, [-1], {"behind": "MatMul"}, 0),
        (3, [-1], {"behind": "Relu"}, 0),
        (4, [2, 3], {"behind": "Relu"}, 0),
        (3, [-1], {"norm": True}, 0),
        (4, [2, 3], {"norm": True}, 0),
    ],
)
def test_a_mean_over_positions_behind_a_conv_is_a_pooling(
    tmp_path: Path, rank: int, axes: list[int], changes: dict[str, Any], made: int
) -> None:
    """No other mean is: not one of a norm, nor one over the features of tokens. The values stay."""
    source = save_mean(tmp_path / "source.onnx", rank, axes, **changes)
    assert prepare_graph(source, tmp_path / "prepared.onnx")["means made GlobalAveragePool"] == made
    kinds = [node.op_type for node in onnx.load(tmp_path / "prepared.onnx").graph.node]
    assert ("GlobalAveragePool" in kinds, "ReduceMean" in kinds) == (bool(made), not made)
    x = draw(*[2, 3, 4, 5, 2][:rank])
    np.testing.assert_allclose(run(tmp_path / "prepared.onnx", x), run(source, x), rtol=1e-6, atol=1e-6)


def test_a_model_without_such_patterns_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Its fused form would be the baseline under another name."""
    with pytest.raises(CandidateRefused, match="no attention, layer normalization or GELU") as caught:
        fuse_graph(tiny.model, tmp_path / "fused.onnx")
    assert caught.value.kind == "unsupported" and not (tmp_path / "fused.onnx").exists()


@dataclass
class Workshop:
    """Materials of the tiny model, which count how often each is asked for."""

    tiny: Tiny
    folder: Path
    processor: Processor
    asked: list[str] = field(default_factory=list)

    def prepared(self) -> Path:
        self.asked.append("prepared")
        return self.folder / "prepared.onnx"

    def fused(self) -> Path:
        self.asked.append("fused")
        raise CandidateRefused(kind="unsupported", found="no pattern", expected="one", fix="none")

    def smoothed(self) -> SmoothedGraph:
        self.asked.append("smoothed")
        return SmoothedGraph(self.folder / "prepared.onnx", 0, 0)

    def batches(self) -> list[Arrays]:
        self.asked.append("batches")
        return [{"x": np.load(self.tiny.calibration)["x"][:8]}]

    def grams(self, candidate: Candidate, float_model: Path) -> dict[str, Gram]:
        self.asked.append("grams")
        tensors = tensors_to_collect(float_model, block_size=candidate.block_size or 32)
        x = np.load(self.tiny.calibration)["x"]
        return collect_grams(float_model, tensors, lambda: [{"x": x}], max_memory_mb=500)

    def statistics(self, of_smoothed: bool) -> Path:
        self.asked.append("statistics")
        return self.folder / "prepared.statistics.npz"

    def ranking(self, candidate: Candidate) -> tuple[Sensitivity, ...]:
        raise AssertionError(f"{candidate.name} needs no ranking")

    def parts(self, candidate: Candidate) -> tuple[Part, ...]:
        self.asked.append(candidate.name)
        return tuple(
            Part(SensitivePart(name, (name,)), (Form("int8", noise, 0.0), Form("float", 0.0, 1.0)))
            for name, noise in (("second_matmul", 0.1), ("first_matmul", 0.001))
        )

    @property
    def materials(self) -> Materials:
        return Materials(
            self.prepared,
            self.fused,
            self.smoothed,
            self.statistics,
            self.ranking,
            self.batches,
            self.grams,
            self.processor,
            parts=self.parts,
        )


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared tiny model and its statistics."""
    folder = tmp_path_factory.mktemp("materials")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics_of(folder / "prepared.onnx", tiny.calibration)
    return folder


MADE = {
    "int8-static-minmax-pc@ort-cpu": (["prepared", "statistics"], "all", {"nodes in INT8": 2}),
    "int8-static-entropy-pc@ort-cpu": (["prepared", "statistics"], "all", {"nodes in INT8": 2}),
    "int8-static-percentile-pc-all@ort-cpu": (["prepared", "statistics"], "all", {"nodes in INT8": 2}),
    "int8-static-minmax-pc-20db@ort-cpu": (
        ["int8-static-minmax-pc@ort-cpu", "prepared", "statistics"],
        "all",
        {"nodes in INT8": 1, "kept in float: second_matmul": 1},
    ),
    "int8-static-mse-pc-smooth@ort-cpu": (["smoothed", "statistics", "smoothed"], "all", {"nodes in INT8": 2}),
    "int8-static-mse-pc-bc@ort-cpu": (
        ["prepared", "statistics", "batches"],
        "all",
        {"nodes in INT8": 2, "biases corrected": 1},
    ),
    "int8-dynamic-pc@ort-cpu": (["prepared"], "all", {"nodes in INT8": 2}),
    "int8-dynamic-pc-smooth-20db@ort-cpu": (
        ["int8-dynamic-pc-smooth@ort-cpu", "smoothed", "smoothed"],
        "all",
        {"nodes in INT8": 1, "kept in float: second_matmul": 1},
    ),
    "int4-g32-rtn@ort-cpu": (["prepared"], "all", {"MatMul in INT4": 2}),
    "int4-g64-gptq-asym@ort-cpu": (["prepared", "grams"], "all", {"MatMul in INT4": 2}),
    "int4-g32-awq@ort-cpu": (["prepared", "grams"], "all", {"MatMul in INT4": 2}),
    "int4-g32-hqq-asym@ort-cpu": (["prepared"], "all", {"MatMul in INT4": 2}),
    "fp8-amax-pc@ort-cpu": (["prepared", "statistics"], "basic", {"MatMul, Gemm and Conv in FP8 E4M3": 2}),
}


@pytest.mark.parametrize(
    ("name", "processor", "bits"),
    [
        pytest.param(name, processor, bits, id=f"{name}-{bits}")
        for name in MADE
        for processor, bits in zip(RUN_HERE, BITS_HERE, strict=True)
        # Nothing else has weights that depend on the processor.
        if name.startswith("int8") or bits == BITS_HERE[-1]
    ],
)
def test_a_candidate_becomes_the_variant_of_its_recipe(
    tiny: Tiny, tmp_path: Path, folder: Path, name: str, processor: Processor, bits: int
) -> None:
    """From the right materials, by the right pass, with the settings it must be loaded with, described as it is."""
    workshop = Workshop(tiny, folder, processor)
    variant = make_variant(decode(name), workshop.materials, tmp_path, threads=2)
    asked, optimization, changes = MADE[name]
    assert workshop.asked == asked
    assert variant.changes.items() >= changes.items()
    assert variant.candidate == name and variant.path == tmp_path / "model.onnx"
    assert (variant.digest, variant.size_bytes) == (digest_file(variant.path), model_bytes(variant.path))
    entries = {LEFT_OUT: ROUNDS_FLOATS if variant.proof == "simulated" else NOT_FUSED}
    assert variant.session == SessionSettings("CPUExecutionProvider", 2, optimization, entries)
    assert (variant.proof == "simulated") == name.startswith("fp8")
    narrow = name.startswith("int8") and bits == 7
    assert bool(variant.notes) == (variant.proof == "simulated" or narrow)
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(variant.path).graph.initializer]
    largest = max((int(np.abs(array.astype(int)).max()) for array in stored if array.dtype == np.int8), default=0)
    assert largest == ({7: 64, 8: 127}[bits] if name.startswith("int8") else 0)
    assert any("7 bits" in note for note in variant.notes) == narrow
    # It still is the tiny model: wrong on a tenth at most of what the float model gets right.
    x, label = (np.load(tiny.evaluation)[key][:300] for key in ("x", "label"))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    outputs = ort.InferenceSession(variant.path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    assert (outputs.argmax(axis=1) == label).mean() > 0.9 * (run(tiny.model, x).argmax(axis=1) == label).mean()


def test_every_default_candidate_of_the_cpu_is_made_or_refused(tiny: Tiny, tmp_path: Path, folder: Path) -> None:
    """None fails in another way, and those that need fusions say so on a model that has none."""
    refused = {}
    for index, name in enumerate(facts_of("ort-cpu").default_candidates):
        (tmp_path / str(index)).mkdir()
        try:
            variant = make_variant(
                decode(name), Workshop(tiny, folder, AMX).materials, tmp_path / str(index), threads=1
            )
        except CandidateRefused as error:
            refused[name] = error.kind
        else:
            assert variant.candidate == name
    assert refused == {"fp32-fused@ort-cpu": "unsupported", "int8-dynamic-pc+fused@ort-cpu": "unsupported"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("int8-dynamic-pc@tensorrt", "at run time"),
        ("int8-static-minmax-pc@ort-cuda", "INT8 for ort-cuda"),
        ("fp16@ort-cpu", "fp16 on ort-cpu"),
        ("int8-static-minmax-pc+fused@ort-cpu", "fused"),
        ("int8-dynamic-pc-smooth+fused@ort-cpu", "SmoothQuant on the fused graph"),
    ],
)
def test_unsupported_requests_are_refused_before_making_anything(
    tiny: Tiny, tmp_path: Path, folder: Path, name: str, words: str
) -> None:
    """A refusal of kind unsupported, with the reason, without any material asked for."""
    workshop = Workshop(tiny, folder, AMX)
    with pytest.raises(CandidateRefused) as caught:
        make_variant(decode(name), workshop.materials, tmp_path, threads=1)
    error = caught.value
    assert error.kind == "unsupported" and words in f"{error.found} {error.expected} {error.fix}"
    assert workshop.asked == [] and not list(tmp_path.iterdir())
    refuse_other_targets(decode("int8-dynamic-pc@ort-cpu"), AMX)


def test_a_graph_that_cannot_be_processed_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Shapes that contradict each other: a refusal of kind invalid, and no file."""
    broken = tiny_model(*tiny.weights)
    broken.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((63, 128), np.float32), "first"))
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(CandidateRefused) as caught:
        prepare_graph(tmp_path / "broken.onnx", tmp_path / "prepared.onnx")
    assert caught.value.kind == "invalid" and not (tmp_path / "prepared.onnx").exists()

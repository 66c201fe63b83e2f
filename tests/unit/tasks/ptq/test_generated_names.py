"""Names that passes give to what they add: a source that has them already computes the same after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from odd import FLOAT, Odd, draw, info, layers, model_of, node, run, weights
from onnx import helper, numpy_helper

from tasks.engines.variants import make_variant
from tasks.ptq.calibrate.watched import open_watched
from tasks.ptq.graph.edits import Names
from validators.job.candidate_name import decode

PLAIN = (
    "int8-static-minmax-pc@ort-cpu",
    "int8-static-minmax-pc-all@ort-cpu",
    "int8-static-minmax-pc-smooth@ort-cpu",
    "int8-static-minmax-pc-bc@ort-cpu",
    "int8-static-minmax-pc@openvino",
    "int8-static-minmax-pc@tensorrt",
    "int8-dynamic-pc@ort-cpu",
    "int4-g32-rtn@ort-cpu",
    "int4-g32-awq@ort-cpu",
    "int4-g32-rtn@ort-cuda",
    "int4-g64-rtn@tensorrt",
    "fp8-amax-pc@ort-cpu",
    "fp16@tensorrt",
)
TIED = ("int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu")


def plain() -> onnx.ModelProto:
    """Loud channels that cannot be folded away, a Gemm, a product whose result is an output as well."""
    constants = weights() | {"loud": np.geomspace(0.05, 20, 64).astype(np.float32)}
    constants["w1"] = np.ascontiguousarray(constants["w1"].T)
    nodes = [
        node("Mul", ["x", "loud"], ["l"], name="loudness"),
        node("Gemm", ["l", "w1", "b1"], ["s"], name="first", transB=1),
        node("Relu", ["s"], ["h"], name="relu"),
        node("MatMul", ["h", "w2"], ["m"], name="second"),
        node("Erf", ["l"], ["e"], name="erf"),
        node("Add", ["m", "e"], ["y"], name="sum"),
    ]
    model = model_of(nodes, constants)
    model.graph.output.append(info("m", FLOAT, ["batch", 64]))
    return model


def tied() -> onnx.ModelProto:
    """A table that rows are looked up in and that, transposed, is the weight of the head; two layers between."""
    nodes = [
        node("ArgMax", ["x"], ["ids"], name="ids of x", axis=1, keepdims=0),
        node("Gather", ["table", "ids"], ["rows"], name="look up"),
        *layers(node("Relu", ["s"], ["h"], name="relu")),
        node("Transpose", ["table"], ["turned"], name="turn", perm=[1, 0]),
        node("MatMul", ["z", "turned"], ["y"], name="head"),
    ]
    nodes[2].input[0], nodes[5].output[0] = "rows", "z"
    return model_of(nodes, weights() | {"table": draw(64, 64, seed=6)})


def names_in(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for one in graph.node:
        yield from (one.name, *one.output)


def with_tensors(model: onnx.ModelProto, names: list[str]) -> None:
    """A chain of operators, each of which has such a name, as has its output."""
    inputs = ["x", *names[:-1]]
    chain = [node("Tanh", [before], [name], name=name) for before, name in zip(inputs, names, strict=True)]
    model.graph.node.extend([*chain, node("Neg", [names[-1]], ["side"], name="side of tensors")])


def with_constants(model: onnx.ModelProto, names: list[str]) -> None:
    ends = [*(f"part {index}" for index in range(len(names) - 1)), "side"]
    for index, (before, name, end) in enumerate(zip(["x", *ends[:-1]], names, ends, strict=True)):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(0.01 * (index + 1)), name))
        model.graph.node.append(node("Mul", [before, name], [end], name=f"side {index}"))


def with_body(model: onnx.ModelProto, names: list[str]) -> None:
    """The chain inside of an If, where names of the graph around it must not be taken again."""
    inputs = ["x", *names[:-1]]
    chain = [node("Tanh", [before], [name], name=name) for before, name in zip(inputs, names, strict=True)]
    bodies = {
        "then_branch": helper.make_graph(chain, "then", [], [info(names[-1], FLOAT, ["batch", 64])]),
        "else_branch": helper.make_graph(
            [node("Neg", ["x"], ["other"])], "else", [], [info("other", FLOAT, ["batch", 64])]
        ),
    }
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nothing"))
    model.graph.node.extend(
        [
            node("ReduceMax", ["x"], ["most"], name="side most", keepdims=0),
            node("Greater", ["most", "nothing"], ["above"], name="side above"),
            node("If", ["above"], ["side"], name="side if", **bodies),
        ]
    )


@cache
def clean(folder: Path, model: Callable[[], onnx.ModelProto], candidate: str) -> tuple[NDArray[np.float32], list[str]]:
    """What a variant of the model as it is computes, and the names that the pass gave."""
    onnx.save(model(), folder / "source.onnx")
    odd = Odd(folder / "source.onnx", folder)
    variant = make_variant(decode(candidate), odd.materials, folder, threads=1)
    before = set(names_in(onnx.load(odd.prepared).graph))
    added = [name for name in dict.fromkeys(names_in(onnx.load(variant.path).graph)) if name not in before]
    return run(variant.path, odd.batch(32, 9), "basic"), added


@pytest.mark.parametrize("clash", [with_tensors, with_constants, with_body])
@pytest.mark.parametrize(("model", "candidate"), [*((plain, name) for name in PLAIN), *((tied, name) for name in TIED)])
def test_a_source_that_has_generated_names_computes_the_same(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    model: Callable[[], onnx.ModelProto],
    candidate: str,
    clash: Callable[[onnx.ModelProto, list[str]], None],
) -> None:
    expected, added = clean(tmp_path_factory.getbasetemp(), model, candidate)
    assert added
    proto = model()
    clash(proto, added)
    proto.graph.output.append(info("side", FLOAT, ["batch", 64]))
    onnx.save(proto, tmp_path / "source.onnx")
    odd = Odd(tmp_path / "source.onnx", tmp_path)
    variant = make_variant(decode(candidate), odd.materials, tmp_path, threads=1)
    found = set(names_in(onnx.load(odd.prepared).graph))
    assert clash is with_body or len(found & set(added)) >= 0.9 * len(added)  # they are still there for the pass
    np.testing.assert_allclose(run(variant.path, odd.batch(32, 9), "basic"), expected, rtol=1e-4, atol=1e-4)


def test_shapes_are_watched_whatever_the_tensors_are_called(tmp_path: Path) -> None:
    proto = plain()
    with_constants(proto, ["l/shape", "h/shape"])
    onnx.save(proto, tmp_path / "source.onnx")
    odd = Odd(tmp_path / "source.onnx", tmp_path)
    with open_watched(odd.source, ["l", "h"], odd.settings, shapes=True) as watched:
        found = watched.run(odd.batch(3, 9))
    assert [shape.tolist() for shape in found.values()] == [[3, 64], [3, 128]]


def test_a_new_name_is_one_that_no_body_has() -> None:
    proto = plain()
    with_body(proto, ["inner", "outer"])
    names = Names(proto.graph)
    assert [names.new(name) for name in ("inner", "inner", "w1", "first", "y", "free")] == [
        "inner_",
        "inner__",
        "w1_",
        "first_",
        "y_",
        "free",
    ]

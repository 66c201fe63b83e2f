"""Candidates with equal `kernels` have graphs that differ in values alone, which a race relies on."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import onnx
import pytest
from odd import GetOdd, draw, gathered, layers, model_of, node, weights
from onnx import numpy_helper

from tasks.engines.variants import make_variant
from validators.job.candidate_name import Candidate, decode
from validators.job.wide_candidates import wide_candidates


def products() -> onnx.ModelProto:
    return model_of(layers(node("Relu", ["s"], ["h"])), weights())


def convolutions() -> onnx.ModelProto:
    """Two convolutions with a bias, one of them depthwise, behind the products."""
    nodes = layers(
        node("Reshape", ["s", "as_image"], ["image"]),
        node("Conv", ["image", "filters", "bias"], ["f"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["f"], ["g"]),
        node("Conv", ["g", "depth", "bias"], ["d"], name="depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Reshape", ["d", "as_rows"], ["h"]),
    )
    constants: dict[str, Any] = {
        "as_image": [-1, 8, 4, 4],
        "as_rows": [-1, 128],
        "filters": draw(8, 8, 3, 3, seed=5) / 8,
        "depth": draw(8, 1, 3, 3, seed=6) / 3,
        "bias": draw(8, seed=7),
    }
    return model_of(nodes, weights() | constants)


MODELS = {made.__name__: made for made in (products, convolutions)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GetOdd:
    return gathered(MODELS, tmp_path_factory)


def kinds() -> list[list[str]]:
    """The names of the wide list by their kernels, where there are several, in the order of their names."""

    def kernels(name: str) -> str:
        return repr(decode(name).kernels)

    together = [list(names) for _, names in groupby(sorted(wide_candidates("ort-cpu"), key=kernels), kernels)]
    return [names for names in together if len(names) > 1 and not decode(names[0]).is_simulated]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("names", kinds(), ids=lambda names: names[0])
def test_equal_kernels_differ_in_values_alone(made: GetOdd, name: str, names: list[str], tmp_path: Path) -> None:
    models = {}
    for one in names:
        folder = tmp_path / one
        folder.mkdir()
        models[one] = onnx.load(make_variant(decode(one), made(name).materials, folder, threads=1).path)
    first, *others = models.values()
    assert all(without_values(other) == without_values(first) for other in others)


def test_each_way_to_choose_values_is_compared() -> None:
    """Or the test above proves nothing of it."""
    words = {word for names in kinds() for name in names for word in name.partition("@")[0].split("-")}
    assert words >= {"minmax", "mse", "entropy", "percentile", "p99.9", "bc", "smooth", "all", "rtn", "gptq", "learned"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int8-static-mse-pc", "int8-static-mse-pc-all"),
        ("int8-static-mse-pc", "int8-static-mse-pc-smooth"),
        ("int8-static-mse-pc", "int8-static-mse-pc-40db"),
        ("int8-dynamic-pc", "int8-dynamic-pc+fused"),
        ("int4-g32-rtn", "int4-g64-rtn"),
        ("int4-g32-rtn", "int4-g32-awq"),
        ("int4-g32-rtn", "int4-g32-rtn-asym"),
        ("int4-g32-rtn-asym", "int4-g32-hqq-asym"),
    ],
)
def test_other_kernels_are_not_taken_for_equal(one: str, other: str) -> None:
    kernels: list[Candidate] = [decode(f"{name}@ort-cpu").kernels for name in (one, other)]
    assert kernels[0] != kernels[1]


def without_values(model: onnx.ModelProto) -> tuple[Any, ...]:
    """Nodes with their wiring and attributes, and constants by name with their types, their shapes, and whether all are 0."""
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    described = {name: (array.dtype, array.shape, not array.any()) for name, array in constants.items()}
    wired = [
        (one.op_type, list(one.input), list(one.output), sorted(map(repr, one.attribute))) for one in model.graph.node
    ]
    return wired, described

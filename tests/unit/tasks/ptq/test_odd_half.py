"""Models in half precision through every pass, computed in float32 on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from odd import (
    CANDIDATES,
    FLOAT,
    HALF,
    GetOdd,
    check_pass,
    check_prepared,
    check_viewed,
    gathered,
    layers,
    model_of,
    node,
    weights,
)
from onnx import numpy_helper

from tasks.ptq.graph.edits import notes_of


def half() -> onnx.ModelProto:
    """All of it float16, with a Cast to float32 and back inside, as exporters put around what overflows."""
    inside = [
        node("Cast", ["s"], ["s32"], to=FLOAT),
        node("Softplus", ["s32"], ["t32"]),
        node("Cast", ["t32"], ["t"], to=HALF),
        node("Constant", [], ["one"], value=numpy_helper.from_array(np.float16(1))),
        node("Sub", ["t", "one"], ["h"]),
    ]
    return model_of(layers(*inside), weights(np.float16), kind=HALF)


def half_weights() -> onnx.ModelProto:
    """Weights in float16, each behind a Cast to float32: nothing else is."""
    casts = [node("Cast", [f"{name}_half"], [name], to=FLOAT) for name in weights()]
    constants = {f"{name}_half": array for name, array in weights(np.float16).items()}
    return model_of([*casts, *layers(node("Relu", ["s"], ["h"]))], constants)


ODD = {made.__name__: made for made in (half, half_weights)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GetOdd:
    return gathered(ODD, tmp_path_factory)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_prepared_to_the_same_function(made: GetOdd, name: str) -> None:
    check_prepared(made(name))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_goes_through_every_pass(made: GetOdd, tmp_path: Path, name: str, candidate: str) -> None:
    check_pass(made(name), candidate, tmp_path)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_viewed(made: GetOdd, name: str) -> None:
    check_viewed(made(name))


def test_half_precision_is_noted_in_the_file_and_nothing_else_is(made: GetOdd) -> None:
    assert notes_of(made("half").prepared) == {
        "widened": "from float16 to float32, which CPU kernels compute in; 4 constants"
    }
    assert notes_of(made("half_weights").prepared).keys() == {"widened"}

"""Sessions for accuracy may have fewer threads than the variant's own: the outputs are the same to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Tiny, statistics_of

from tasks.measure_accuracy import _considerate
from tasks.ptq.make import Materials, make_variant
from tasks.ptq.prepare import prepare_graph
from tasks.ptq.smooth import SmoothedGraph
from tasks.runtimes.ort import open_session
from validators.recipe import decode


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Materials:
    """What variants of the tiny model are made from."""
    folder = tmp_path_factory.mktemp("materials")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics = statistics_of(folder / "prepared.onnx", tiny.calibration)
    prepared = folder / "prepared.onnx"
    return Materials(
        lambda: prepared,
        lambda: prepared,
        lambda: SmoothedGraph(prepared, 0, 0),
        lambda _: statistics,
        lambda _: (),
        lambda: (),
        lambda *_: {},
    )


@pytest.mark.parametrize(
    "name",
    ["int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu", "fp8-amax-pc@ort-cpu"],
)
def test_fewer_threads_give_the_same_bits(name: str, materials: Materials, tiny: Tiny, tmp_path: Path) -> None:
    variant = make_variant(decode(name), materials, tmp_path, threads=4)
    feed = {"x": np.load(tiny.evaluation)["x"]}
    outputs = []
    for settings in (variant.session, _considerate(variant.session, threads=1)):
        with open_session(variant.path, settings) as session:
            outputs.append(session.run(None, feed)[0])
    np.testing.assert_array_equal(*outputs)

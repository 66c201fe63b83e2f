"""Slow products are found in profiles of ONNX Runtime, of models in which one product was made wide on purpose."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from processors import AMX

from tasks.engines.variants import refuse_other_targets
from tasks.ptq.slow_parts import SlowParts, find_slow_parts, profile_costs
from tasks.runtimes.kernels import Costs
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

# Columns of a product that takes long, and of one that takes a 64th of that.
WIDE, NARROW = 4096, 64
BATCH = {"x": np.ones((64, 64), np.float32)}
MEASURE = partial(profile_costs, batch=BATCH, settings=SessionSettings(CPU_PROVIDER, 1).without_spinning())


def write(path: Path, **widths: int) -> Path:
    """A product of the input for each name, with so many columns."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", f"{name}_w"], [f"{name}_y"], name=name) for name in widths],
        "products",
        [value("x", onnx.TensorProto.FLOAT, [64, 64])],
        [value(f"{name}_y", onnx.TensorProto.FLOAT, [64, width]) for name, width in widths.items()],
        [onnx.numpy_helper.from_array(np.ones((64, width), np.float32), f"{name}_w") for name, width in widths.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def find(folder: Path, in_int8: dict[str, int], conversion: int = 0) -> SlowParts:
    """Of two products that are wide and narrow in float; `conversion` columns are added by each in float among integers."""
    in_float = {"first": NARROW, "second": WIDE}

    def quantize(_model: Path, keep_float: Collection[str], path: Path) -> None:
        added = {f"conversion_{name}": conversion for name in keep_float if conversion}
        write(path, **(in_int8 | added | {name: in_float[name] for name in keep_float}))

    return find_slow_parts(write(folder / "float.onnx", **in_float), quantize, MEASURE)


def test_product_that_int8_slows_down_is_found(tmp_path: Path) -> None:
    found = find(tmp_path, {"first": WIDE, "second": NARROW})
    assert found.nodes == ("first",)
    assert found.after < found.before and found.timed


def test_no_product_is_found_where_int8_gains(tmp_path: Path) -> None:
    assert find(tmp_path, {"first": NARROW // 8, "second": NARROW}).nodes == ()


def test_product_stays_if_conversions_cost_more(tmp_path: Path) -> None:
    assert find(tmp_path, {"first": WIDE, "second": NARROW}, conversion=4 * WIDE).nodes == ()


@pytest.mark.parametrize(
    ("totals", "nodes"),
    [
        # Pairs of times before and after: all four slow products in float, two, one.
        (((100.0, 99.0), (100.0, 98.5), (100.0, 99.9)), ()),
        (((100.0, 99.0), (100.0, 90.0), (100.0, 95.0)), ("a", "b")),
        (((100.0, 80.0), (100.0, 90.0), (100.0, 95.0)), ("a", "b", "c", "d")),
        (((100.0, 120.0), (100.0, 110.0), (100.0, 98.0)), ("a",)),
    ],
)
def test_attempt_that_gains_most_and_enough_is_taken(
    totals: tuple[tuple[float, float], ...], nodes: tuple[str, ...], tmp_path: Path
) -> None:
    """Of costs by hand: the first measurement ranks the products, each further one is of an attempt."""
    ranked = [Costs(dict.fromkeys("abcd", 1.0), 4.0), Costs({"a": 5, "b": 4, "c": 3, "d": 2}, 100.0)]
    told = iter([ranked, *([Costs({}, total) for total in pair] for pair in totals)])
    model = write(tmp_path / "float.onnx", a=1, b=1, c=1, d=1)
    found = find_slow_parts(model, lambda _model, _kept, path: write(path, a=1), lambda _: next(told))
    assert found.nodes == nodes


@pytest.mark.parametrize(
    "name",
    [
        *(f"int8-static-mse-pc-fast@{target}" for target in ("openvino", "torch-inductor")),
        *(f"fp8-amax-pc-fast@{target}" for target in ("ort-cpu", "torch-cuda")),
    ],
)
def test_target_without_such_costs_refuses_the_word(name: str) -> None:
    with pytest.raises(CandidateRefused, match="fast"):
        refuse_other_targets(decode(name), AMX)

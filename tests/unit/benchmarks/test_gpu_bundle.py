"""Models packed for the GPU check: what comes out is the rounded model with its samples, whole or in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from gpu.answers import rows_of
from gpu.bundle import Notes, narrow, pack, put_weights, take_weights, unpack
from gpu.make import profile_of
from gpu.parts import join, split
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from validators.errors import DataError
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

NOTES = Notes("tiny", "accuracy", "logits", (1, 8, 32), 64)


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture
def packed(tiny: Tiny, tmp_path: Path) -> Path:
    """The small model and its data as a bundle."""
    model = onnx.load(tiny.model)
    notes = replace(NOTES, rounded=narrow(model))
    return pack(tmp_path, notes, model, arrays_of(tiny.calibration), arrays_of(tiny.evaluation))


def test_what_is_unpacked_is_the_model_with_rounded_weights(packed: Path, tiny: Tiny, tmp_path: Path) -> None:
    """float32 throughout, each large array rounded to float16 once and no small one; samples as they were."""
    bundle = unpack(packed, tmp_path / "unpacked")
    stored = {one.name: numpy_helper.to_array(one) for one in onnx.load(bundle.source).graph.initializer}
    first, bias, second = tiny.weights
    np.testing.assert_array_equal(stored["first"], first.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(stored["bias"], bias)  # 128 values
    np.testing.assert_array_equal(stored["second"], second)  # 512
    assert {array.dtype for array in stored.values()} == {np.dtype(np.float32)}
    assert bundle.notes == replace(NOTES, rounded=("first",))
    given_samples = arrays_of(tiny.evaluation)
    np.testing.assert_array_equal(bundle.evaluation.inputs["x"], given_samples["x"])
    np.testing.assert_array_equal(bundle.evaluation.labels, given_samples["label"])
    assert packed.stat().st_size < tiny.model.stat().st_size + sum(
        path.stat().st_size for path in (tiny.calibration, tiny.evaluation)
    )


def test_the_metric_is_that_of_numpy_on_the_rounded_weights(packed: Path, tiny: Tiny, tmp_path: Path) -> None:
    bundle = unpack(packed, tmp_path / "unpacked")
    first, bias, second = (array.astype(np.float64) for array in tiny.weights)
    first = first.astype(np.float16).astype(np.float64)
    logits = np.maximum(bundle.evaluation.inputs["x"] @ first + bias, 0) @ second
    expected = float((logits.argmax(axis=1) == bundle.evaluation.labels).mean())
    _, value = rows_of(bundle.source, SessionSettings(CPU_PROVIDER, 1), bundle)
    assert value == pytest.approx(expected, abs=1 / len(bundle.evaluation))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_rounding_is_that_of_float16_and_leaves_overflow_alone(seed: int, scale: float) -> None:
    array = (np.random.default_rng(seed).normal(size=(32, 40)) * scale).astype(np.float32)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [], "g", [], [], [numpy_helper.from_array(array, "w"), numpy_helper.from_array(array[0], "b")]
        )
    )
    names = narrow(model)
    weights = take_weights(model)
    assert not any(one.raw_data for one in model.graph.initializer)
    put_weights(model, weights, names)
    found = [numpy_helper.to_array(one) for one in model.graph.initializer]
    fits = float(np.abs(array).max()) <= 65504.0  # the largest float16
    assert names == (("w",) if fits else ())
    np.testing.assert_array_equal(found[0], array.astype(np.float16).astype(np.float32) if fits else array)
    np.testing.assert_array_equal(found[1], array[0])


def test_a_missing_bundle_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no text\.zip") as told:
        unpack(tmp_path / "text.zip", tmp_path)
    assert "benchmarks.gpu bundle" in told.value.fix


def test_requests_are_the_first_samples_cut_as_noted(packed: Path, tmp_path: Path) -> None:
    """2,000 samples of 64 features: 2,001 in a request begin anew, and a profile spans requests and whole samples."""
    bundle = unpack(packed, tmp_path / "unpacked")
    x = bundle.evaluation.inputs["x"]
    whole = bundle.request(2001)["x"]
    np.testing.assert_array_equal(whole[-1], x[0])
    short = replace(bundle, notes=replace(bundle.notes, dims={"x": 16}))
    np.testing.assert_array_equal(short.request(3)["x"], x[:3, :16])
    shape = profile_of(short)["x"]
    assert (shape.minimum, shape.optimum, shape.maximum) == ((1, 16), (8, 16), (64, 64))


def test_parts_come_back_together(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2_500_000)
    path = tmp_path / "a-1.0-py3-none-any.whl"
    path.write_bytes(content)
    parts = split(path, 1_000_000)
    assert [part.stat().st_size for part in parts] == [1_000_000, 1_000_000, 500_000] and not path.exists()
    assert join(tmp_path) == [path]
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]
    assert split(path, 2_500_000) == [path] and join(tmp_path) == []


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_parts_that_are_not_whole_are_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(bytes(300))
    parts = split(path, 100)
    other = tmp_path / "other.zip"
    other.write_bytes(bytes(150))
    split(other, 100)
    if fault == "missing":
        parts[1].unlink()
    else:
        parts[1].write_bytes(bytes(99) + b"x")
    with pytest.raises(DataError, match="2 of 3 parts" if fault == "missing" else "digest"):
        join(tmp_path)
    assert not path.exists() and other.read_bytes() == bytes(150)

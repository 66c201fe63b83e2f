"""Sequences of calls of a model with a state, against a loop over the calls by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from interfaces import calls, recurrent
from numpy.typing import NDArray

from tasks.evidence.sequences import first_calls, one_call_each, run_sequences, split_sequences
from tasks.runtimes.ort import open_session
from tasks.runtimes.runner import SessionRunner
from validators.errors import DataError
from validators.job.job_data import InputSettings
from validators.records.run import SessionSettings, Source
from validators.samples.datasets import Samples, TensorSpec, load_samples
from validators.samples.feeds import feeds_of

STEPS, N = 4, 7
INPUTS = (TensorSpec("x", "float32", ("batch", 64)), TensorSpec("h", "float32", (2, "batch", 64)))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    onnx.save(recurrent(), tmp_path / "model.onnx")
    return Source("m", "m", None, "a" * 64, tmp_path / "model.onnx", "file")


@pytest.fixture
def loaded(tmp_path: Path) -> Samples:
    np.savez(tmp_path / "data.npz", **calls(STEPS)(N, 5), language=np.arange(N) % 2)
    feeds = feeds_of({"h": InputSettings(batch_axis=1, state_from="hn")}, INPUTS, "m")
    return load_samples(tmp_path / "data.npz", feeds, label="label", role="evaluation", slices=("language",))


def by_hand(path: Path, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The logits of each call, `(steps, 4)`, and the state before it, `(steps, 2, 64)`."""
    session = ort.InferenceSession(path)
    state, logits, states = np.zeros((2, 1, 64), np.float32), [], []
    for row in x:
        states.append(state[:, 0])
        found, state = session.run(["logits", "hn"], {"x": row[None], "h": state})
        logits.append(found[0])
    return np.stack(logits), np.stack(states)


def test_sequences_become_calls_with_the_states_of_the_source(source: Source, loaded: Samples) -> None:
    samples = split_sequences(loaded, source, (), role="evaluation")
    assert (len(samples), samples.steps, samples.inputs["h"].shape) == (N * STEPS, STEPS, (N * STEPS, 2, 64))
    for number in range(N):
        rows = slice(number * STEPS, (number + 1) * STEPS)
        _, states = by_hand(source.onnx_path, loaded.inputs["x"][number])
        np.testing.assert_allclose(samples.inputs["h"][rows], states, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(samples.inputs["x"][rows], loaded.inputs["x"][number])
        assert samples.clusters is not None and samples.labels is not None
        assert set(samples.clusters[rows]) == {number} and set(samples.slices["language"][rows]) == {number % 2}
        assert len(set(samples.labels[rows])) == 1
    batch = next(samples.batches(3))
    assert batch["h"].shape == (2, 3, 64) and batch.rows == 3
    assert samples.file.digest != loaded.file.digest
    assert split_sequences(loaded, source, (), role="calibration").clusters is None


@pytest.mark.parametrize("at_once", [1, 3, 32])
def test_a_run_over_sequences_carries_its_own_state(source: Source, loaded: Samples, at_once: int) -> None:
    samples = split_sequences(loaded, source, (), role="evaluation")
    assert samples.inputs["h"].any()
    # States of another model, which the run must not read.
    samples = replace(samples, inputs=samples.inputs | {"h": samples.inputs["h"] + 100})
    with open_session(source.onnx_path, SessionSettings("CPUExecutionProvider", 1)) as session:
        found = list(run_sequences(SessionRunner(session), samples, "logits", at_once))
    assert [len(batch) for batch in found] == [min(at_once, N - start) * STEPS for start in range(0, N, at_once)]
    expected = np.concatenate([by_hand(source.onnx_path, x)[0] for x in loaded.inputs["x"]])
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-4)


def test_the_first_calls_have_no_state(loaded: Samples) -> None:
    first = first_calls(loaded)
    np.testing.assert_array_equal(first.inputs["x"], loaded.inputs["x"][:, 0])
    assert first.inputs["h"].shape == (N, 2, 64) and not first.inputs["h"].any()


def test_labels_of_whole_sequences_are_refused(source: Source, loaded: Samples) -> None:
    assert loaded.labels is not None
    with pytest.raises(DataError, match="one label a step"):
        split_sequences(replace(loaded, labels=loaded.labels[:, 0]), source, (), role="evaluation")


def test_one_call_of_each_sequence_is_judged(source: Source, loaded: Samples) -> None:
    samples = split_sequences(loaded, source, (), role="evaluation")
    found = one_call_each(samples)
    assert (len(found), found.steps) == (N, None)
    np.testing.assert_array_equal(found.inputs["x"], loaded.inputs["x"][:, STEPS // 2])
    assert found.clusters is not None and found.clusters.tolist() == list(range(N))
    assert one_call_each(found) is found

"""Sequences of calls of a model with a state: split into single calls, and run with the state carried from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.inventory import usable_cores
from tasks.runtimes.ort import open_session
from tasks.runtimes.runner import Runner, SessionRunner
from validators.digests import digest_values
from validators.errors import DataError
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings, Source
from validators.samples.datasets import Arrays, Samples
from validators.samples.feeds import Feeds

# Sequences that run at once, unless the model's batch size is fixed.
AT_ONCE = 32


def split_sequences(samples: Samples, source: Source, libraries: Libraries, *, role: str) -> Samples:
    """Return sequences `(n, steps, ...)` as single calls, `n * steps` samples, with the states that the source has at each.

    Evaluation samples without groups get their sequence as the group: calls of one sequence resemble each other.

    Raises:
        DataError: arrays have different numbers of steps, or labels are not one a step.
    """
    feeds, steps = _feeds(samples), _check_steps(samples, role)
    n = len(samples)
    fixed = feeds.samples[0].shape[0]
    size = fixed if isinstance(fixed, int) else AT_ONCE
    if n % size and isinstance(fixed, int):
        raise DataError(
            found=f"{role} data {samples.file.path.name} has {n} sequences, and the model a fixed batch size of {fixed}",
            expected=f"a multiple of {fixed}",
            fix="remove the excess sequences, or export the model with a dynamic batch axis",
        )
    arrays: Arrays = {name: array.reshape(n * steps, *array.shape[2:]) for name, array in samples.inputs.items()}
    states = {
        name: np.zeros((n, steps, *zeros.shape[1:]), zeros.dtype) for name, zeros in feeds.first_states(1).items()
    }
    with open_session(source.onnx_path, SessionSettings.reference(usable_cores(), libraries=libraries)) as session:
        runner = SessionRunner(session)
        for start in range(0, n, size):
            chosen = slice(start, start + size)
            calls = {name: array[chosen] for name, array in samples.inputs.items()}
            for step, (before, _) in enumerate(_calls(runner, feeds, calls, [])):
                for name, state in before.items():
                    states[name][chosen, step] = state
    arrays |= {name: state.reshape(n * steps, *state.shape[2:]) for name, state in states.items()}
    clusters = samples.clusters
    if clusters is None and role == "evaluation":
        clusters = np.arange(n)
    return replace(
        samples,
        # The states are the source's.
        file=replace(samples.file, rows=n * steps, digest=digest_values(samples.file.digest, source.digest)),
        inputs=arrays,
        labels=None if samples.labels is None else samples.labels.reshape(n * steps, *samples.labels.shape[2:]),
        slices={name: np.repeat(groups, steps) for name, groups in samples.slices.items()},
        clusters=None if clusters is None else np.repeat(clusters, steps),
        steps=steps,
    )


def first_calls(samples: Samples) -> Samples:
    """Return the first call of each sequence; samples of a model without a state as they are."""
    if samples.feeds is None or not samples.feeds.states:
        return samples
    first = {name: array[:, 0] for name, array in samples.inputs.items()}
    return replace(samples, inputs=first | samples.feeds.first_states(len(samples)))


def one_call_each(samples: Samples) -> Samples:
    """Return the middle call of each sequence, since tests of distributions need independent samples; others as they are.

    The middle of all, so that a sequence that is in two files is found.
    """
    if samples.steps is None:
        return samples
    rows = np.arange(samples.steps // 2, len(samples), samples.steps)
    return replace(take_rows(samples, rows), steps=None)


def take_rows(samples: Samples, rows: NDArray[np.intp]) -> Samples:
    """Return the samples of some rows, with the digest of all."""
    return replace(
        samples,
        file=replace(samples.file, rows=len(rows)),
        inputs={name: array[rows] for name, array in samples.inputs.items()},
        labels=None if samples.labels is None else samples.labels[rows],
        slices={name: groups[rows] for name, groups in samples.slices.items()},
        clusters=None if samples.clusters is None else samples.clusters[rows],
    )


def run_sequences(runner: Runner, samples: Samples, output: str, at_once: int) -> Iterator[NDArray[Any]]:
    """Yield an output for the calls of `at_once` sequences, `(calls, ...)` in order, with the model's own states.

    Raises:
        CandidateRefused: the runtime fails on a call.
    """
    feeds, steps = _feeds(samples), samples.steps or 1
    for start in range(0, len(samples), at_once * steps):
        chosen = slice(start, start + at_once * steps)
        calls = {
            name: array[chosen].reshape(-1, steps, *array.shape[1:])
            for name, array in samples.inputs.items()
            if name not in feeds.states
        }
        found = [answers[0] for _, answers in _calls(runner, feeds, calls, [output])]
        yield np.concatenate(np.stack(found, axis=1))


def _calls(
    runner: Runner, feeds: Feeds, calls: Arrays, outputs: list[str]
) -> Iterator[tuple[Arrays, list[NDArray[Any]]]]:
    """Make the calls of sequences, arrays `(sequences, steps, ...)`; yield the states before each, and its outputs."""
    first = next(iter(calls.values()))
    states = feeds.first_states(len(first))
    for step in range(first.shape[1]):
        feed = feeds.feed({name: array[:, step] for name, array in calls.items()} | states)
        answers = runner.run(feed, [*outputs, *feeds.states.values()])
        yield states, answers[: len(outputs)]
        states = feeds.next_states(answers[len(outputs) :])


def _check_steps(samples: Samples, role: str) -> int:
    """Return the number of steps, which all arrays share."""
    shapes = {name: array.shape for name, array in samples.inputs.items()}
    labels = samples.labels
    if labels is not None:
        shapes["the labels"] = labels.shape
    steps: set[int] = {shape[1] if len(shape) > 1 else 0 for shape in shapes.values()}
    if len(steps) > 1 or 0 in steps:
        raise DataError(
            found=f"{role} data {samples.file.path.name} has arrays of shapes {shapes}",
            expected="sequences `(samples, steps, ...)` with the same number of steps, and one label a step",
            fix="write the inputs and labels of each call along axis 1",
        )
    return steps.pop()


def _feeds(samples: Samples) -> Feeds:
    assert samples.feeds is not None  # samples of a model with a state
    return samples.feeds

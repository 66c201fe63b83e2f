"""Comparison of a float graph with the one that it was made from, on a few samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tasks.runtimes.ort import describe_inputs, open_session, run_outputs, with_mapped_weights
from tasks.runtimes.parity import largest_difference, largest_magnitude
from validators.errors import CandidateRefused
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec

GetBatch = Callable[[tuple[TensorSpec, ...]], Arrays]

# A changed order of summation differs by less, and a pass that computes another function by far more.
TOLERANCE = 1e-3


def parity_settings(libraries: Libraries) -> SessionSettings:
    """Return the settings of a session that computes a graph nearly as written, at the optimization level `basic`."""
    return SessionSettings.reference(0, "basic", libraries=libraries).without_spinning()


def compare_outputs(
    before: Path,
    after: Path,
    batch: GetBatch,
    libraries: Libraries,
    *,
    tolerance: float = TOLERANCE,
    floats_alone: bool = True,
) -> tuple[float, str]:
    """Return the largest absolute difference of any output on a batch, and what differs too much; empty if nothing does.

    A difference is too large beyond `tolerance` times the largest magnitude of the output. With `floats_alone`, outputs of
    other types are not compared, since a class or a selection may change with the last bit of a score, and neither are
    outputs of another shape; without it they must be equal.

    Raises:
        CandidateRefused: the runtime does not load or run one of the graphs.
    """
    settings = parity_settings(libraries)
    with open_session(before, with_mapped_weights(settings, before)) as session:
        names = [value.name for value in session.get_outputs()]
        arrays = batch(describe_inputs(session))
        expected = run_outputs(session, arrays, names)
    with open_session(after, with_mapped_weights(settings, after)) as session:
        found = run_outputs(session, arrays, names)
    worst = 0.0
    for name, one, other in zip(names, map(np.asarray, expected), map(np.asarray, found), strict=True):
        if floats_alone and (one.dtype.kind != "f" or one.shape != other.shape):
            continue
        is_same = one.dtype == other.dtype and (one.dtype.kind == "f" or np.array_equal(one, other))
        distance, largest = largest_difference(one, other) if is_same else float("inf"), largest_magnitude(one)
        if not distance <= tolerance * (largest or 1.0):
            return distance, f"its output {name!r} differs by {distance:.3g}, where its largest is {largest:.3g}"
        worst = max(worst, distance)
    return worst, ""


def refuse_unequal(before: Path, after: Path, batch: Arrays, libraries: Libraries, work: str, instead: str) -> None:
    """Compare the float graph that a pass wrote with the one that it read; `work` names the pass, `instead` what to take.

    Raises:
        CandidateRefused: `invalid`: the graphs compute something else.
    """
    _, told = compare_outputs(before, after, lambda _: batch, libraries)
    if told:
        raise CandidateRefused(
            kind="invalid",
            found=f"after {work}, which must not change what the model computes, {told}",
            expected="equal outputs before and after it",
            fix=f"take {instead}, and report it with the model",
        )

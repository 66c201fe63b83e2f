"""Gram matrices of the activations that weight-only quantized nodes read: the only calibration data of GPTQ and AWQ.

A matrix of K channels takes 8 K^2 bytes (969 MB for K = 11,008), and a model has one per activation. Each lies in an
unnamed temporary file that is mapped into memory. The kernel writes pages out when memory runs short, and the disk space
is freed with the matrix.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.ptq.calibrate.watched import open_watched, split_by_memory
from validators.errors import CandidateRefused
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

Floats = NDArray[np.float64]
Batches = Callable[[], Iterable[Arrays]]

# Rows of an activation converted to float64 at once, and rows of its Gram matrix computed at once.
ROWS_AT_ONCE, CHANNELS_AT_ONCE = 2048, 1024


@dataclass(frozen=True)
class Gram:
    """Gram matrix of an activation X, of shape `[rows, K]`.

    `matrix`: the sum `X^T X`, float64 `[K, K]`. `mean_absolute`: the mean of `|X|` per channel, float64 `[K]`.
    """

    matrix: Floats
    mean_absolute: Floats
    rows: int

    def __add__(self, other: Gram) -> Gram:
        """Return the Gram matrix over the rows of both."""
        rows = self.rows + other.rows
        mean = (self.mean_absolute * self.rows + other.mean_absolute * other.rows) / max(rows, 1)
        return Gram(self.matrix + other.matrix, mean, rows)


def collect_grams(
    model: Path,
    tensors: Mapping[str, int],
    batches: Batches,
    *,
    max_memory_mb: float,
    threads: int = 1,
    libraries: Libraries = (),
) -> dict[str, Gram]:
    """Run a float model over batches of samples and return the Gram matrix of each tensor, by name.

    `tensors` maps each name to its channels K, the length of its last axis. `batches()` starts over on each call. The model
    runs once on the first batch to learn the shapes, then once over all batches for each group of tensors that fits in
    `max_memory_mb` (1e6 bytes; neither the session nor the matrix files count). Sums are float64. No activation outlives
    its batch. Padding rows count like others.

    Raises:
        CandidateRefused: `invalid`: the model does not run, a tensor has another number of channels, or one is not finite;
            `unsupported`: a single tensor takes more memory than allowed; `infrastructure`: the temporary folder is full.
    """
    if not tensors:
        return {}
    settings = SessionSettings.reference(threads, libraries=libraries).without_spinning()
    shapes = _shapes(model, tensors, next(iter(batches())), settings)
    found: dict[str, Gram] = {}
    for group in plan_passes(tensors, shapes, max_memory_mb):
        sums = {name: _Sum(name, tensors[name]) for name in group}
        with open_watched(model, group, settings) as watched:
            for batch in batches():
                for name, values in watched.run(batch).items():
                    sums[name].add(values)
        found.update({name: total.gram() for name, total in sums.items()})
    return found


def plan_passes(
    tensors: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], max_memory_mb: float
) -> list[list[str]]:
    """Split the tensors, in order, into groups that each fit into `max_memory_mb`; `shapes` are those of one batch.

    Until the pass ends, a tensor holds its values (counted as float32) and one sum per channel. While it is processed, it
    also needs a block of rows as float64 and a block of rows of the matrix.

    Raises:
        CandidateRefused: `unsupported`: a single tensor takes more than `max_memory_mb`.
    """
    rows = {name: math.prod(shapes[name][:-1]) for name in tensors}
    held = {name: 4.0 * rows[name] * k + 8 * k for name, k in tensors.items()}
    at_work = {
        name: 8.0 * k * (min(k, CHANNELS_AT_ONCE) + min(rows[name], ROWS_AT_ONCE)) for name, k in tensors.items()
    }

    def refuse(name: str, needed: float) -> CandidateRefused:
        return CandidateRefused(
            kind="unsupported",
            found=f"{needed / 1e6:.0f} MB for the Gram matrix of {name!r}, {shapes[name]} a batch",
            expected=f"at most {max_memory_mb:g} MB",
            fix="raise calibration.max_memory_mb (and budgets.memory_mb, if set), or take INT4 by rtn or hqq, which need none",
        )

    return split_by_memory(held, at_work, max_memory_mb * 1e6, refuse)


class _Sum:
    """Running sums of one tensor."""

    def __init__(self, name: str, channels: int) -> None:
        self._name = name
        self._gram = Gram(_in_file(channels), np.zeros(channels), 0)
        self._absolute = np.zeros(channels)

    def add(self, values: NDArray[Any]) -> None:
        """Add a batch of floats, `[..., K]`."""
        rows = values.reshape(-1, values.shape[-1])
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
            for first in range(0, part.shape[1], CHANNELS_AT_ONCE):
                channels = slice(first, first + CHANNELS_AT_ONCE)
                # The rest of these rows is the transpose of what is above them.
                self._gram.matrix[channels, first:] += part[:, channels].T @ part[:, first:]
            self._absolute += np.abs(part, out=part).sum(axis=0)
        self._gram = replace(self._gram, rows=self._gram.rows + len(rows))

    def gram(self) -> Gram:
        """Return the accumulated Gram matrix.

        Raises:
            CandidateRefused: `invalid`: a value was not finite.
        """
        if not np.isfinite(self._absolute).all():
            raise CandidateRefused(
                kind="invalid",
                found=f"NaN or Inf among the values of {self._name!r}",
                expected="finite activations on the calibration samples",
                fix="find the samples that overflow, or keep the model in float32",
            )
        matrix = self._gram.matrix
        for first in range(0, len(matrix), CHANNELS_AT_ONCE):
            end = first + CHANNELS_AT_ONCE
            matrix[end:, first:end] = matrix[first:end, end:].T
        return replace(self._gram, mean_absolute=self._absolute / max(self._gram.rows, 1))


def _in_file(channels: int) -> Floats:
    """Return a float64 matrix of zeros, `[channels, channels]`, in an unnamed temporary file."""
    try:
        with tempfile.TemporaryFile(prefix="quantgate-gram-") as file:
            # Reserve the space: a process ends when it touches a mapped page that the disk has no room for.
            os.posix_fallocate(file.fileno(), 0, 8 * channels * channels)
            return np.memmap(file, np.float64, "r+", shape=(channels, channels))
    except OSError as error:
        raise CandidateRefused(
            kind="infrastructure",
            found=f"{tempfile.gettempdir()}: {error.strerror}",
            expected=f"{8e-6 * channels * channels:.0f} MB of disk for the Gram matrix of {channels} channels",
            fix="free disk space, or set TMPDIR to a folder with more of it",
        ) from error


def _shapes(
    model: Path, tensors: Mapping[str, int], batch: Arrays, settings: SessionSettings
) -> dict[str, tuple[int, ...]]:
    with open_watched(model, tensors, settings, shapes=True) as watched:
        shapes = {name: tuple(shape.tolist()) for name, shape in watched.run(batch).items()}
    for name, channels in tensors.items():
        if not shapes[name] or shapes[name][-1] != channels:
            raise CandidateRefused(
                kind="invalid",
                found=f"{name!r} of shape {shapes[name]}",
                expected=f"{channels} channels along the last axis, as the weight has rows",
                fix="report it with the source model",
            )
    return shapes

"""Gram matrices of the activations that weight-only quantized nodes read: the only calibration data of GPTQ and AWQ.

A matrix of K channels takes 8 K^2 bytes (969 MB for K = 11,008), and a model has one per activation. Each lies in an
unnamed temporary file that is mapped into memory. The kernel writes pages out when memory runs short, and the disk space
is freed with the matrix.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.calibrate.staged import StagedRun
from tasks.ptq.calibrate.watched import open_watched, split_by_memory
from tasks.ptq.graph.edits import scratch
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

    `matrix`: the sum `X^T X`, float64 `[K, K]`. `mean_absolute`: the mean of `|X|` per channel, float64 `[K]`. For the patches
    of a convolution all have one more axis in front, its groups, and `cross` is the sum `X^T F` with the patches F that the
    float model reads in the place of X.
    """

    matrix: Floats
    mean_absolute: Floats
    rows: int
    cross: Floats | None = None

    def __add__(self, other: Gram) -> Gram:
        """Return the Gram matrix over the rows of both."""
        rows = self.rows + other.rows
        mean = (self.mean_absolute * self.rows + other.mean_absolute * other.rows) / max(rows, 1)
        return Gram(self.matrix + other.matrix, mean, rows)

    def checked(self, name: str) -> Gram:
        """Return the Gram matrix of the values `name`.

        Raises:
            CandidateRefused: `invalid`: a value was not finite.
        """
        if np.isfinite(self.mean_absolute).all():
            return self
        raise CandidateRefused(
            kind="invalid",
            found=f"NaN or Inf among the values of {name!r}",
            expected="finite activations on the calibration samples",
            fix="find the samples that overflow, or keep the model in float32",
        )


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
    runs once on the first batch to learn the shapes, then in stages, each of which computes the tensors of one group and goes
    on where the one before it ended (`StagedRun`). A group fits in `max_memory_mb` (1e6 bytes; the session does not count),
    see `plan_stages`. Sums are float64. What later stages read of a batch lies in files. Padding rows count like others.

    Raises:
        CandidateRefused: `invalid`: the model does not run, a tensor has another number of channels, or one is not finite;
            `unsupported`: a single tensor takes more memory than allowed; `infrastructure`: the temporary folder is full.
    """
    if not tensors:
        return {}
    settings = SessionSettings.reference(threads, libraries=libraries).without_spinning()
    shapes = _shapes(model, tensors, next(iter(batches())), settings)
    with refuse_full_disk(8e-6 * sum(channels**2 for channels in tensors.values())):
        return _in_stages(model, tensors, shapes, batches, settings, max_memory_mb)


@contextmanager
def refuse_full_disk(needed_mb: float) -> Iterator[None]:
    """Refuse what the temporary folder has no room for; Gram matrices take `needed_mb` of it.

    Raises:
        CandidateRefused: `infrastructure`: an OSError was raised inside.
    """
    try:
        yield
    except OSError as error:
        raise CandidateRefused(
            kind="infrastructure",
            found=f"{tempfile.gettempdir()}: {error.strerror}",
            expected=f"{needed_mb:.0f} MB of disk for Gram matrices, and room for the activations between two stages",
            fix="free disk space, or set TMPDIR to a folder with more of it",
        ) from error


def _in_stages(
    model: Path,
    tensors: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    batches: Batches,
    settings: SessionSettings,
    max_memory_mb: float,
) -> dict[str, Gram]:
    found: dict[str, Gram] = {}
    with scratch() as folder:
        run = StagedRun(onnx.load(model, load_external_data=False), model, tensors, batches(), folder, settings)
        in_order = {name: tensors[name] for name in sorted(tensors, key=run.position)}
        for group in plan_stages(in_order, shapes, max_memory_mb):
            sums = {name: _Sum(name, tensors[name]) for name in group}
            for batch in run.all_values(group, restart=run.position(group[-1]) + 1):
                for name in group:
                    sums[name].add(batch[name])
            found.update({name: total.gram() for name, total in sums.items()})
    return found


def plan_stages(
    tensors: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], max_memory_mb: float
) -> list[list[str]]:
    """Split the tensors, in order, into groups that each fit into `max_memory_mb`; `shapes` are those of one batch.

    Until the stage ends, a tensor holds its values (counted as float32), one sum per channel and its matrix, which each batch
    would write to the disk again if memory had no room for it. While it is processed, it also needs a block of rows as float64
    and a block of rows of the matrix. A tensor that does not fit with its matrix has a stage of its own.

    Raises:
        CandidateRefused: `unsupported`: a single tensor takes more than `max_memory_mb` without its matrix.
    """
    budget = max_memory_mb * 1e6
    held, at_work = {}, {}
    for name, channels in tensors.items():
        rows = math.prod(shapes[name][:-1])
        values = 4.0 * rows * channels + 8 * channels
        at_work[name] = 8.0 * channels * (min(channels, CHANNELS_AT_ONCE) + min(rows, ROWS_AT_ONCE))
        refuse_too_large(values + at_work[name], f"{name!r}, {shapes[name]} a batch", max_memory_mb)
        held[name] = values + 8.0 * channels**2
    return split_by_memory(held, at_work, budget)


def refuse_too_large(needed: float, what: str, max_memory_mb: float) -> None:
    """Refuse a Gram matrix that needs so many bytes, if they are more than allowed.

    Raises:
        CandidateRefused: `unsupported`: they are.
    """
    if needed > max_memory_mb * 1e6:
        raise CandidateRefused(
            kind="unsupported",
            found=f"{needed / 1e6:.0f} MB for the Gram matrix of {what}",
            expected=f"at most {max_memory_mb:g} MB",
            fix="raise calibration.max_memory_mb (and budgets.memory_mb, if set), or take a rounding that needs none",
        )


class _Sum:
    """Running sums of one tensor."""

    def __init__(self, tensor: str, channels: int) -> None:
        self._name = tensor
        self._gram = Gram(zeros_in_file((channels, channels)), np.zeros(channels), 0)
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
        found = replace(self._gram, mean_absolute=self._absolute / max(self._gram.rows, 1)).checked(self._name)
        matrix = found.matrix
        for first in range(0, len(matrix), CHANNELS_AT_ONCE):
            end = first + CHANNELS_AT_ONCE
            matrix[end:, first:end] = matrix[first:end, end:].T
        return found


def zeros_in_file(shape: tuple[int, ...]) -> Floats:
    """Return a float64 array of zeros in an unnamed temporary file."""
    with tempfile.TemporaryFile(prefix="quantgate-gram-") as file:
        # Reserve the space: a process ends when it touches a mapped page that the disk has no room for.
        os.posix_fallocate(file.fileno(), 0, 8 * math.prod(shape))
        return np.memmap(file, np.float64, "r+", shape=shape)


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

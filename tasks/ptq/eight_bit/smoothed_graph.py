"""The float graph after SmoothQuant as an entry of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks.ptq.calibrate.pass_batches import few_samples, pass_batches
from tasks.ptq.eight_bit.smooth import SmoothedGraph, read_channels, smooth
from tasks.ptq.graph.equal_floats import refuse_unequal
from validators.records.libraries import Libraries
from validators.samples.datasets import Samples


def make_smoothed(
    prepared: Callable[[], Path],
    samples: Samples,
    fixed_batch: int | None,
    seed: int,
    libraries: Libraries,
    insert: bool,
    folder: Path,
) -> SmoothedGraph:
    """Smooth the prepared graph by what some calibration samples make of its channels; see `smooth`."""
    model, batches = prepared(), pass_batches(samples, fixed_batch)
    seen = read_channels(model, batches, seed=seed, libraries=libraries)
    done = [one.way for one in smooth(model, folder / "smoothed.onnx", seen, symmetric=False, insert=insert).values()]
    refuse_unequal(
        model,
        folder / "smoothed.onnx",
        few_samples(samples, fixed_batch),
        libraries,
        "smoothing",
        "candidates without -smooth",
    )
    return SmoothedGraph(folder / "smoothed.onnx", done.count("folded"), done.count("multiplied"))

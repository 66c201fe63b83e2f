"""Calibration statistics of every activation, in one file that all candidates share, and the ranges computed from them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tasks.ptq.calibrate.collect import collect_statistics
from tasks.ptq.calibrate.range_methods import Range, find_range
from tasks.ptq.calibrate.statistics import load_statistics, save_statistics
from validators.records.libraries import Libraries
from validators.samples.datasets import Samples

log = logging.getLogger("quantgate")
# Calibration holds activations in memory, and is shared: two at a time would double the memory for nothing.
ONE_AT_A_TIME = threading.Lock()
# 8-bit integers. Symmetric quantization leaves out -128, so that both signs have the same reach.
LEVELS, SYMMETRIC_LEVELS = 256, 255


def calibrate(
    prepared: Path,
    samples: Samples,
    statistics: Path,
    *,
    threads: int,
    max_memory_mb: float,
    fixed_batch: int | None = None,
    libraries: Libraries = (),
) -> dict[str, float]:
    """Run the calibration samples through the prepared graph and write the statistics of its activations to one file.

    Every range method reads the statistics from that file. Return facts about the run: `passes`, `samples`, and
    `predicted_mb`, the memory predicted for the run beyond its loaded session (1e6 bytes).

    Raises:
        CandidateRefused: `invalid`: the runtime cannot run the graph with its activations as outputs; `unsupported`: one
            sample with one of them takes more than `max_memory_mb`.
    """
    collected = collect_statistics(
        prepared,
        samples.batches,
        threads=threads,
        max_memory_mb=max_memory_mb,
        fixed_batch=fixed_batch,
        libraries=libraries,
    )
    save_statistics(statistics, collected.statistics)
    return {"passes": collected.passes, "samples": collected.samples, "predicted_mb": collected.predicted_mb}


def make_statistics(
    graph: Callable[[], Path],
    samples: Samples,
    threads: int,
    max_memory_mb: Callable[[], float],
    fixed_batch: int | None,
    libraries: Libraries,
    folder: Path,
) -> Path:
    """Write the statistics of a graph's activations into a folder; return their file."""
    model, statistics = graph(), folder / "statistics.npz"
    with ONE_AT_A_TIME:
        run = calibrate(
            model,
            samples,
            statistics,
            threads=threads,
            max_memory_mb=max_memory_mb(),
            fixed_batch=fixed_batch,
            libraries=libraries,
        )
    log.info("calibrated: %s", ", ".join(f"{name} {value:.0f}" for name, value in run.items()))
    return statistics


def read_ranges(statistics: Path, method: str, *, symmetric: bool) -> dict[str, Range]:
    """Return the clipping range of each activation for 8-bit integers, by tensor name; `method` is one of `RANGES`.

    Tensors without a finite value are left out.

    Raises:
        CandidateRefused: `invalid`: the file is damaged.
    """
    levels = SYMMETRIC_LEVELS if symmetric else LEVELS
    return {
        name: find_range(one, method, levels=levels, symmetric=symmetric)
        for name, one in load_statistics(statistics).items()
        if one.finite
    }

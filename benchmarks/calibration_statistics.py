"""Calibration in one streaming pass, beside ONNX Runtime's calibrators: memory, time, and whether the ranges agree.

    python benchmarks/calibration_statistics.py run --samples 64 --samples 256 --samples 1024

On the demo's text encoder, every float tensor of it, in batches of 8. Each measurement is a process of its own. Its memory is
the peak of the run above what the process held when it had its session and took the first batch; the peak since its start,
with the model's loading, is written as well. Its time is that of the whole, with loading and the search for ranges by ONNX
Runtime. ONNX Runtime's Entropy and Percentile keep every activation of every sample until the end: `--most-kept` ends their
part early.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from processes import answer_of, status_mb

Arrays = dict[str, NDArray[Any]]
Ranges = dict[str, tuple[float, float, float]]

BATCH_SIZE = 8
MAX_MEMORY_MB = 500.0
PERCENT = 99.99
ORT_METHODS = ("minmax", "percentile", "entropy")
MAX_TIME_RATIO, MIN_MEMORY_RATIO, MAX_GROWTH = 1.5, 5.0, 1.1

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    samples: Annotated[list[int], typer.Option(help="numbers of samples, multiples of 8")] = [64, 256, 1024],  # noqa: B006  # typer copies it
    rounds: Annotated[int, typer.Option(help="processes of each kind, in turn")] = 3,
    most_kept: Annotated[int, typer.Option(help="the most samples for Entropy and Percentile of ONNX Runtime")] = 256,
) -> None:
    """Measure all, and write the figures to `benchmarks/results/calibration_statistics.json`."""
    from figures import save
    from models.pools import text_pool

    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        pool = text_pool(Path(folder))
        np.savez(Path(folder) / "pool.npz", **{name: array[: max(samples)] for name, array in pool.inputs.items()})
        pool.model.rename(Path(folder) / "model.onnx")
        for _ in range(rounds):
            for count in samples:
                for what in ("quantgate", *ORT_METHODS):
                    if what in ("quantgate", "minmax") or count <= most_kept:
                        taken = answer_of([sys.executable, __file__, "measure", what, folder, str(count)])
                        found.setdefault(f"{what} {count}", []).append(taken)
                        print(what, count, taken, flush=True)
        agreement = {
            f"{what} {count}": compare(Path(folder), what, count)
            for count in samples
            for what in ORT_METHODS
            if f"{what} {count}" in found
        }
    medians = _medians(found)
    figures = {"medians": medians, "agreement": agreement, "held": judge(medians, samples, agreement)}
    print(json.dumps(figures, indent=1))
    save("calibration_statistics", figures | {"rounds": found}, quiet=True)


@app.command(hidden=True)
def measure(what: str, folder: Path, count: int) -> None:
    """One measurement, in a process of its own."""
    with np.load(folder / "pool.npz") as archive:
        arrays = {name: archive[name][:count] for name in archive.files}
    import onnxruntime  # noqa: F401  before the clock starts

    memory = Memory()
    begun = time.perf_counter()
    notes = _collect(folder, arrays, memory) if what == "quantgate" else _calibrate(what, folder, arrays, memory)
    notes["seconds_per_sample"] = (time.perf_counter() - begun) / count
    print(json.dumps(notes | {"run_mb": memory.since_first_batch(), "whole_mb": memory.whole()}))


def _collect(folder: Path, arrays: Arrays, memory: Memory) -> dict[str, Any]:
    from tasks.measure.inventory import usable_cores
    from tasks.ptq.calibrate.collect import collect_statistics
    from tasks.ptq.calibrate.statistics import save_statistics

    done = collect_statistics(
        folder / "model.onnx",
        lambda size: _batches(arrays, size, memory),
        threads=usable_cores(),
        max_memory_mb=MAX_MEMORY_MB,
        fixed_batch=None,
    )
    save_statistics(folder / f"quantgate-{done.samples}.npz", done.statistics)
    return {"predicted_mb": done.predicted_mb, "passes": done.passes, "tensors": len(done.statistics)}


def _calibrate(what: str, folder: Path, arrays: Arrays, memory: Memory) -> dict[str, Any]:
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    methods = {
        "minmax": (CalibrationMethod.MinMax, {}),
        "percentile": (CalibrationMethod.Percentile, {"percentile": PERCENT}),
        "entropy": (CalibrationMethod.Entropy, {}),
    }
    method, options = methods[what]
    calibrator = create_calibrator(
        folder / "model.onnx",
        augmented_model_path=str(folder / f"{what}-augmented.onnx"),
        calibrate_method=method,
        extra_options=options,
    )
    # The calibrators print their progress.
    with contextlib.redirect_stdout(io.StringIO()):
        reader = SimpleNamespace(get_next=partial(next, _batches(arrays, BATCH_SIZE, memory), None))
        calibrator.collect_data(reader)
        ranges = calibrator.compute_data().data
    # Records of a histogram: counts, edges, and more.
    histograms = {} if what == "minmax" else calibrator.collector.histogram_dict
    widths = {name: float(edges[1] - edges[0]) for name, (_, edges, *_) in histograms.items()}
    found = {
        name: (float(np.min(data.lowest)), float(np.max(data.highest)), widths.get(name, 0.0))
        for name, data in ranges.items()
    }
    count = len(next(iter(arrays.values())))
    (folder / f"{what}-{count}.json").write_text(json.dumps(found), encoding="utf-8")
    return {"tensors": len(found)}


def _batches(arrays: Arrays, size: int, memory: Memory) -> Iterator[Arrays]:
    memory.begin()
    rows = len(next(iter(arrays.values())))
    for start in range(0, rows, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


def compare(folder: Path, what: str, count: int) -> dict[str, Any]:
    """How far the ranges of both lie apart: `minmax` in units of the tensor, else in one bin of each together.

    ONNX Runtime reports the lower edge of the bin that holds the percentile, cuts ranges to the extremes, and may leave out 0.
    Its Entropy has 128 bins for 128 levels, one window to choose from, which is the whole range: what quantgate's search
    finds is narrower, so that the distance tells how much, and is no target.
    """
    from tasks.ptq.calibrate.range_methods import find_range, minmax_range
    from tasks.ptq.calibrate.statistics import load_statistics

    theirs: Ranges = json.loads((folder / f"{what}-{count}.json").read_text(encoding="utf-8"))
    apart = {}
    for name, statistics in load_statistics(folder / f"quantgate-{count}.npz").items():
        if name not in theirs:
            continue
        low, high, width = theirs[name]
        ours = find_range(statistics, what, levels=255, symmetric=what != "minmax")
        extremes = minmax_range(statistics, symmetric=False)
        distance = max(abs(max(ours[0], extremes[0]) - min(low, 0.0)), abs(min(ours[1], extremes[1]) - max(high, 0.0)))
        apart[name] = distance if what == "minmax" else distance / (width + statistics.width)
    worst = max(apart, key=lambda name: apart[name])
    return {
        "tensors": len(apart),
        "within": sum(distance <= (what != "minmax") for distance in apart.values()),
        "median": float(np.median(list(apart.values()))),
        "worst": worst,
        "worst_apart": apart[worst],
    }


class Memory:
    """The memory of this process in MB."""

    def __init__(self) -> None:
        self._peak = self._first = 0.0

    def begin(self) -> None:
        """Count from here. Called once a pass: the last one counts."""
        self._peak = self.whole()
        self._first = status_mb("VmRSS")
        # 5 resets the peak: proc(5), /proc/pid/clear_refs.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def since_first_batch(self) -> float:
        """The peak since then, above what was held at the time."""
        return status_mb("VmHWM") - self._first

    def whole(self) -> float:
        """The peak since the process began."""
        return max(self._peak, status_mb("VmHWM"))


def judge(medians: dict[str, dict[str, float]], samples: list[int], agreement: dict[str, Any]) -> dict[str, bool]:
    """Whether the targets are met, as far as they were measured."""
    ours = {count: medians[f"quantgate {count}"] for count in samples}
    few, many = min(samples), max(samples)
    held = {"flat": ours[many]["run_mb"] <= MAX_GROWTH * ours[few]["run_mb"]}
    for count in samples:
        ratio = ours[count]["seconds_per_sample"] / medians[f"minmax {count}"]["seconds_per_sample"]
        held[f"time {count}"] = ratio <= MAX_TIME_RATIO
        if f"entropy {count}" in medians:
            theirs = medians[f"entropy {count}"]["run_mb"]
            held[f"memory {count}"] = theirs >= MIN_MEMORY_RATIO * ours[count]["run_mb"]
    return held | {
        f"ranges {key}": found["within"] == found["tensors"]
        for key, found in agreement.items()
        if not key.startswith("entropy")
    }


def _medians(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    return {
        key: {name: float(np.median([one[name] for one in taken])) for name in taken[0]} for key, taken in found.items()
    }


if __name__ == "__main__":
    app()

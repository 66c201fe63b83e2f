"""Two packages that take turns in one process: their graphs are replayed block by block, so that a drifting clock meets both.

The run of a job measures with two processes, and several launches of them (docs/latency.md), which takes a minute a cell. On a
GPU packages in one process share its memory alone: they have no threads that could wait for one another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.measure.latency.ratio import ratio_estimate
from validators.samples.datasets import Arrays

if TYPE_CHECKING:
    from tasks.engines.inductor.shipped.model import InductorModel

CONFIDENCE = 0.95
PAIRS, BLOCK_COUNT, WARM_UP_SECONDS = 7, 10, 0.1


def measure_turns(
    baseline: Path, variant: Path, requests: Mapping[int, Arrays], block_seconds: float, graphs: bool
) -> Iterator[tuple[int, dict[str, Any] | Exception]]:
    """Yield, by batch size, the latency of `variant` with its speedup over `baseline`, or the error that ended it.

    Both are packages; `requests` has a request for each batch size. A block lasts at least `block_seconds` and ten requests.
    With `graphs` a request replays a CUDA graph, as in a run of quantgate; without, its kernels are launched one by one.
    """
    from tasks.engines.inductor.shipped.model import InductorModel
    from tasks.measure.inventory import usable_cores

    models = [InductorModel(path, usable_cores()) for path in (baseline, variant)]
    for batch_size, arrays in requests.items():
        try:
            bound = [model.bound(arrays) if graphs else _launched(model, arrays) for model in models]
            yield batch_size, _compare(bound, block_seconds) | {"graphs": graphs}
        except Exception as error:  # of memory, kernels and captures alike
            yield batch_size, RuntimeError(f"{type(error).__name__}: {str(error).strip()[:300]}")


def _launched(model: InductorModel, arrays: Arrays) -> Callable[[], None]:
    import torch

    tensors = model._tensors(arrays)

    def call() -> None:
        model._call(tensors)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return call


def _compare(requests: list[Callable[[], None]], block_seconds: float) -> dict[str, Any]:
    for request in requests:
        block_ms(request, WARM_UP_SECONDS)
    blocks: tuple[list[list[float]], list[list[float]]] = ([], [])
    for pair in range(PAIRS):
        # Who is first alternates.
        for index in (0, 1) if pair % 2 == 0 else (1, 0):
            blocks[index].append(block_ms(requests[index], block_seconds))
    medians = [[statistics.median(block) for block in side] for side in blocks]
    ratios = [one / other for one, other in zip(*medians, strict=True)]
    return {
        "p50_ms": statistics.median(medians[1]),
        "baseline_p50_ms": statistics.median(medians[0]),
        "speedup": asdict(ratio_estimate([ratios], CONFIDENCE)),
        "blocks": PAIRS,
        "requests": sum(map(len, blocks[1])),
    }


def block_ms(request: Callable[[], None], seconds: float) -> list[float]:
    """Return the milliseconds of each request, for so many seconds at least and ten requests at least."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < BLOCK_COUNT:
        start = time.perf_counter_ns()
        request()
        samples.append((time.perf_counter_ns() - start) / 1e6)
    return samples

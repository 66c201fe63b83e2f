"""Latency of a variant beside its baseline: two processes with one session each take turns, block by block.

Sessions in one process spin against each other, with errors of a factor of eight in both directions. So each session has its
own process, and the idle process is stopped by a signal, so that it cannot compute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.disturbance import least_busy_cpus
from tasks.measure.latency.nvml import NvmlGpu, open_gpu
from tasks.measure.latency.pairs import Pair, WarmUp, measure_launch, measure_pair, warm_up
from tasks.measure.latency.patience import RunPatience
from tasks.measure.latency.process import Contestant, Kind, Worker, save_requests
from tasks.measure.latency.ratio import Samples
from tasks.measure.latency.summary import Gathered, save, summarise
from tasks.measure.request import request_of
from tasks.runtimes.ort_gpu import device_of
from validators.records.latencies import Latency
from validators.records.run import Variant
from validators.samples.datasets import Arrays, rows_of
from validators.samples.evidence import Evidence

if TYPE_CHECKING:
    from validators.job.job_measurement import Measurement, OperatingPoint


def make_latency(
    baseline: Variant,
    variant: Variant,
    evidence: Evidence,
    rows: NDArray[np.intp],
    point: OperatingPoint,
    measurement: Measurement,
    confidence: float,
    code: Path,
    patience: RunPatience,
    first_launch: int,
    refuse_disturbed: Callable[[Latency], None],
    folder: Path,
) -> Latency:
    """Measure both on the same requests, one for each row of `rows`, shape `(requests, batch_size)`.

    `refuse_disturbed` is called with a latency that was disturbed, and raises to keep it out of the store.
    """
    latency = compare_latency(
        Contestant(baseline.loaded, baseline.session),
        Contestant(variant.loaded, variant.session),
        [request_of(evidence, point, one) for one in rows],
        measurement,
        confidence=confidence,
        samples_path=folder / "samples.npz",
        dims=point.dims,
        code=code,
        patience=patience,
        first_launch=first_launch,
    )
    if latency.disturbance:
        refuse_disturbed(latency)
    return latency


def compare_latency(
    baseline: Contestant,
    variant: Contestant,
    requests: Sequence[Arrays],
    measurement: Measurement,
    *,
    confidence: float,
    samples_path: Path,
    dims: dict[str, int] | None = None,
    code: Path = Path(),
    patience: RunPatience | None = None,
    first_launch: int = 0,
) -> Latency:
    """Measure both on the same requests and return the variant's latency with its speedup over the baseline.

    Each of `requests` holds a model's inputs, all of the same shapes. Every block of either side
    cycles through the first requests in whole rounds, as many as fit a block, so that all blocks hold the same mix. `dims`
    names sizes in the requests for the record. `code` is the folder of the user's functions that the measurement names. While
    there is `patience`, disturbed blocks are measured again; without, three times at most. The processes run at the highest
    priority that they may take and, with fewer threads than processors, on those that are least busy when a launch begins.
    Who starts first alternates from launch to launch; `first_launch` is the index of the first one.

    Raw samples go to `samples_path` (`.npz`): `baseline` and `variant` in milliseconds, `baseline_block` and `variant_block`
    with the block index of each sample, `launch` with the launch index of each block, `requests` with the length of a round,
    and the machine's conditions per block. `baseline_again`, `baseline_again_block` and those of the variant hold the last
    measurement of blocks that disagreed with the others; only the speedup reads these. On a disturbed machine the latency
    names its `disturbance` and has no bounds.

    Raises:
        CandidateRefused: `invalid` if a session does not load or run, `unsupported` if another provider would run it.
        InfrastructureError: a measuring process died or stopped answering.
    """
    gpu = open_gpu(device_of(variant.settings)) if variant.settings.on_gpu else None
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        inputs = save_requests(Path(folder, "requests.npz"), requests)
        contest = _Contest((baseline, variant), inputs, len(requests), measurement, code, gpu, patience)
        for launch in range(measurement.launches):
            contest.launch(first_launch + launch)
            if contest.gathered.disturbance:
                break
    save(samples_path, contest.gathered)
    return summarise(
        contest.gathered,
        batch_size=rows_of(requests[0]),
        dims=dims or {},
        threads=variant.settings.threads,
        confidence=confidence,
        samples_path=samples_path,
    )


@dataclass
class _Contest:
    """One comparison: the two sides, their requests, and all that was measured so far."""

    contestants: tuple[Contestant, Contestant]
    inputs: Path
    requests: int
    measurement: Measurement
    code: Path
    gpu: NvmlGpu | None
    patience: RunPatience | None
    gathered: Gathered = field(default_factory=Gathered)

    def launch(self, launch: int) -> None:
        """Start both processes and measure every kind of block that the job asks for."""
        started: dict[int, Worker] = {}
        measurement, gathered = self.measurement, self.gathered
        cpus = self._cpus()
        with ExitStack() as stack:
            # The side that starts first alternates: of two equal processes the later is a percent or two faster.
            for index in _order(launch):
                worker = Worker(self.contestants[index], self.inputs, measurement, self.code, cpus)
                started[index] = stack.enter_context(worker)
            workers = (started[0], started[1])
            for worker, side in zip(workers, gathered.sides, strict=True):
                side.warm_ups.append(_warm_up(worker, measurement))
                side.nice.append(worker.nice)
            # The same mix in all launches, so that their ratios can be compared.
            gathered.mix = gathered.mix or mix_size(workers, measurement, self.requests)
            gathered.requests = min(gathered.mix, *(worker.bound_requests for worker in workers))
            for kind in _kinds(measurement, on_gpu=self._on_gpu):
                measure = partial(self._pair, workers, kind, launch)
                measured = measure_launch(measure, measurement, gathered.ratios(kind), self.patience, len(cpus))
                gathered.launches.setdefault(kind, []).append(measured)
                if measured.disturbance:
                    break
            for worker, side in zip(workers, gathered.sides, strict=True):
                for name, value in worker.figures.items():
                    side.figures.setdefault(name, []).append(value)

    def _pair(self, workers: tuple[Worker, Worker], kind: Kind, launch: int, block: int) -> Pair:
        # The order alternates, so that a machine that slows down steadily favours neither side.
        order = _order(launch + block)
        return measure_pair(workers, order, self.measurement, kind, self.gpu, self.gathered.mix)

    def _cpus(self) -> tuple[int, ...]:
        """Return the processors that both sides are limited to: the least busy ones if fewer are needed than there are."""
        threads = max(side.settings.threads for side in self.contestants)
        if self._on_gpu or self.measurement.clients or threads >= usable_cores():
            return ()
        return least_busy_cpus(threads)

    @property
    def _on_gpu(self) -> bool:
        return any(side.settings.on_gpu for side in self.contestants)


def mix_size(workers: tuple[Worker, Worker], measurement: Measurement, requests: int) -> int:
    """Return the number of requests in a round: as many as both sides answer within a block, at least `block_count`."""
    size = min(measurement.block_count, requests)
    # On a GPU only a few requests are bound at once, so the round is timed with copies.
    kind: Kind = "latency" if all(worker.bound_requests == requests for worker in workers) else "end_to_end"
    while size < requests:
        wider = min(2 * size, requests)
        if any(worker.block(0.0, 1, kind, wider).samples.sum() > 1e3 * measurement.block_seconds for worker in workers):
            break
        size = wider
    return size


def _warm_up(worker: Worker, measurement: Measurement) -> WarmUp:
    def samples(seconds: float, count: int) -> Samples:
        # Each piece runs the same requests, since the pieces' medians are compared.
        return worker.block(seconds, count, mix=count).samples

    return warm_up(samples, measurement.warmup_seconds, measurement.warmup_limit_seconds)


def _order(turn: int) -> tuple[int, int]:
    return (0, 1) if turn % 2 == 0 else (1, 0)


def _kinds(measurement: Measurement, *, on_gpu: bool) -> tuple[Kind, ...]:
    kinds: list[Kind] = ["latency"]
    # On a GPU the copies to and from the device are part of the end-to-end time, whatever the job adds.
    if measurement.preprocess or measurement.postprocess or on_gpu:
        kinds.append("end_to_end")
    if measurement.clients:
        kinds.append("throughput")
    return tuple(kinds)

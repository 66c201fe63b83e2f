"""Frozen records of a measurement of speed and memory. Change one with `dataclasses.replace`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validators.records.measurements import Estimate

# Among the sizes of an operating point, for targets that generate: the tokens that a request adds to its prompt.
NEW_TOKENS = "new_tokens"
USUAL_NEW_TOKENS = 64


@dataclass(frozen=True)
class Conditions:
    """Conditions of the machine during the counted pairs of blocks; see docs/latency.md.

    `other_cores`, `stolen_cores` and `quota_throttled_cores` are the most that other processes, the hypervisor and a CPU quota
    took during a block, in cores.
    `canary_ratio` is the time of a fixed piece of arithmetic beside one block of a pair over that beside the other, in the
    worst pair.
    `frequency_mhz` is the lowest and the highest mean clock of the processors, `throttled` how often they were throttled:
    None where the kernel does not tell. `major_faults` and `involuntary_switches` are those of the measuring processes.
    `repeated` counts pairs that were measured again. `warmup_seconds` is the longest warm-up of baseline and variant, `warm`
    whether each of them ended with a stable time. `nice` is the priority of the measuring processes: -20 is the highest.
    """

    other_cores: float
    stolen_cores: float
    canary_ratio: float
    frequency_mhz: tuple[float, float] | None
    throttled: int | None
    major_faults: int
    involuntary_switches: int
    repeated: int
    warmup_seconds: tuple[float, float]
    warm: bool
    quota_throttled_cores: float = 0.0
    nice: int = 0


@dataclass(frozen=True)
class Throughput:
    """Requests that `clients` callers of one session get through at once; `ratio` is variant over baseline."""

    clients: int
    requests_per_s: float
    samples_per_s: float
    baseline_requests_per_s: float
    baseline_samples_per_s: float
    ratio: Estimate


@dataclass(frozen=True)
class EndToEnd:
    """Time of a request from the arrays as the data holds them to what the user's post-processing returns, in milliseconds.

    On a GPU the copies there and back are part of it, as they are not of `Latency`.
    `speedup` is baseline p50 / variant p50.
    """

    p50_ms: float
    baseline_p50_ms: float
    speedup: Estimate


@dataclass(frozen=True)
class Tail:
    """A high percentile of latency, by launches: geometric means over launches of each launch's percentile.

    `ms` is the variant's, in milliseconds; `ratio` is variant over baseline. Each is None if a launch has fewer than `needed`
    requests of a side that it reads. `requests` and `baseline_requests` count those of the smallest launch.
    """

    needed: int
    requests: int
    baseline_requests: int
    ms: Estimate | None = None
    ratio: Estimate | None = None


@dataclass(frozen=True)
class Latency:
    """Latency of a variant at one operating point, measured in turn with the baseline, one request at a time; milliseconds.

    `speedup` is baseline p50 / variant p50: the geometric mean over launches of the median over pairs of blocks. It has no
    bounds where `disturbance` says why the measurement is not to be judged by. A percentile that the count of samples
    cannot support is None.
    `peak_memory_mb` is the resident memory of the whole process while it answers, `load_peak_memory_mb` while it loads;
    `energy_mj` is energy a request in millijoules, of the GPU or else of the processor packages, where they tell: all that they
    spent meanwhile. `peak_gpu_memory_mb` is what the process held there.
    `ratios` has variant / baseline, with an interval over launches, of `load_ms`, `peak_memory_mb`, `load_peak_memory_mb` and,
    per request, `energy_j` and other counters; a counter that stood still in a launch is not there. Memory alone has bounds
    where there is a `disturbance`: another process does not disturb it. `load_ratio`, `memory_ratio` and `energy_ratio` repeat
    three of them, for readers of result documents.
    `request_ms` is the mean time for which a request occupies the session, with an interval over launches: of requests one at a
    time or, if throughput was measured, of its clients' together.
    `p95` and `p99` are the percentiles that gates judge; `p95_ms` and `p99_ms` are those of all requests together.
    Raw samples (milliseconds, float64) lie in `samples_path`: each block has whole rounds of the same `requests` requests,
    drawn from the evaluation data.
    """

    batch_size: int
    p50_ms: float
    p95_ms: float | None
    p99_ms: float | None
    count: int
    baseline_p50_ms: float
    baseline_p95_ms: float | None
    baseline_p99_ms: float | None
    speedup: Estimate
    pairs: int
    load_ms: float
    peak_memory_mb: float
    baseline_load_ms: float
    baseline_peak_memory_mb: float
    samples_path: Path
    dims: dict[str, int] = field(default_factory=dict)
    threads: int = 0
    launches: int = 1
    load_peak_memory_mb: float | None = None
    baseline_load_peak_memory_mb: float | None = None
    load_ratio: Estimate | None = None
    throughput: Throughput | None = None
    end_to_end: EndToEnd | None = None
    energy_mj: float | None = None
    baseline_energy_mj: float | None = None
    peak_gpu_memory_mb: float | None = None
    baseline_peak_gpu_memory_mb: float | None = None
    conditions: Conditions | None = None
    disturbance: str = ""
    requests: int = 1
    energy_ratio: Estimate | None = None
    request_ms: Estimate | None = None
    baseline_request_ms: Estimate | None = None
    p95: Tail | None = None
    p99: Tail | None = None
    memory_ratio: Estimate | None = None
    ratios: dict[str, Estimate] = field(default_factory=dict)


def cost_of_million(request_ms: Estimate, price_per_hour: float) -> Estimate:
    """Return the cost of a million requests, each of which occupies what costs `price_per_hour` for `request_ms`.

    >>> cost_of_million(Estimate(3.6, 1.8, 7.2), 2.0)
    Estimate(value=2.0, low=1.0, high=4.0)
    """
    each = 1e6 * price_per_hour / 3.6e6  # milliseconds in an hour
    low, high = (None if end is None else each * end for end in (request_ms.low, request_ms.high))
    return Estimate(each * request_ms.value, low, high)


def point_labels(latencies: Sequence[Latency]) -> tuple[str, ...]:
    """Return a short name for each operating point, with threads only if they differ: `b1`, `b1_sequence16`, `b8_t2`.

    >>> point_labels(())
    ()
    """
    several = len({latency.threads for latency in latencies}) > 1
    return tuple(
        "_".join(
            [
                f"b{latency.batch_size}",
                *(f"{axis}{size}" for axis, size in latency.dims.items()),
                *([f"t{latency.threads}"] if several else []),
            ]
        )
        for latency in latencies
    )

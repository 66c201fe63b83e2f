"""The frozen records of what was measured. Change one with `dataclasses.replace`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# In `Coverage.macs_by_kernel`: kernels that the runtime does not tell of.
UNNAMED = "not named by the provider"


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; the interval may be absent when the data give none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Coverage:
    """Multiply-accumulates by the kernel that ran them, read from the runtime's profile of one request.

    `macs_by_kernel` maps kernel (operator type) to MACs; `low_precision` are the kernels among them that compute in 8
    bits or fewer, or on 8-bit or 4-bit weights; `float_nodes` names the nodes with MACs that ran in float, largest first.
    """

    macs_by_kernel: dict[str, int]
    low_precision: tuple[str, ...]
    float_nodes: tuple[str, ...]
    providers: tuple[str, ...]

    @property
    def share(self) -> float:
        """The share of MACs, 0 to 1, that ran in low-precision kernels (0 for a model without any MACs).

        >>> Coverage({"MatMulIntegerToFloat": 300, "MatMul": 100}, ("MatMulIntegerToFloat",), ("scores",), ()).share
        0.75
        """
        return self._share(self.low_precision)

    @property
    def unknown(self) -> float:
        """The share of MACs, 0 to 1, in kernels of unknown precision: `share` is as much higher at most."""
        return self._share((UNNAMED,))

    def _share(self, kernels: Iterable[str]) -> float:
        total = sum(self.macs_by_kernel.values())
        return sum(self.macs_by_kernel.get(kernel, 0) for kernel in kernels) / total if total else 0.0


@dataclass(frozen=True)
class Accuracy:
    """A metric over the whole evaluation set, with the rows that it is reckoned from.

    `scores_path` holds float64 rows (`.npy`, shape `(n, k)`), each of `samples_a_row` samples, in order: of one column they are
    scores whose mean is judged. `noise_path` holds energies of signal and noise against the baseline's outputs (float64, shape
    `(samples, 2)`), and `sqnr` is their ratio in dB with a one-sided bound on either side, once it was judged; both are
    None for the baseline, and where the output is no floating-point value or is not kept.
    """

    metric: str
    value: float
    n: int
    scores_path: Path
    outputs_path: Path
    samples_a_row: int = 1
    noise_path: Path | None = None
    sqnr: Estimate | None = None


@dataclass(frozen=True)
class Flips:
    """How many of `n` rows are worse than the baseline's (`lost`), and how many better (`gained`); for right and wrong
    answers, those that only the baseline has right, and those that only the variant has."""

    lost: int
    gained: int
    n: int


@dataclass(frozen=True)
class Latency:
    """Latency of a variant at one batch size, measured in turn with the baseline; times in milliseconds.

    `speedup` is the geometric mean over pairs of blocks of baseline p50 / variant p50. A percentile that the count of
    samples cannot support is None. Raw samples (milliseconds, float64) lie in `samples_path`.
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


@dataclass(frozen=True)
class Clipping:
    """How much of one tensor a range cuts off.

    `low` and `high` are the ends of the range, `share` is the share of the tensor's values outside it, `sample_share` that
    of the samples with any such value, both 0 to 1. `nodes` are those that read the tensor.
    """

    tensor: str
    nodes: tuple[str, ...]
    low: float
    high: float
    share: float
    sample_share: float

    @property
    def place(self) -> str:
        """The tensor and who reads it, in words."""
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        return f"{self.tensor} (into {self.nodes[0]}{more})" if self.nodes else self.tensor


def worst_first(clipping: Iterable[Clipping]) -> tuple[Clipping, ...]:
    """The tensors by the share of values that their range cuts off, then by that of samples, most first."""
    return tuple(sorted(clipping, key=lambda tensor: (-tensor.share, -tensor.sample_share)))


@dataclass(frozen=True)
class Saturation:
    """What the fixed ranges of a variant cut off, worst tensor first, over `samples` samples of the reference."""

    tensors: tuple[Clipping, ...]
    samples: int

    @property
    def worst(self) -> Clipping | None:
        """The tensor that loses the largest share of its values; None for a variant that fixes no range."""
        return self.tensors[0] if self.tensors else None

"""The frozen records of what was measured. Change one with `dataclasses.replace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# In `Coverage.macs_by_kernel`: kernels that the runtime does not tell of.
UNNAMED = "not named by the provider"
# In 8 bits or fewer; in 16; wider; not told by the runtime.
Precision = Literal["low", "half", "float", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; the interval may be absent when the data give none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class KernelTime:
    """A kernel as the runtime's profile names it: its operator type, provider, and microseconds of one request (median)."""

    name: str
    kind: str
    provider: str
    microseconds: float


@dataclass(frozen=True)
class KernelProfile:
    """The kernels of one request, in the order in which they first ran."""

    kernels: tuple[KernelTime, ...]


@dataclass(frozen=True)
class MultipliedNode:
    """A node that multiplies: the kernel that ran it, by name, and the multiply-accumulates of one request."""

    name: str
    kernel: str
    macs: int


@dataclass(frozen=True)
class Coverage:
    """What ran in low precision: multiply-accumulates by kernel and time by kernel, read from the runtime's profile.

    `macs_by_kernel` maps kernel to MACs of one request; a kernel is an operator type, with ` on <provider>` behind it where
    another provider ran it than the one asked for. `low_precision` are the kernels that compute in 8 bits or fewer, or on
    8-bit or 4-bit weights, `half_precision` those in 16 bits; `half_nodes` names the nodes with MACs that ran in the
    latter, `float_nodes` those that ran in neither, largest first.

    `us_by_kernel` are microseconds of one request; empty where the runtime tells no times, and then `unfused` and
    `inserted` are not known either. `unfused` are QuantizeLinear and DequantizeLinear that ran although the file meant them
    to go into other kernels, `inserted` the casts, transposes and reorders beyond those of the baseline. `kernels_path` is
    the list of all kernels with their times, as JSON. `products` are the nodes with MACs, in the order in which they ran.
    """

    macs_by_kernel: dict[str, int]
    low_precision: tuple[str, ...]
    float_nodes: tuple[str, ...]
    providers: tuple[str, ...]
    half_precision: tuple[str, ...] = ()
    half_nodes: tuple[str, ...] = ()
    us_by_kernel: dict[str, float] = field(default_factory=dict)
    unfused: tuple[KernelTime, ...] = ()
    inserted: tuple[KernelTime, ...] = ()
    kernels_path: Path | None = None
    products: tuple[MultipliedNode, ...] = ()

    def precision(self, kernel: str) -> Precision:
        """What a kernel computes in, by its name.

        >>> Coverage({}, ("QGemm",), (), ()).precision("QGemm"), Coverage({}, ("QGemm",), (), ()).precision("Gemm")
        ('low', 'float')
        """
        if kernel in self.low_precision:
            return "low"
        if kernel in self.half_precision:
            return "half"
        return "unknown" if kernel == UNNAMED else "float"

    @property
    def share(self) -> float:
        """The share of MACs, 0 to 1, that ran in low-precision kernels (0 for a model without any MACs).

        >>> Coverage({"MatMulIntegerToFloat": 300, "MatMul": 100}, ("MatMulIntegerToFloat",), ("scores",), ()).share
        0.75
        """
        return _share(self.macs_by_kernel, self.low_precision)

    @property
    def half_share(self) -> float:
        """The share of MACs, 0 to 1, that ran in 16 bits or fewer."""
        return _share(self.macs_by_kernel, (*self.low_precision, *self.half_precision))

    @property
    def unknown(self) -> float:
        """The share of MACs, 0 to 1, in kernels of unknown precision: `share` is as much higher at most."""
        return _share(self.macs_by_kernel, (UNNAMED,))

    @property
    def time_share(self) -> float | None:
        """The share of kernel time, 0 to 1, in low-precision kernels; None where the runtime tells no times.

        >>> Coverage({}, ("QGemm",), (), (), us_by_kernel={"QGemm": 30.0, "Softmax": 10.0}).time_share
        0.75
        """
        return _share(self.us_by_kernel, self.low_precision) if self.us_by_kernel else None

    @property
    def half_time_share(self) -> float | None:
        """The share of kernel time, 0 to 1, in 16 bits or fewer; None where the runtime tells no times."""
        kernels = (*self.low_precision, *self.half_precision)
        return _share(self.us_by_kernel, kernels) if self.us_by_kernel else None

    @property
    def unfused_time(self) -> float | None:
        """The share of kernel time, 0 to 1, that `unfused` took; None where the runtime tells no times."""
        return self._time_of(self.unfused)

    @property
    def inserted_time(self) -> float | None:
        """The share of kernel time, 0 to 1, that `inserted` took; None where the runtime tells no times."""
        return self._time_of(self.inserted)

    @property
    def inserted_counts(self) -> dict[str, int]:
        """How many kernels were inserted, by kind.

        >>> Coverage({}, (), (), (), inserted=(KernelTime("c", "Cast", "CPUExecutionProvider", 2.0),)).inserted_counts
        {'Cast': 1}
        """
        return dict(Counter(kernel.kind for kernel in self.inserted))

    def _time_of(self, kernels: Iterable[KernelTime]) -> float | None:
        total = sum(self.us_by_kernel.values())
        return sum(kernel.microseconds for kernel in kernels) / total if total else None


def _share(amounts: Mapping[str, float], kernels: Iterable[str]) -> float:
    total = sum(amounts.values())
    return sum(amounts.get(kernel, 0) for kernel in kernels) / total if total else 0.0


@dataclass(frozen=True)
class Answers:
    """What one output gave for one batch of different samples, run several times.

    `shape` is that of the batch; None for what is no tensor of numbers, of which no more is known. `is_constant` says that
    all samples got the same answer (False where axis 0 is not that of samples). `spread` is the largest absolute difference
    between two runs: 0 if all are the same to the bit, infinite if they are finite in different places. `bad_samples` are
    those with NaN or Inf in any run; an output without an axis of samples is one sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    is_constant: bool = False
    spread: float = 0.0
    bad_samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sanity:
    """What all outputs of the baseline and of a variant gave for the same batch of `samples` samples, run `runs` times."""

    samples: int
    runs: int
    baseline: tuple[Answers, ...]
    variant: tuple[Answers, ...]


@dataclass(frozen=True)
class Accuracy:
    """A metric over the whole evaluation set, with the rows that it is reckoned from.

    `scores_path` holds float64 rows (`.npy`, shape `(n, k)`), each of `samples_a_row` samples, in order: of one column they are
    scores whose mean is judged. `finite_path` holds the share of each sample's outputs that are neither NaN nor Inf (float64,
    shape `(samples,)`). `noise_path` holds energies of signal and noise against the baseline's outputs (float64, shape
    `(samples, 2)`), and `sqnr` is their ratio in dB with a one-sided bound on either side, once it was judged; both are
    None for the baseline, and where the output is no floating-point value or has no noise. `outputs_path` holds the outputs
    themselves, of a baseline alone, where they are small and variants are compared with them. `warning` says that a baseline is
    at chance level.
    """

    metric: str
    value: float
    n: int
    scores_path: Path
    finite_path: Path
    samples_a_row: int = 1
    noise_path: Path | None = None
    sqnr: Estimate | None = None
    outputs_path: Path | None = None
    warning: str = ""


@dataclass(frozen=True)
class Flips:
    """How many of `n` rows are worse than the baseline's (`lost`), and how many better (`gained`); for right and wrong
    answers, those that only the baseline has right, and those that only the variant has."""

    lost: int
    gained: int
    n: int


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


@dataclass(frozen=True)
class SliceDrop:
    """The drop in one group of a slice: `n` samples whose `column` says `group`; bounds hold for all groups at once."""

    column: str
    group: str
    n: int
    drop: Estimate
    method: str = ""
    # How many clusters the samples are in; 0 where the job names no groups.
    clusters: int = 0

    @property
    def name(self) -> str:
        """The group in words.

        >>> SliceDrop("language", "en", 40, Estimate(0.0)).name
        'language en'
        """
        return f"{self.column} {self.group}"

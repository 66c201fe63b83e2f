"""Frozen records of measurements. Change one with `dataclasses.replace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# Key in `Coverage.macs_by_kernel` of kernels that the runtime does not report.
UNNAMED = "not named by the provider"
# 8 bits or fewer; 16 bits; wider; not reported by the runtime.
Precision = Literal["low", "half", "float", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; the interval may be absent when the data give none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RangeSpread:
    """A tensor whose clipping range moves with the calibration draw: `ratio` is its widest range over its narrowest."""

    tensor: str
    ratio: float


@dataclass(frozen=True)
class Draws:
    """A candidate made again from other draws of its calibration samples, each judged on all evaluation samples.

    `drop` is the drop of the candidate itself and `drops` those of the draws, against the baseline and in the units of
    `max_drop`. `spread` is their standard deviation, with bounds at the one-sided `confidence`. It is free of `noise`, the
    standard deviation that chance in the evaluation samples adds. `samples` counts the calibration samples of a draw. `ranges`
    are the tensors whose ranges move most.
    """

    drop: float
    drops: tuple[float, ...]
    spread: Estimate
    noise: float
    confidence: float
    samples: int
    ranges: tuple[RangeSpread, ...] = ()


@dataclass(frozen=True)
class KernelTime:
    """A kernel of the runtime's profile: name, operator type, provider, and median microseconds in one request."""

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
    """Coverage of a variant: multiply-accumulates and time by kernel, read from the runtime's profile.

    `macs_by_kernel` maps a kernel to its MACs in one request. A kernel is an operator type, with the suffix ` on <provider>` if
    a provider other than the requested one ran it. `low_precision` lists the kernels that compute in 8 bits or fewer, or on
    8-bit or 4-bit weights, `half_precision` those in 16 bits. `half_nodes` names the nodes with MACs that ran in 16 bits,
    `float_nodes` those that ran in neither, largest first.

    `us_by_kernel` holds microseconds of one request. It is empty if the runtime reports no times; `unfused` and `inserted` are
    then unknown too. `unfused` lists QuantizeLinear and DequantizeLinear nodes that ran although the file intended them to be
    fused, `inserted` the casts, transposes and reorders beyond those of the baseline. `kernels_path` is a JSON list of all
    kernels with their times. `products` lists the nodes with MACs in execution order. `without_form` lists the kernels that
    multiply floats because the provider has none in low precision for their operator.
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
    without_form: tuple[str, ...] = ()

    def precision(self, kernel: str) -> Precision:
        """Return the precision of a kernel, by its name.

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
        """Share of MACs, 0 to 1, that ran in low-precision kernels (0 for a model without MACs).

        >>> Coverage({"MatMulIntegerToFloat": 300, "MatMul": 100}, ("MatMulIntegerToFloat",), ("scores",), ()).share
        0.75
        """
        return _share(self.macs_by_kernel, self.low_precision)

    @property
    def possible(self) -> float:
        """Share of MACs, 0 to 1, of operators for which the provider has a low-precision kernel.

        >>> Coverage({"QGemm": 300, "GRU": 100}, ("QGemm",), ("gru",), (), without_form=("GRU",)).possible
        0.75
        """
        return 1 - _share(self.macs_by_kernel, self.without_form)

    @property
    def nodes_without_form(self) -> tuple[MultipliedNode, ...]:
        """Nodes that ran in float because the provider has no low-precision kernel for their operator, largest first."""
        found = [node for node in self.products if node.kernel in self.without_form]
        return tuple(sorted(found, key=lambda node: -node.macs))

    @property
    def half_share(self) -> float:
        """Share of MACs, 0 to 1, that ran in 16 bits or fewer."""
        return _share(self.macs_by_kernel, (*self.low_precision, *self.half_precision))

    @property
    def unknown(self) -> float:
        """Share of MACs, 0 to 1, in kernels of unknown precision: the true `share` may be higher by up to this."""
        return _share(self.macs_by_kernel, (UNNAMED,))

    @property
    def time_share(self) -> float | None:
        """Share of kernel time, 0 to 1, in low-precision kernels; None if the runtime reports no times.

        >>> Coverage({}, ("QGemm",), (), (), us_by_kernel={"QGemm": 30.0, "Softmax": 10.0}).time_share
        0.75
        """
        return _share(self.us_by_kernel, self.low_precision) if self.us_by_kernel else None

    @property
    def half_time_share(self) -> float | None:
        """Share of kernel time, 0 to 1, in 16 bits or fewer; None if the runtime reports no times."""
        kernels = (*self.low_precision, *self.half_precision)
        return _share(self.us_by_kernel, kernels) if self.us_by_kernel else None

    @property
    def unfused_time(self) -> float | None:
        """Share of kernel time, 0 to 1, of `unfused`; None if the runtime reports no times."""
        return self._time_of(self.unfused)

    @property
    def inserted_time(self) -> float | None:
        """Share of kernel time, 0 to 1, of `inserted`; None if the runtime reports no times."""
        return self._time_of(self.inserted)

    @property
    def inserted_counts(self) -> dict[str, int]:
        """Number of inserted kernels, by kind.

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
    """Summary of one output for one batch of different samples, run several times.

    `shape` is that of the batch; None for an output that is not a numeric tensor, whose other fields keep their defaults. Of
    the baseline, a size is None where batches of other samples of the same input shapes have another one: it depends on values,
    like the number of boxes after non-maximum suppression.
    `is_constant` means that all samples got the same answer (False if axis 0 is not the sample axis). `spread` is the largest
    absolute difference between two runs: 0 if all are bitwise equal, infinite if they are finite at different positions. `peak`
    is the largest finite magnitude of the first run. `bad_samples` are those with NaN or Inf in any run; an output without a
    sample axis counts as one sample.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None = None
    is_constant: bool = False
    spread: float = 0.0
    peak: float = 0.0
    bad_samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sanity:
    """Answers of all outputs of baseline and variant for the same batch of `samples` samples, run `runs` times."""

    samples: int
    runs: int
    baseline: tuple[Answers, ...]
    variant: tuple[Answers, ...]


@dataclass(frozen=True)
class Agreement:
    """Greedy answers of `new_tokens` tokens beside the baseline's: of each prompt the share before the first other token.

    `clusters` has the number of each prompt's cluster; it is empty where prompts are independent. `mean` is the mean share with
    a one-sided bound on either side, set when it is judged.
    """

    new_tokens: int
    shares: tuple[float, ...]
    clusters: tuple[int, ...] = ()
    mean: Estimate | None = None


@dataclass(frozen=True)
class Accuracy:
    """A metric over evaluation samples, with the rows from which it is computed.

    The files hold float64 rows (`.npy`) of the whole evaluation set in order, NaN for those that were not measured.
    `scores_path` has a row `(k,)` for each `samples_a_row` samples; a single column holds scores whose mean is judged.
    `finite_path` holds the share of each sample's outputs that are neither NaN nor Inf, shape `(samples,)`. `noise_path` holds
    energies of signal and noise against the baseline's outputs, shape `(samples, 2)`. `sqnr` is their ratio in dB with a
    one-sided bound on either side, set when it is judged. Both are None for the baseline, and if the output is not
    floating-point or has no noise. `outputs_path` holds a baseline's outputs if they are small and variants are compared with
    them. `warning` says that a baseline is at chance level.
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
    """Counts of rows, of `n`, that are worse than the baseline's (`lost`) or better (`gained`); for right and wrong
    answers, those that only the baseline has right, and those that only the variant has."""

    lost: int
    gained: int
    n: int


@dataclass(frozen=True)
class Clipping:
    """Clipping of one tensor by a range.

    `low` and `high` are the ends of the range. `share` is the share of the tensor's values outside the range, `sample_share`
    that of samples with any such value, both 0 to 1. `nodes` read the tensor.
    """

    tensor: str
    nodes: tuple[str, ...]
    low: float
    high: float
    share: float
    sample_share: float

    @property
    def place(self) -> str:
        """Description of the tensor and its readers."""
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        return f"{self.tensor} (into {self.nodes[0]}{more})" if self.nodes else self.tensor


def worst_first(clipping: Iterable[Clipping]) -> tuple[Clipping, ...]:
    """Sort tensors by the share of clipped values, then of clipped samples, largest first."""
    return tuple(sorted(clipping, key=lambda tensor: (-tensor.share, -tensor.sample_share)))


@dataclass(frozen=True)
class Saturation:
    """Clipping by the fixed ranges of a variant, worst tensor first, over `samples` samples of the reference."""

    tensors: tuple[Clipping, ...]
    samples: int

    @property
    def worst(self) -> Clipping | None:
        """Tensor with the largest share of clipped values; None for a variant without fixed ranges."""
        return self.tensors[0] if self.tensors else None


@dataclass(frozen=True)
class SliceDrop:
    """The drop in one group of a slice: the `n` samples with `group` in `column`; bounds hold for all groups jointly."""

    column: str
    group: str
    n: int
    drop: Estimate
    method: str = ""
    # Number of clusters of the samples; 0 if the job names no groups.
    clusters: int = 0

    @property
    def name(self) -> str:
        """Column and group, as text.

        >>> SliceDrop("language", "en", 40, Estimate(0.0)).name
        'language en'
        """
        return f"{self.column} {self.group}"

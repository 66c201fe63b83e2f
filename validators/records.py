"""The frozen records that stages pass to one another. Change one with `dataclasses.replace`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from validators.errors import RefusalKind
from validators.libraries import Libraries

# In `Coverage.macs_by_kernel`: kernels that the runtime does not tell of.
UNNAMED = "not named by the provider"

Outcome = Literal["pass", "fail", "inconclusive"]
CandidateOutcome = Literal["passed", "failed", "inconclusive", "refused"]


@dataclass(frozen=True)
class Source:
    """The registered model version, or file, that a run starts from, as one checked ONNX file."""

    uri: str
    name: str
    version: str | None
    digest: str
    onnx_path: Path
    flavor: Literal["onnx", "pytorch", "file"]
    run_id: str | None = None
    parity_max_abs: float | None = None


@dataclass(frozen=True)
class DataFile:
    """One data file of the job: where it is, the digest of its content, and how many samples it holds."""

    path: Path
    digest: str
    rows: int


@dataclass(frozen=True)
class Inventory:
    """What the target consists of. Latency is comparable, and a variant approved, only where `device_key` is equal."""

    target: str
    cpu: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    platform: str
    python: str
    runtimes: dict[str, str]
    providers: tuple[str, ...]
    load_average: float

    @property
    def device_key(self) -> str:
        """The part of the inventory that an approval is tied to: processor, instruction sets, cores, runtime version."""
        runtime = ",".join(f"{name} {version}" for name, version in sorted(self.runtimes.items()))
        return f"{self.cpu} [{' '.join(self.isa)}] x{self.cores}; {runtime}"


@dataclass(frozen=True)
class SessionSettings:
    """How a runtime must load the artifact: part of the variant, since it changes speed and numbers."""

    provider: str
    threads: int
    optimization: Literal["basic", "all"] = "all"
    entries: dict[str, str] = field(default_factory=dict)
    libraries: Libraries = ()

    def without_spinning(self) -> SessionSettings:
        """The same, with threads that sleep when they wait: for what is not timed, and must leave the cores to others."""
        return replace(self, entries=self.entries | {"session.intra_op.allow_spinning": "0"})


@dataclass(frozen=True)
class Variant:
    """The artifact that a candidate made from a source.

    `changes` counts what the pass did, by description; `notes` says what a reader should know.
    """

    candidate: str
    path: Path
    digest: str
    size_bytes: int
    session: SessionSettings
    is_simulated: bool = False
    changes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """The recorded reason why a candidate made no variant or was not measured."""

    kind: RefusalKind
    reason: str


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
    """A metric over the whole evaluation set; `scores_path` holds one float64 score a sample (`.npy`, shape `(n,)`)."""

    metric: str
    value: float
    n: int
    scores_path: Path
    outputs_path: Path


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
class Verdict:
    """The outcome of one gate with its evidence.

    `direction` says on which side of `bound` the value must lie; `low` and `high` are one-sided bounds at `confidence`,
    absent where the value is exact.
    """

    gate: str
    outcome: Outcome
    value: float | None
    bound: float
    direction: Literal["at_most", "at_least"]
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    n: int | None = None
    method: str = "exact"
    reason: str = ""


@dataclass(frozen=True)
class Check:
    """One check of the calibration data: what was seen, what was expected, what to do about it."""

    name: str
    passed: bool
    severity: Literal["critical", "warning"]
    found: str
    expected: str
    fix: str


@dataclass(frozen=True)
class CalibrationVerdict:
    """What the checks of the calibration data came to; `page` is the Data Docs page of the checkpoint.

    `figures` are the numbers behind the checks that are worth watching from run to run.
    """

    outcome: Literal["accepted", "accepted_with_warnings", "refused"]
    checks: tuple[Check, ...]
    page: Path
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass, critical ones first."""
        return tuple(sorted((c for c in self.checks if not c.passed), key=lambda check: check.severity))


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
class Trial:
    """All that is known of one candidate: refused, or made and measured, and then judged."""

    candidate: str
    outcome: CandidateOutcome | None = None
    refusal: Refusal | None = None
    variant: Variant | None = None
    accuracy: Accuracy | None = None
    drop: Estimate | None = None
    coverage: Coverage | None = None
    saturation: Saturation | None = None
    latencies: tuple[Latency, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    cached: bool = False
    seconds: float = 0.0

    @property
    def latency(self) -> Latency | None:
        """The latency at the first batch size: the one that gates and objective look at."""
        return self.latencies[0] if self.latencies else None


@dataclass(frozen=True)
class Champion:
    """The promoted variant of a model for one target, as the registry holds it."""

    name: str
    version: str
    alias: str
    digest: str
    source_digest: str
    candidate: str
    previous: str | None = None

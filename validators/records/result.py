"""The result document that `quantgate run --result FILE` writes; its JSON Schema is docs/result.schema.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from validators.records.generation import DecoderBytes
from validators.records.latencies import Latency
from validators.records.measurements import Draws, Estimate, Flips
from validators.records.run import (
    AbsentEngine,
    CandidateOutcome,
    ChampionResult,
    CheckResult,
    Proof,
    RefusalResult,
    SourceResult,
)
from validators.records.verdicts import Recovery, SignOffResult, Verdict
from validators.targets import DEFAULT_TARGET

RunOutcome = Literal[
    "promoted", "winner", "no_variant", "accepted", "refused", "awaiting_approval", "rejected", "error"
]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class CalibrationResult(_Document):
    """Verdict on the calibration data."""

    outcome: Literal["accepted", "accepted_with_warnings", "refused"]
    failed_checks: list[CheckResult]
    passed_checks: list[CheckResult] = []
    figures: dict[str, float] = {}
    """The numbers behind the checks, by name; shares from 0 to 1."""
    page: str | None = None
    """Path of the page with all checks."""


class BaselineResult(_Document):
    """The source at its own precision on the same device; latencies in milliseconds at the first batch size."""

    engine: str = DEFAULT_TARGET
    """Engine that ran the source; speedups are relative to it."""
    metric: str
    value: float | None
    """Null where it is not finite: `sqnr` is held against the baseline itself."""
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    size_bytes: int
    decoder: DecoderBytes | None = None
    """Bytes of the weights and of the cache; null unless the source is a decoder."""
    warning: str | None = None
    """Why little or nothing can be concluded from the drops of variants: the baseline is at chance level, or evaluation samples
    are copies; null otherwise."""
    copies: int = 0
    """Evaluation samples (or pairs, or sequences) that repeat the inputs of others. Gates count each with its copies once."""


class SliceResult(_Document):
    """The drop in one group of a slice; its bounds hold for all groups at once."""

    column: str
    group: str
    n: int
    metric_drop: Estimate | None


class ConfirmedResult(_Document):
    """Confirmation of a candidate: accuracy on samples that did not choose it, and a new latency measurement.

    Speedup and latency are null if it does not pass on these samples.
    """

    n: int
    confidence: float
    """One-sided confidence of each bound: the gates' own, corrected for the candidates that may be tried."""
    baseline_value: float | None
    metric_value: float | None
    metric_drop: Estimate | None
    slices: list[SliceResult] = []
    speedup_p50: Estimate | None
    latency_p50_ms: float | None


class CostResult(_Document):
    """Cost of a million requests at `measurement.price_per_hour`; the baseline was measured in turn with the candidate."""

    per_million: Estimate
    baseline_per_million: Estimate


class CandidateResult(_Document):
    """One candidate; what was not measured is null."""

    name: str
    outcome: CandidateOutcome
    refusal: RefusalResult | None
    proof: Proof = "measured"
    """`measured` where it will run; `simulated` by a runtime without kernels for it; `aot-checked`: an engine was built for
    another device and looked at, its accuracy simulated. Only what was measured is promoted."""
    metric_value: float | None
    metric_drop: Estimate | None
    """Positive where it is worse than the baseline; null also for `sqnr`, which has none."""
    flips: Flips | None = None
    """How many evaluation samples (or pairs) are worse and how many better than the baseline's."""
    slices: list[SliceResult] = []
    """The groups that `data.slices` names, by their upper bounds, worst first."""
    sqnr_db: Estimate | None = None
    """The signal-to-quantization-noise ratio of the judged output against the baseline's; null where it is infinite, too."""
    agreement: Estimate | None = None
    """The mean share of a decoder's greedy answer before its first token that is not the baseline's; null without prompts."""
    speedup_p50: Estimate | None
    speedup_fp16: Estimate | None = None
    """Of p50 latency in turn with the float16 candidate, on a GPU and where the job has one."""
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    cost: CostResult | None = None
    """At the first operating point; null without a price."""
    size_bytes: int | None
    peak_memory_mb: float | None
    coverage_macs: float | None
    coverage_time: float | None = None
    """The share of kernel time in low-precision kernels; null where the runtime tells no times, as the next two."""
    unfused: list[str] | None = None
    """Quantize and dequantize kernels that ran although the file meant them to be fused into others, by name."""
    inserted: dict[str, int] | None = None
    """Casts, transposes, reorders and copies that ran beyond those of the baseline, by kind."""
    saturation_max: float | None = None
    """The largest share of a tensor's values on the reference that its fixed range cuts off; null where none is fixed."""
    changes: dict[str, int] = {}
    """Changes of the graph by the pass, with counts, including the parts that recovery left in float."""
    latencies: list[Latency] = []
    """Speed, memory and loading at every operating point of the job; the first is the one above."""
    decoder: DecoderBytes | None = None
    """Bytes of the weights and of the cache; null unless it is a decoder."""
    verdicts: list[Verdict]
    confirmed: ConfirmedResult | None = None
    """Null for a candidate that was not held against the confirmation samples."""
    draws: Draws | None = None
    """Null unless it was made again from other draws of the calibration samples (`calibration.draws`)."""
    copies: list[str] = []
    """Later candidates of the job that made the same variant: it is measured and judged once for all of them."""
    cached: bool
    """Whether everything about it came from the store and nothing was made or measured anew."""


class ErrorResult(_Document):
    """Error that ended the run."""

    kind: str
    found: str
    expected: str
    fix: str


class SecondsResult(_Document):
    """Wall-clock seconds; `overhead` is the total less the work of the steps."""

    total: float
    overhead: float
    by_step: dict[str, float]


class FootprintResult(_Document):
    """Memory and disk that the run took, in MB of 10^6 bytes, on the machine that ran the flow."""

    peak_memory_mb: float
    """Resident memory of the run's process and of those that it started, at its highest."""
    disk_mb: float
    """Files written into the store, with temporary ones, at their highest; what was there before is not counted."""


class Result(_Document):
    """Result of a run."""

    schema_version: Literal["1"] = "1"
    outcome: RunOutcome
    reason: str
    """The outcome in one sentence."""
    source: SourceResult | None = None
    target: str | None = None
    inventory: dict[str, Any] | None = None
    absent_engines: list[AbsentEngine] = []
    """Engines of the class of devices that do not run here and were left out, each with the reason and the fix."""
    calibration: CalibrationResult | None = None
    baseline: BaselineResult | None = None
    candidates: list[CandidateResult] = []
    recovery: Recovery | None = None
    """Search of other forms of a candidate's parts; null if none was tried."""
    chosen: str | None = None
    sign_off: SignOffResult | None = None
    """Null where the job has nobody asked, or there was nothing to ask."""
    champion: ChampionResult | None = None
    report: str | None = None
    """Path of the HTML report."""
    error: ErrorResult | None = None
    footprint: FootprintResult | None = None
    """Null for a run that ended before anything was measured, and while it waits for an approval."""
    seconds: SecondsResult

    @property
    def winner(self) -> CandidateResult | None:
        """The chosen candidate, if any."""
        return next((one for one in self.candidates if one.name == self.chosen), None)

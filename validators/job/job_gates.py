"""The job's gates, which a variant must pass to be promoted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from validators.job.candidate_name import TargetName
from validators.job.settings_base import Settings

# For metrics without units: 2 points of accuracy, or of the explained variance.
DEFAULT_MAX_DROP = 0.02
Ratio = Annotated[float, Field(gt=0)]


class LoggedGate(Settings):
    """Bound on a metric that the job's own step logs to the candidate's run in MLflow: either `at_most` or `at_least`."""

    metric: str
    """Key of the metric; the last value logged under it counts."""
    at_most: float | None = None
    """Largest value that passes."""
    at_least: float | None = None
    """Smallest value that passes."""

    @model_validator(mode="after")
    def _has_one_bound(self) -> LoggedGate:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("give either `at_most` or `at_least`")
        return self


class Gates(Settings):
    """Gates that a variant must pass to be promoted. A gate that is null is not applied."""

    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Largest drop of the metric against the baseline, in the metric's own units (0.02 of accuracy is 2 points). For perplexity
    it is a rise of the loss in nats per token: 0.02 allows exp(0.02), 2 % more perplexity. null means 0.02. `mse`, `mae` and
    your own functions have units, so no default suits them: they need a number here."""
    max_slice_drop: Annotated[float, Field(ge=0)] | None = 0.05
    """Largest drop in the worst of the slices that `data.slices` names, with a bound that holds for all of them at once.
    Metrics with units need a number (or null) here too, if the job names slices."""
    min_metric: float | None = None
    """Smallest value of the metric itself, for metrics of which higher values are better: 0.75 of accuracy, whatever the
    baseline has."""
    max_metric: float | None = None
    """Largest value of the metric itself, for metrics of which lower values are better, such as `mse` or `wer`."""
    min_sqnr_db: float | None = None
    """Smallest signal-to-quantization-noise ratio of the judged output against the baseline's, in decibels."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """One-sided confidence of every gate that is computed from samples."""
    min_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """For targets of decoders: smallest mean share of a greedy answer before its first token that is not the baseline's."""
    min_speedup: Ratio | dict[TargetName, Ratio] | None = 1.05
    """Smallest ratio of the p50 latency of the baseline, in the engine of the job's `baseline`, to the variant's, at the first
    batch size: one number, or one per target."""
    min_speedup_fp16: Ratio | None = None
    """Smallest ratio of the float16 candidate's p50 latency to the variant's, measured in turn on a GPU. The gate does not
    apply to float16 itself, nor to jobs without a float16 candidate."""
    max_p95_ratio: Ratio | None = None
    """Largest ratio of the variant's p95 latency to the baseline's, in the same launches, at the first batch size. Every launch
    needs 130 requests of each side: `measurement.block_count` times `measurement.blocks`."""
    max_p99_ratio: Ratio | None = None
    """The same for p99, for which every launch needs 662 requests."""
    max_p95_ms: Annotated[float, Field(gt=0)] | None = None
    """Largest p95 latency of the variant, in milliseconds, at the first batch size; 130 requests in every launch."""
    max_p99_ms: Annotated[float, Field(gt=0)] | None = None
    """Largest p99 latency of the variant, in milliseconds, at the first batch size; 662 requests in every launch."""
    max_draw_spread: Annotated[float, Field(gt=0)] | None = None
    """Largest standard deviation of the metric over other draws of the calibration samples, in the units of `max_drop`. It
    needs `calibration.draws`, and does not apply to candidates that no calibration sample influences."""
    min_coverage: Annotated[float, Field(ge=0, le=1)] | None = 0.5
    """Smallest share of multiply-accumulates in low-precision kernels, for candidates below 32-bit; for FP16, in 16 bits."""
    min_time_coverage: Annotated[float, Field(ge=0, le=1)] | None = None
    """Smallest share of kernel time in low-precision kernels, for the same candidates; all kernels count, such as Softmax in
    float."""
    max_size_ratio: Ratio | None = 1.05
    """Largest ratio of the variant's bytes to the baseline's."""
    max_memory_ratio: Ratio | None = None
    """Largest ratio of the variant's peak memory during inference to the baseline's."""
    max_load_ratio: Ratio | None = None
    """Largest ratio of the variant's load time to the baseline's."""
    max_energy_ratio: Ratio | None = None
    """Largest ratio of the variant's energy per request to the baseline's, at the first batch size, of the GPU or the processor
    packages; inconclusive where these report no energy."""
    max_cost_per_million: Annotated[float, Field(gt=0)] | None = None
    """Largest cost of a million requests, in the currency of `measurement.price_per_hour`, which it needs."""
    max_compile_seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest time, in seconds, for which `torch-inductor` compiles a variant. Variants that are not compiled pass."""
    logged: tuple[LoggedGate, ...] = ()
    """Bounds on metrics that the job's own step (`step`) logs."""

    @model_validator(mode="after")
    def _metrics_are_named_once(self) -> Gates:
        names = [gate.metric for gate in self.logged]
        if len(set(names)) < len(names):
            raise ValueError("`logged` names a metric twice")
        return self

    @property
    def drop_bound(self) -> float:
        """Largest drop that passes.

        >>> Gates().drop_bound, Gates(max_drop=0.0).drop_bound
        (0.02, 0.0)
        """
        return DEFAULT_MAX_DROP if self.max_drop is None else self.max_drop

    def speedup_bound(self, target: str) -> float | None:
        """Return the smallest speedup that passes on a target; None if the job sets no such gate.

        >>> Gates(min_speedup={"ort-cpu": 1.2}).speedup_bound("ort-cpu"), Gates(min_speedup=1.1).speedup_bound("tensorrt")
        (1.2, 1.1)
        """
        bound = self.min_speedup
        return {str(name): ratio for name, ratio in bound.items()}.get(target) if isinstance(bound, dict) else bound

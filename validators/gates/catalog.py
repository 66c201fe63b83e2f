"""The catalogue of gates: judging, approval, the HTML pages and the reference documentation read it.

To add a gate, write a judge in a module of this package and add a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from validators.gates import accuracy, coverage, resource, sanity, slices
from validators.gates.agreement import judge_agreement
from validators.gates.champion import judge_rolled_back
from validators.gates.draws import judge_draw_spread
from validators.gates.read_back import tolerance_of
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.job.metric_facts import metric_facts
from validators.records.artifact_paths import BESIDE_FP16, KERNELS, LATENCY, NOISE, SCORES
from validators.records.journal import RolledBack
from validators.records.latencies import Latency
from validators.records.measurements import Agreement, Coverage, Draws, Estimate, Flips, Sanity, SliceDrop
from validators.records.run import Variant
from validators.records.verdicts import Verdict
from validators.targets import is_on_gpu

# Selects how the pages format a gate's values; they show no number for "yes or no".
Unit = Literal["drop", "decibels", "ratio", "share", "milliseconds", "metric", "by method", "number", "yes or no"]
# The independent units of a gate's interval: samples or their clusters, or launches. Figures that are "exact" are counted, and
# the same each time. Those measured "once" have no interval, so that a candidate at the bound passes by chance.
Units = Literal["clusters", "launches", "draws", "exact", "once"]
PREFIX_CONFIRMED, PREFIX_LOGGED = "confirmed_", "logged."


@dataclass(frozen=True)
class AnswerFigures:
    """Figures of a candidate's answers on one set of samples, compared with the baseline's.

    `rows` counts rows of the metric; each row is one sample or one pair. `units` counts those rows, or their clusters if the
    job names groups or samples are copies; `noise_units` counts samples, or their clusters; `counted` names the unit.
    `newly_bad` of `samples` have NaN or Inf where the baseline's outputs are finite. `drop` is None for a metric without one.
    `bounds` is `value` with its interval, if a gate of the job judges it.
    """

    rows: int
    units: int
    samples: int
    noise_units: int
    counted: str
    baseline_value: float
    value: float
    drop: Estimate | None
    drop_method: str
    flips: Flips | None
    sqnr: Estimate | None
    sqnr_method: str
    slices: tuple[SliceDrop, ...]
    newly_bad: int
    bounds: Estimate | None = None
    bounds_method: str = ""


@dataclass(frozen=True)
class Measured:
    """Measurements of one candidate that the gates read; `job.gates.confidence` is the confidence of its verdicts.

    A candidate can be judged before its answers and its latency are measured: gates on these give no verdict then.
    """

    job: Job
    candidate: str
    variant: Variant
    coverage: Coverage
    baseline_bytes: int
    answers: AnswerFigures | None = None
    latency: Latency | None = None
    beside_fp16: Latency | None = None
    sanity: Sanity | None = None
    agreement: Agreement | None = None
    draws: Draws | None = None
    rolled_back: RolledBack | None = None


@dataclass(frozen=True)
class GateFacts:
    """A gate's name, description (`about`), unit of its values, and key in the job's `gates`; without a key it is always on.

    `units` says what its interval counts.
    """

    name: str
    about: str
    unit: Unit
    key: str = ""
    units: Units = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Gate(GateFacts):
    """A gate on every candidate. `judge` returns the verdict, or None if the gate does not apply or was not measured.

    `requires` says whether promotion demands this verdict; by default it does if the job sets the gate's key. It reads only the
    job and the candidate name, so that a skipped measurement cannot pass. `evidence` is the artifact in the candidate's MLflow
    run that supports the verdict. `is_confirmed` means that the winner is judged again, on samples and measurements not used
    for selection, at a confidence that corrects for the candidates that may be confirmed. Every gate with an interval is.
    `is_loss` means that keeping some layers in float may fix a failure. `from_samples` means that the verdict follows from
    samples that an evidence bundle keeps; the others follow from figures in its record.
    """

    judge: Callable[[Measured], Verdict | None]
    requires: Callable[[Job, str], bool] | None = None
    evidence: str = ""
    is_confirmed: bool = False
    is_loss: bool = False
    from_samples: bool = False

    def is_required(self, job: Job, candidate: str) -> bool:
        """Return True if promotion of a candidate demands this verdict."""
        if self.requires:
            return self.requires(job, candidate)
        return not self.key or getattr(job.gates, self.key) is not None


def _drop(answers: AnswerFigures, found: Measured) -> Verdict | None:
    if answers.drop is None:
        return None
    return accuracy.judge_drop(
        answers.drop, found.job.gates, n=answers.units, method=answers.drop_method, counted=answers.counted
    )


def _sqnr(answers: AnswerFigures, found: Measured) -> Verdict | None:
    return accuracy.judge_sqnr(
        answers.sqnr, found.job.gates, n=answers.noise_units, method=answers.sqnr_method, counted=answers.counted
    )


def _metric(gate: accuracy.MetricGate) -> Callable[[Measured], Verdict | None]:
    def judge(answers: AnswerFigures, found: Measured) -> Verdict | None:
        gates, counted = found.job.gates, answers.counted
        return accuracy.judge_metric(
            gate, answers.bounds, gates, n=answers.units, method=answers.bounds_method, counted=counted
        )

    return _answered(judge)


def _sanity(name: str) -> Callable[[Measured], Verdict | None]:
    def judge(found: Measured) -> Verdict | None:
        # Kernels of a GPU may add partial sums in another order in each run; those of a processor do not.
        waver = tolerance_of(found.candidate) if is_on_gpu(decode(found.candidate).target) else 0.0
        if found.sanity is None:
            return None
        boxes = metric_facts(found.job.metric).kind == "boxes"
        judged = found.job.output_names or [answers.name for answers in found.sanity.baseline[:1]]
        verdicts = sanity.judge_sanity(found.sanity, waver, judged if boxes else ())
        return next(verdict for verdict in verdicts if verdict.gate == name)

    return judge


def _answered(judge: Callable[[AnswerFigures, Measured], Verdict | None]) -> Callable[[Measured], Verdict | None]:
    return lambda found: None if found.answers is None else judge(found.answers, found)


def _timed(judge: Callable[[Latency, Measured], Verdict | None]) -> Callable[[Measured], Verdict | None]:
    return lambda found: None if found.latency is None else judge(found.latency, found)


def _beside_fp16(found: Measured) -> Verdict | None:
    gates = found.job.gates
    if found.beside_fp16 is not None:
        return resource.judge_speedup_fp16(found.beside_fp16, gates)
    # A recovery attempt is judged before it is timed.
    if found.latency is None or gates.min_speedup_fp16 is None or not _has_fp16(found.job, found.candidate):
        return None
    reason = "the float16 candidate's latency could not be measured"
    return resource.unmeasured("speedup_fp16", reason, gates.min_speedup_fp16, "at_least", None)


def _is_set_for_low_precision(key: str) -> Callable[[Job, str], bool]:
    return lambda job, candidate: getattr(job.gates, key) is not None and decode(candidate).precision != "fp32"


def _has_fp16(job: Job, candidate: str) -> bool:
    """Return True if this candidate is not float16 and the job has a float16 candidate of the same target on a GPU."""
    ours = decode(candidate)
    others = (decode(name) for name in job.candidate_names)
    return ours.precision != "fp16" and any(
        other.precision == "fp16" and other.target == ours.target and is_on_gpu(other.target) for other in others
    )


def _has_drop(job: Job) -> bool:
    return metric_facts(job.metric).has_drop


# A gate on the metric's rows, one on a latency beside the baseline's, and one on a fact.
_ON_SCORES = partial(Gate, units="clusters", evidence=SCORES, is_confirmed=True, is_loss=True, from_samples=True)
_ON_LATENCY = partial(Gate, units="launches", evidence=LATENCY, is_confirmed=True)
_YES_OR_NO = partial(Gate, unit="yes or no", units="exact")


def _tail(gate: resource.TailGate) -> Gate:
    """Return the gate on a high percentile of latency, over the baseline's or in milliseconds."""
    percentile, _, unit = gate.partition("_")
    ratio = f"The ratio of {percentile} latencies, variant over baseline, in the same launches, by its upper bound."
    return _ON_LATENCY(
        gate,
        ratio if unit == "ratio" else f"The {percentile} latency in milliseconds, by its upper bound.",
        "ratio" if unit == "ratio" else "milliseconds",
        judge=_timed(lambda latency, found: resource.judge_tail(gate, latency, found.job.gates)),
        key=f"max_{gate}",
        from_samples=True,
    )


def _ratio(
    gate: str, about: str, figure: str, why_missing: Callable[[Latency], str] = lambda _: "it was not measured"
) -> Gate:
    """Return the gate on one of `Latency.ratios`."""
    judge = _timed(lambda one, found: resource.judge_ratio(gate, figure, one, found.job.gates, why_missing(one)))
    return _ON_LATENCY(gate, about, "ratio", judge=judge, key=f"max_{gate}")


GATES: tuple[Gate, ...] = (
    _ON_SCORES(
        "drop",
        "The metric loses at most this much against the baseline, by the upper bound of the loss.",
        "drop",
        judge=_answered(_drop),
        key="max_drop",
        requires=lambda job, _: _has_drop(job),
    ),
    _ON_SCORES(
        "worst_slice",
        "The same in each group of each slice that the job names.",
        "drop",
        judge=_answered(lambda answers, found: slices.judge_slices(answers.slices, found.job.gates)),
        key="max_slice_drop",
        requires=lambda job, _: _has_drop(job) and bool(job.data.slices) and job.gates.max_slice_drop is not None,
    ),
    _ON_SCORES(
        "metric_floor",
        "The metric itself is at least this, by its lower bound; for metrics of which higher values are better.",
        "metric",
        judge=_metric("metric_floor"),
        key="min_metric",
    ),
    _ON_SCORES(
        "metric_ceiling",
        "The metric itself is at most this, by its upper bound; for metrics of which lower values are better.",
        "metric",
        judge=_metric("metric_ceiling"),
        key="max_metric",
    ),
    _ON_SCORES(
        "sqnr",
        "The judged output keeps this ratio of signal to quantization noise, by the lower bound.",
        "decibels",
        judge=_answered(_sqnr),
        key="min_sqnr_db",
        evidence=NOISE,
    ),
    Gate(
        "agreement",
        "A decoder's greedy answers equal the baseline's for this share of their length, on average, by the lower bound.",
        "share",
        units="clusters",
        judge=lambda found: None if found.agreement is None else judge_agreement(found.agreement, found.job.gates),
        key="min_agreement",
        is_confirmed=True,
        is_loss=True,
    ),
    Gate(
        "draw_spread",
        "Made again from other draws of the calibration samples, the metric moves at most this much, by the upper bound.",
        "drop",
        units="draws",
        judge=lambda found: None if found.draws is None else judge_draw_spread(found.draws, found.job.gates),
        key="max_draw_spread",
        requires=lambda job, name: job.gates.max_draw_spread is not None and job.is_calibrated(name),
    ),
    _YES_OR_NO(
        "finite",
        "On no sample has the judged output NaN or Inf where the baseline's is finite.",
        judge=_answered(lambda answers, _: sanity.judge_finite(answers.newly_bad, answers.samples)),
        is_confirmed=True,
        from_samples=True,
    ),
    _YES_OR_NO(
        "same_outputs",
        "No output is missing, new, in another place, or has another dtype, number of axes, or size that values do not change.",
        judge=_sanity("same_outputs"),
    ),
    _YES_OR_NO(
        "not_constant",
        "Not every sample gets the same answer, unless the source gives every sample the same.",
        judge=_sanity("not_constant"),
        is_loss=True,
    ),
    _YES_OR_NO(
        "deterministic",
        "The same batch again gives the same bits; where the source's answers differ, no more than twice as much.",
        judge=_sanity("deterministic"),
    ),
    _YES_OR_NO(
        "finite_outputs",
        "No output has NaN or Inf where the source's is finite.",
        judge=_sanity("finite_outputs"),
    ),
    _ON_LATENCY(
        "speedup",
        "The ratio of p50 latencies at the first operating point, by its lower bound.",
        "ratio",
        judge=_timed(lambda latency, found: resource.judge_speedup(latency, found.job.gates, found.job.target)),
        key="min_speedup",
        requires=lambda job, _: job.gates.speedup_bound(job.target) is not None,
        from_samples=True,
    ),
    _ON_LATENCY(
        "speedup_fp16",
        "The same beside the float16 model on a GPU: INT8 that is slower than float16 is worth nothing there.",
        "ratio",
        judge=_beside_fp16,
        key="min_speedup_fp16",
        evidence=LATENCY.format(place=BESIDE_FP16),
        requires=lambda job, name: job.gates.min_speedup_fp16 is not None and _has_fp16(job, name),
        from_samples=True,
    ),
    _tail("p95_ratio"),
    _tail("p95_ms"),
    _tail("p99_ratio"),
    _tail("p99_ms"),
    Gate(
        "coverage",
        "This share of multiply-accumulates ran in low-precision kernels: an INT8 file that runs float kernels fails.",
        "share",
        units="exact",
        judge=lambda found: coverage.judge_coverage(found.candidate, found.coverage, found.job.gates),
        key="min_coverage",
        evidence=KERNELS,
        requires=_is_set_for_low_precision("min_coverage"),
    ),
    Gate(
        "time_coverage",
        "This share of kernel time was spent in low-precision kernels; inconclusive where the runtime reports no times.",
        "share",
        units="once",
        judge=lambda found: coverage.judge_time_coverage(found.candidate, found.coverage, found.job.gates),
        key="min_time_coverage",
        evidence=KERNELS,
        requires=_is_set_for_low_precision("min_time_coverage"),
    ),
    Gate(
        "size_ratio",
        "Bytes on disk, as a share of the baseline's.",
        "ratio",
        units="exact",
        judge=lambda found: resource.judge_size(found.variant, found.baseline_bytes, found.job.gates),
        key="max_size_ratio",
    ),
    _ratio(
        "memory_ratio",
        "Peak resident memory of the process while it answers, as a share of the baseline's, by its upper bound.",
        "peak_memory_mb",
    ),
    _ratio("load_ratio", "Time to load the session, as a share of the baseline's, by its upper bound.", "load_ms"),
    _ratio(
        "energy_ratio",
        "Energy per request that the device reports, as a share of the baseline's; inconclusive where none is reported.",
        "energy_j",
        resource.why_no_energy,
    ),
    _ON_LATENCY(
        "cost_per_million",
        "Cost of a million requests at the price of the job, by its upper bound.",
        "number",
        judge=_timed(
            lambda latency, found: resource.judge_cost(latency, found.job.gates, found.job.measurement.price_per_hour)
        ),
        key="max_cost_per_million",
    ),
    Gate(
        "compile_seconds",
        "Seconds that the compilation of the artifact took, with an empty cache.",
        "number",
        units="once",
        judge=lambda found: resource.judge_compilation(found.variant, found.job.gates),
        key="max_compile_seconds",
    ),
    _YES_OR_NO(
        "real_kernels",
        "The variant was measured on hardware that runs its precision; a simulated or only compiled one is never promoted.",
        judge=lambda found: coverage.judge_simulation(found.variant),
        # `Approval` checks the proof itself, and a measured variant gets no verdict here.
        requires=lambda _job, _candidate: False,
    ),
    _YES_OR_NO(
        "not_rolled_back",
        "Nobody rolled back the same variant on this target.",
        judge=lambda found: judge_rolled_back(found.rolled_back),
    ),
)


# Later steps judge these, on the candidates that passed the gates above.
LATER_GATES: tuple[GateFacts, ...] = (
    GateFacts(
        f"{PREFIX_LOGGED}<metric>",
        "A bound on a metric that the job's own step logged; a metric that is missing or NaN is inconclusive.",
        "number",
        units="once",
        key="logged",
    ),
    GateFacts(
        "beats_champion",
        "Of the same source, the winner is better than the champion by the objective; of another source, not clearly worse.",
        "by method",
        units="clusters",
    ),
    GateFacts(
        "champion_device",
        "The champion was approved on the same class of device, or the user asked to replace it.",
        "yes or no",
        units="exact",
    ),
)


def judge_gates(found: Measured, place: str, *, confirming: bool = False) -> tuple[Verdict, ...]:
    """Judge a candidate by every gate in catalogue order; if `confirming`, by the gates with `is_confirmed` only.

    `place` is the folder of its latency measurement among the artifacts of the candidate's run.
    """
    verdicts = []
    for gate in GATES:
        if confirming and not gate.is_confirmed:
            continue
        verdict = gate.judge(found)
        if verdict is not None:
            name = f"{PREFIX_CONFIRMED if confirming else ''}{gate.name}"
            verdicts.append(replace(verdict, gate=name, evidence=gate.evidence.format(place=place)))
    return tuple(verdicts)


def required_gates(job: Job, candidate: str) -> frozenset[str]:
    """Return the names of all verdicts that promotion of a candidate demands, from the job and the candidate name alone.

    `champion.champion_gates` adds the verdicts against a present champion.
    """
    required = [gate for gate in GATES if gate.is_required(job, candidate)]
    names = {gate.name for gate in required} | {f"{PREFIX_LOGGED}{gate.metric}" for gate in job.gates.logged}
    if job.confirmation.share:
        names |= {f"{PREFIX_CONFIRMED}{gate.name}" for gate in required if gate.is_confirmed}
    return frozenset(names)


def is_from_samples(verdict_name: str) -> bool:
    """Return True if a verdict follows from samples that an evidence bundle keeps.

    >>> is_from_samples("confirmed_drop"), is_from_samples("coverage"), is_from_samples("beats_champion")
    (True, False, True)
    """
    name = verdict_name.removeprefix(PREFIX_CONFIRMED)
    return name == "beats_champion" or any(gate.from_samples for gate in GATES if gate.name == name)


def gate_of(verdict_name: str) -> GateFacts | None:
    """Return the gate of a verdict, confirmed or not; None for a metric of the job's own step, or for an unknown name.

    >>> gate_of("confirmed_speedup").unit, gate_of("logged.bleu")
    ('ratio', None)
    """
    name = verdict_name.removeprefix(PREFIX_CONFIRMED)
    return next((gate for gate in (*GATES, *LATER_GATES) if gate.name == name), None)

"""Accuracy gates: the metric, its drop and the quantization noise, and whether the samples suffice to pass them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from validators.errors import JobError
from validators.gates.clusters import worth_naming
from validators.gates.intervals import MIN_SAMPLES, Clusters, effective_clusters
from validators.gates.slices import groups_of
from validators.gates.verdict_rules import EVALUATION, bounded, confidence_of_each
from validators.job.job import Confirmation
from validators.job.job_gates import Gates
from validators.plain_text import figure, signed_figure
from validators.records.measurements import Estimate
from validators.records.verdicts import Verdict

MetricGate = Literal["metric_floor", "metric_ceiling"]


@dataclass(frozen=True)
class _Demand:
    """A drop gate on one set of samples: show a drop of at most `bound` at `confidence` with `n` samples of `whose`.

    `n` counts `units`: samples, or clusters of equal weight.
    """

    key: str
    bound: float
    whose: str
    n: int
    confidence: float
    units: Literal["samples", "clusters"] = "samples"

    def needed(self, *, is_right_or_wrong: bool) -> float:
        """Return the fewest samples with which any variant can pass; Inf if no number suffices.

        A variant that never differs has Clopper and Pearson's bound on the share of lost samples, or clusters, that were not
        drawn, 1 - (1 - confidence)^(1 / n), and for samples Tango's, z^2 / (n + z^2), if it is wider.
        """
        if not is_right_or_wrong:
            return MIN_SAMPLES
        if self.bound == 0:
            return math.inf
        if self.bound >= 1:
            return 1
        exact = math.ceil(math.log(1 - self.confidence) / math.log1p(-self.bound))
        if self.units == "clusters":
            return max(exact, MIN_SAMPLES)
        z2 = float(ndtri(self.confidence)) ** 2
        return max(math.ceil(z2 * (1 - self.bound) / self.bound), exact)


def check_gates_can_be_met(
    gates: Gates,
    confirmation: Confirmation,
    kept: NDArray[np.bool_],
    slices: Mapping[str, NDArray[Any]],
    *,
    is_right_or_wrong: bool,
    clusters: Clusters | None = None,
) -> None:
    """Refuse a job whose accuracy gates not even a perfect variant could pass with the available samples.

    A variant that agrees with the baseline everywhere still has an upper bound above zero. If that bound exceeds the
    tolerance, the job needs more samples.

    Args:
        gates: the gates of the job.
        confirmation: the confirmation settings of the job.
        kept: bool, shape `(n,)`; marks the evaluation samples reserved for confirmation.
        slices: by slice column the group of each sample, shape `(n,)`.
        is_right_or_wrong: the metric scores each sample as right or wrong.
        clusters: integers, shape `(n,)`; the cluster of each sample, of the job's groups or of copies, if there are any.

    Raises:
        JobError: no variant can meet a gate.
    """
    for demand in _demands(gates, confirmation, kept, slices, clusters):
        needed = demand.needed(is_right_or_wrong=is_right_or_wrong)
        if demand.n < needed:
            raise _unmeetable(demand, needed, len(kept), by_split=bool(confirmation.share))


def _demands(
    gates: Gates,
    confirmation: Confirmation,
    kept: NDArray[np.bool_],
    slices: Mapping[str, NDArray[Any]],
    clusters: Clusters | None,
) -> Iterator[_Demand]:
    """Yield the demands on the selection samples, then those on the confirmation samples; each total before its slices."""
    parts = [("", ~kept, gates.confidence)]
    if confirmation.share:
        confidence = confidence_of_each(gates.confidence, confirmation.candidates)
        parts = [(" that choose", ~kept, gates.confidence), (" that confirm", kept, confidence)]
    groups = groups_of(slices)
    for words, part, confidence in parts:
        n, units = _count(part, clusters)
        yield _Demand("max_drop", gates.drop_bound, f"evaluation samples{words}", n, confidence, units)
        if gates.max_slice_drop is None or not groups:
            continue
        column, group, mask = min(groups, key=lambda found: _count(found[2] & part, clusters)[0])
        n, units = _count(mask & part, clusters)
        yield _Demand(
            "max_slice_drop",
            gates.max_slice_drop,
            f"evaluation samples{words} in the group {group} of the slice {column!r}",
            n,
            confidence_of_each(confidence, len(groups)),
            units,
        )


def _count(part: NDArray[np.bool_], clusters: Clusters | None) -> tuple[int, Literal["samples", "clusters"]]:
    """Count the samples of a part, or its effective clusters (clusters of equal weight)."""
    found = None if clusters is None else worth_naming(clusters[part])
    return (int(part.sum()), "samples") if found is None else (math.floor(effective_clusters(found)), "clusters")


def _unmeetable(demand: _Demand, needed: float, total: int, *, by_split: bool) -> JobError:
    many = "infinitely many" if math.isinf(needed) else f"at least {needed}"
    fixes = ["add evaluation samples" if demand.key == "max_drop" else "add samples of that group"]
    if demand.units == "clusters":
        fixes[0] += " of other `data.groups`, and no copies"
    counted = (
        f"{demand.n} clusters of equal weight of {demand.whose}"
        if demand.units == "clusters"
        else f"{demand.n} {demand.whose}"
    )
    fixes.append(
        "allow a larger drop" if demand.key == "max_drop" else "allow a larger drop, or none: `max_slice_drop: null`"
    )
    if by_split:
        fixes.append("set another `confirmation.share`")
    return JobError(
        found=f"`gates.{demand.key}: {demand.bound}` at confidence {demand.confidence:.6g} with {counted}, of "
        f"{total} samples in all",
        expected=f"{many} {demand.units}: with fewer, even a variant that never differs from the baseline cannot pass",
        fix="; or ".join(fixes),
    )


def judge_drop(drop: Estimate, gates: Gates, *, n: int, method: str, counted: str = EVALUATION) -> Verdict:
    """Judge the drop with a non-inferiority test.

    It passes if the upper bound of the drop is within the tolerance, fails if the lower bound is beyond it, and is
    inconclusive otherwise.
    """
    return bounded(
        "drop", drop, gates.drop_bound, "at_most", gates.confidence, n, method, signed_figure, counted=counted
    )


def judge_metric(
    gate: MetricGate, found: Estimate | None, gates: Gates, *, n: int, method: str, counted: str = EVALUATION
) -> Verdict | None:
    """Judge the metric itself, without the baseline: pass if its whole interval is within the bound; None without a bound."""
    bound = gates.min_metric if gate == "metric_floor" else gates.max_metric
    if bound is None:
        return None
    assert found is not None  # it is estimated if a bound is set
    direction: Literal["at_least", "at_most"] = "at_least" if gate == "metric_floor" else "at_most"
    return bounded(gate, found, bound, direction, gates.confidence, n, method, figure, counted=counted)


def judge_sqnr(
    sqnr: Estimate | None, gates: Gates, *, n: int, method: str, counted: str = EVALUATION
) -> Verdict | None:
    """Judge the signal-to-quantization-noise ratio of the outputs in dB; None if the job has no such gate.

    An infinite ratio (no bit differs) passes. NaN (outputs that are not finite) fails.
    """
    if gates.min_sqnr_db is None:
        return None
    assert sqnr is not None  # load_data refuses the gate where outputs have no noise
    bound, show = gates.min_sqnr_db, "{:.1f} dB".format
    return bounded("sqnr", sqnr, bound, "at_least", gates.confidence, n, method, show, counted=counted)

"""Drops per group of samples: the mean over all samples hides a fault in a small group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.gates.clusters import count_units
from validators.gates.intervals import Clusters
from validators.gates.verdict_rules import EVALUATION, bounded, confidence_of_each
from validators.job.job_gates import Gates
from validators.plain_text import signed_figure
from validators.records.measurements import Estimate, SliceDrop
from validators.records.verdicts import Verdict

Mask = NDArray[np.bool_]
# Takes a mask of samples and a confidence; returns the drop with its bounds, and the method.
EstimateDrop = Callable[[Mask, float], tuple[Estimate, str]]


def groups_of(slices: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, Mask]]:
    """List every group of every slice column: the column, the group as text, and its samples as a bool mask.

    Columns and masks have shape `(n,)`.

    >>> [(column, group, mask.sum().item()) for column, group, mask in groups_of({"place": np.array(["in", "out", "in"])})]
    [('place', 'in', 2), ('place', 'out', 1)]
    """
    return [(name, str(group), array == group) for name, array in slices.items() for group in np.unique(array)]


def slice_drops(
    slices: Mapping[str, NDArray[Any]], estimate: EstimateDrop, confidence: float, *, clusters: Clusters | None = None
) -> tuple[SliceDrop, ...]:
    """Return the drop in every group of every slice column, with bounds that hold jointly with `confidence`.

    Each bound has the Bonferroni confidence 1 - (1 - confidence) / groups. `slices[column]` holds the group of each sample,
    shape `(n,)`; `estimate` gets bool masks of the same shape. `clusters` (intp, shape `(n,)`) holds the cluster of each
    sample, if any.
    """
    groups = groups_of(slices)
    found = []
    for column, group, mask in groups:
        drop, method = estimate(mask, confidence_of_each(confidence, len(groups)))
        count = 0 if clusters is None else count_units(0, clusters[mask])
        found.append(SliceDrop(column, group, int(mask.sum()), drop, method, count))
    return tuple(found)


def judge_slices(drops: tuple[SliceDrop, ...], gates: Gates) -> Verdict | None:
    """Judge the worst group; None without groups or without a `max_slice_drop`.

    The gate passes if the upper bounds of all drops are within `max_slice_drop`, and fails if the lower bound of any is beyond
    it. Otherwise it is inconclusive, with the number of samples of that group that would settle it. The verdict's interval has
    the confidence of one group.
    """
    if not drops or gates.max_slice_drop is None:
        return None
    confidence = confidence_of_each(gates.confidence, len(drops))
    verdicts = [_judge(drop, gates.max_slice_drop, confidence) for drop in drops]
    failed = [verdict for verdict in verdicts if verdict.outcome == "fail"]
    return max(failed or verdicts, key=_upper)


def _judge(found: SliceDrop, bound: float, confidence: float) -> Verdict:
    verdict = bounded(
        "worst_slice",
        found.drop,
        bound,
        "at_most",
        confidence,
        found.clusters or found.n,
        f"{found.name}: {found.method}",
        signed_figure,
        counted=f"{'clusters' if found.clusters else EVALUATION} of {found.name}",
    )
    return replace(verdict, reason=verdict.reason and f"{found.name}: {verdict.reason}")


def _upper(verdict: Verdict) -> float:
    return math.inf if verdict.high is None or math.isnan(verdict.high) else verdict.high

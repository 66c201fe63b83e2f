"""What a variant loses in each group of the samples: a fault of few samples drowns in the mean of all."""

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
from validators.records.measurements import Estimate, SliceDrop
from validators.records.verdicts import Verdict

Mask = NDArray[np.bool_]
# The drop on the samples of a mask with bounds at a confidence, and the method.
EstimateDrop = Callable[[Mask, float], tuple[Estimate, str]]


def groups_of(slices: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, Mask]]:
    """Every group of every slice column (arrays of shape `(n,)`): the column, the group as text, and which samples are in it.

    >>> [(column, group, mask.sum().item()) for column, group, mask in groups_of({"place": np.array(["in", "out", "in"])})]
    [('place', 'in', 2), ('place', 'out', 1)]
    """
    return [(name, str(group), array == group) for name, array in slices.items() for group in np.unique(array)]


def slice_drops(
    slices: Mapping[str, NDArray[Any]], estimate: EstimateDrop, confidence: float, *, clusters: Clusters | None = None
) -> tuple[SliceDrop, ...]:
    """The drop in every group of every slice column, in order, with bounds that hold for all of them with `confidence`.

    Each bound has the confidence of Bonferroni, 1 - (1 - confidence) / groups. `slices[column]` has one group a sample, and
    so have the masks, shape `(n,)`, that `estimate` is called with. `clusters` has each sample's, if there are any.
    """
    groups = groups_of(slices)
    found = []
    for column, group, mask in groups:
        drop, method = estimate(mask, confidence_of_each(confidence, len(groups)))
        count = 0 if clusters is None else count_units(0, clusters[mask])
        found.append(SliceDrop(column, group, int(mask.sum()), drop, method, count))
    return tuple(found)


def judge_slices(drops: tuple[SliceDrop, ...], gates: Gates) -> Verdict | None:
    """The gate on the worst group: pass if the drops of all are within `max_slice_drop` by their upper bounds, fail if that of
    any is beyond it by its lower bound, else inconclusive, with the number of samples of that group that would tell.

    None without groups or without such a gate. The verdict's interval has the confidence of one group.
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
        "{:+.4f}".format,
        counted=f"{'clusters' if found.clusters else EVALUATION} of {found.name}",
    )
    return replace(verdict, reason=verdict.reason and f"{found.name}: {verdict.reason}")


def _upper(verdict: Verdict) -> float:
    return math.inf if verdict.high is None or math.isnan(verdict.high) else verdict.high

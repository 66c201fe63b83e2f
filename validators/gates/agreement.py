"""The gate on greedy answers: how long a variant says what the baseline says."""

from __future__ import annotations

import numpy as np

from validators.errors import JobError
from validators.gates.clusters import clustered_drop_interval, count_units, worth_naming
from validators.gates.intervals import Clusters, drop_interval
from validators.gates.verdict_rules import PROMPTS, bounded
from validators.job.job_gates import Gates
from validators.records.measurements import Agreement, Estimate
from validators.records.verdicts import Verdict


def estimate_agreement(agreement: Agreement, confidence: float) -> tuple[Estimate, str]:
    """Return the mean share over prompts with a one-sided bound on either side, and the name of the method."""
    losses, clusters = 1 - np.array(agreement.shares), _clusters_of(agreement)
    lost, method = (
        drop_interval(losses, confidence, 1.0)
        if clusters is None
        else clustered_drop_interval(losses, clusters, confidence, 1.0)
    )
    low, high = (None if end is None else 1 - end for end in (lost.high, lost.low))
    return Estimate(1 - lost.value, low, high), method


def judge_agreement(agreement: Agreement, gates: Gates) -> Verdict | None:
    """Judge the mean share of an answer before its first other token by its lower bound; None without such a gate."""
    if gates.min_agreement is None:
        return None
    estimate, method = estimate_agreement(agreement, gates.confidence)
    clusters = _clusters_of(agreement)
    return bounded(
        "agreement",
        estimate,
        gates.min_agreement,
        "at_least",
        gates.confidence,
        count_units(len(agreement.shares), clusters),
        f"{method}, {agreement.new_tokens} tokens a prompt",
        "{:.1%}".format,
        counted=PROMPTS if clusters is None else "clusters of prompts",
    )


def check_agreement_can_be_met(
    gates: Gates, confidence: float, prompts: int, clusters: tuple[int, ...], purpose: str
) -> None:
    """Refuse a job whose `min_agreement` not even a variant that answers as the baseline could pass with its prompts.

    `confidence` is that of the verdict; `clusters` has the cluster of each prompt, or is empty; `purpose` says what the prompts
    are for.

    Raises:
        JobError: too few prompts, or too few clusters of them.
    """
    same = Agreement(1, (1.0,) * prompts, clusters)
    verdict = judge_agreement(same, gates.model_copy(update={"confidence": confidence}))
    if verdict is None or verdict.outcome == "pass":
        return
    reached = "no lower bound" if verdict.low is None else f"a lower bound of {verdict.low:.4g}"
    more = "" if verdict.counted == PROMPTS else "add evaluation windows of other groups; or "
    raise JobError(
        found=f"`gates.min_agreement: {gates.min_agreement}` at confidence {confidence:.6g} with {verdict.n} "
        f"{verdict.counted} {purpose}, which give a variant that answers as the baseline {reached}",
        expected="prompts with which such a variant passes",
        fix=f"{more}raise `measurement.prompts`; or lower `min_agreement`",
    )


def _clusters_of(agreement: Agreement) -> Clusters | None:
    return worth_naming(np.array(agreement.clusters, np.intp)) if agreement.clusters else None

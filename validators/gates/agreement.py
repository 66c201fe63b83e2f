"""The gate on greedy answers: how long a variant says what the baseline says."""

from __future__ import annotations

import numpy as np

from validators.gates.intervals import drop_interval
from validators.gates.verdict_rules import PROMPTS, bounded
from validators.job.job_gates import Gates
from validators.records.measurements import Agreement, Estimate
from validators.records.verdicts import Verdict


def estimate_agreement(agreement: Agreement, confidence: float) -> tuple[Estimate, str]:
    """Return the mean share over prompts with a one-sided bound on either side, and the name of the method."""
    lost, method = drop_interval(1 - np.array(agreement.shares), confidence)
    low, high = (None if end is None else 1 - end for end in (lost.high, lost.low))
    return Estimate(1 - lost.value, low, high), method


def judge_agreement(agreement: Agreement, gates: Gates) -> Verdict | None:
    """Judge the mean share of an answer before its first other token by its lower bound; None without such a gate."""
    if gates.min_agreement is None:
        return None
    estimate, method = estimate_agreement(agreement, gates.confidence)
    n = len(agreement.shares)
    return bounded(
        "agreement",
        estimate,
        gates.min_agreement,
        "at_least",
        gates.confidence,
        n,
        f"{method}, {agreement.new_tokens} tokens a prompt",
        "{:.1%}".format,
        counted=PROMPTS,
    )

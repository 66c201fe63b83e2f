"""Gates against the present champion and against earlier rollbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from validators.gates.resource import disturbed, unmeasured
from validators.gates.verdict_rules import BLOCKS, bounded, judge_exact
from validators.job.job_gates import Gates
from validators.plain_text import signed_figure
from validators.records.journal import RolledBack
from validators.records.measurements import Estimate
from validators.records.run import Champion, device_class
from validators.records.verdicts import Outcome, Verdict

BEATS_CHAMPION, CHAMPION_DEVICE = "beats_champion", "champion_device"
CHAMPION_GATES = frozenset({BEATS_CHAMPION, CHAMPION_DEVICE})
_IN_TURN = "p50 beside the champion, in turn"


def judge_against_champion(
    *,
    same_source: bool,
    drop: Estimate,
    speedup: Estimate,
    size_ratio: float,
    objective: Literal["latency", "size"],
    gates: Gates,
    n: int,
    pairs: int,
    disturbance: str = "",
) -> Verdict:
    """Judge a variant against the present champion (gate `beats_champion`).

    `drop` and `speedup` compare the variant with the champion, not with the baseline. `drop` rests on `n` samples, `speedup`
    on `pairs` pairs of blocks.

    If both come from the same source, the variant must be better by the objective with confidence: a replacement within noise
    is no gain. A champion of another source version is replaced unless the variant is clearly worse: the new version was
    registered to be used.

    `disturbance` says why `speedup` is unreliable; empty if it is reliable.
    """
    if not same_source:
        method = "drop against the champion"
        verdict = bounded(BEATS_CHAMPION, drop, gates.drop_bound, "at_most", gates.confidence, n, method, signed_figure)
        return verdict if verdict.outcome == "fail" else replace(verdict, outcome="pass", reason="")
    if objective == "size":
        smaller = size_ratio < 1
        return Verdict(
            BEATS_CHAMPION,
            "pass" if smaller else "fail",
            size_ratio,
            1.0,
            "at_most",
            method="bytes beside the champion's",
            reason="" if smaller else f"{size_ratio:.2f} of the champion's bytes: the champion stays",
        )
    if disturbance:
        return replace(disturbed(BEATS_CHAMPION, disturbance, 1.0, "at_least", speedup.value), method=_IN_TURN)
    show = "{:.3f}x".format
    return bounded(BEATS_CHAMPION, speedup, 1.0, "at_least", gates.confidence, pairs, _IN_TURN, show, counted=BLOCKS)


def judge_champion_device(champion: Champion, *, here: str, replaces: bool) -> Verdict:
    """Judge whether the champion was approved on the same device class as this one (gate `champion_device`).

    `here` is the device key of this machine. All machines share the alias of a target, and speed on one says nothing about
    another. `replaces` means that the user asked to replace a champion of another device class. Without a recorded device the
    gate is inconclusive.
    """
    theirs, ours = device_class(champion.device), device_class(here)
    differs = theirs != ours
    found = (
        f"the champion was approved on {theirs}; this machine is {ours}"
        if theirs
        else f"nobody recorded on which device the champion runs: {champion}"
    )
    reason = f"replaced on request: {found}" if replaces else f"{found}; to replace it, run with --replace-device"
    doubt: Outcome = "fail" if theirs else "inconclusive"
    return Verdict(
        CHAMPION_DEVICE,
        doubt if differs and not replaces else "pass",
        float(differs),
        0.0,
        "at_most",
        method="device class beside the champion's",
        reason=reason if differs else "",
    )


def judge_unmeasured_champion(champion: Champion, why: str) -> Verdict:
    """Leave the gate `beats_champion` open because the champion cannot be measured here; `why` says what is missing.

    >>> hotfix = Champion("fraud-quantized", "7", "champion-ort-cpu", "", "", "")
    >>> judge_unmeasured_champion(hotfix, "remove its alias").reason
    'nobody knows which is faster: the champion is version 7, which quantgate did not promote; remove its alias'
    """
    reason = f"nobody knows which is faster: the champion is {champion}; {why}"
    return replace(unmeasured(BEATS_CHAMPION, reason, 1.0, "at_least", 0.0), method=_IN_TURN)


def judge_broken_champion(version: str, fault: str) -> Verdict:
    """Pass the gate `beats_champion` because the champion's files do not load or run here; `fault` says why.

    >>> judge_broken_champion("3", "no such kernel").reason
    'champion version 3 no longer runs here: no such kernel'
    """
    return Verdict(
        BEATS_CHAMPION,
        "pass",
        None,
        1.0,
        "at_least",
        method="the champion does not run",
        reason=f"champion version {version} no longer runs here: {fault}",
    )


def champion_gates(identity: str, champion: Champion | None) -> frozenset[str]:
    """Return the names of the verdicts against the present champion that promotion of a variant demands.

    Empty without a champion, or if the champion is the same variant (`identity`).
    """
    if champion is None or champion.identity == identity:
        return frozenset()
    return CHAMPION_GATES


def judge_rolled_back(mark: RolledBack | None) -> Verdict:
    """Judge the gate `not_rolled_back`. `mark` is the earlier rollback of this variant on the target, if any.

    >>> judge_rolled_back(None).outcome, judge_rolled_back(RolledBack(2, "2026-11-22T03:00:00+00:00", "slow")).reason
    ('pass', 'rolled back on 2026-11-22: slow')
    """
    method = "versions of the same digest that were rolled back on the target"
    fault = mark and f"rolled back on {mark.at[:10] or 'an unknown day'}: {mark.reason or 'no reason was given'}"
    return judge_exact("not_rolled_back", float(mark is not None), 0.0, fault or "", method=method)

"""Where the evidence of a candidate lies in its run in MLflow: what verdicts point to, and what is logged there."""

from __future__ import annotations

from validators.verdicts import Verdict

SCORES, VERDICTS, COVERAGE, SIZES = "accuracy/scores.npy", "verdicts.json", "coverage.json", "variant.json"
# In the run of the whole: which rows of the evaluation samples had no say in the choice.
CONFIRMATION_ROWS = "evaluation/confirmation.npy"
LATENCY = "latency/{place}/samples.npz"
_BY_GATE = {
    "drop": SCORES,
    "worst_slice": SCORES,
    "sqnr": SCORES,
    "coverage": COVERAGE,
    "time_coverage": COVERAGE,
}


def evidence_of(verdict: Verdict, batch_size: int) -> str:
    """The artifact of the candidate's run that a verdict rests on, or what it already names; empty where there is none.

    >>> evidence_of(Verdict("confirmed_speedup", "pass", 2.0, 1.2, "at_least"), 1)
    'latency/confirmation/samples.npz'
    """
    gate = verdict.gate.removeprefix("confirmed_")
    if gate in ("speedup", "memory_ratio", "load_ratio"):
        return LATENCY.format(place="confirmation" if gate != verdict.gate else f"batch_{batch_size}")
    return verdict.evidence or _BY_GATE.get(gate, "")

"""Where evidence lies in MLflow: what verdicts point to, and what is logged there."""

from __future__ import annotations

from dataclasses import replace

from validators.records.verdicts import Verdict

# In the run of the whole: which of the evaluation samples had no say in the choice, a bool array of shape (samples,).
CONFIRMATION_ROWS = "evaluation/confirmation.npy"
# The job as it ran, what came of it, and the page.
JOB, RESULT, REPORT = "job.yaml", "result.json", "report/report.html"
# In the run of a candidate.
VERDICTS, SCORES, NOISE, KERNELS = "verdicts.json", "accuracy/scores.npy", "accuracy/noise.npy", "coverage/kernels.json"
LATENCY = "latency/{place}/samples.npz"
# All that TensorRT's builder said, of a candidate that it refused as well.
BUILD_LOG = "engine/build.log"
# Places of a latency that is none of the operating points.
CONFIRMED, BESIDE_FP16 = "confirmation", "beside_fp16"
_BY_GATE = {
    "drop": SCORES,
    "worst_slice": SCORES,
    "sqnr": NOISE,
    "coverage": KERNELS,
    "time_coverage": KERNELS,
}


def with_evidence(verdict: Verdict, place: str) -> Verdict:
    """The verdict with the artifact of the candidate's run that it rests on; `place` is that of its latency.

    >>> with_evidence(Verdict("speedup", "pass", 2.0, 1.2, "at_least"), "b1").evidence
    'latency/b1/samples.npz'
    """
    if verdict.gate in ("speedup", "memory_ratio", "load_ratio"):
        return replace(verdict, evidence=LATENCY.format(place=place))
    if verdict.gate == "speedup_fp16":
        return replace(verdict, evidence=LATENCY.format(place=BESIDE_FP16))
    return replace(verdict, evidence=_BY_GATE.get(verdict.gate, verdict.evidence))

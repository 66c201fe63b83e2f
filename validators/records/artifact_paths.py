"""Artifact paths of the evidence in MLflow, for logging and for the verdicts that refer to it."""

from __future__ import annotations

# In the parent run: marks the evaluation samples reserved for confirmation; bool of shape (samples,).
CONFIRMATION_ROWS = "evaluation/confirmation.npy"
# The evidence bundle; the job as run, its result document, and the HTML report.
EVIDENCE = "evidence/evidence.zip"
JOB, RESULT, REPORT = "job.yaml", "result.json", "report/report.html"
# In a candidate's run.
VERDICTS, SCORES, NOISE, KERNELS = "verdicts.json", "accuracy/scores.npy", "accuracy/noise.npy", "coverage/kernels.json"
LATENCY = "latency/{place}/samples.npz"
# Complete log of TensorRT's builder, also for a candidate that it refused.
BUILD_LOG = "engine/build.log"
# Values of `place` for latencies that are not an operating point.
CONFIRMED, BESIDE_FP16 = "confirmation", "beside_fp16"

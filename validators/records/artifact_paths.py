"""Where evidence lies in MLflow: what verdicts point to, and what is logged there."""

from __future__ import annotations

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

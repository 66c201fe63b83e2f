"""One measurement of `calibration_checks.py cost`, in a process of its own: `calibration_cost.py WHAT MODEL POOL`.

WHAT is `evaluation`, `validate-128` or `validate-2000`. Validations count from the start of the process, with all imports. The
evaluation counts from the opening of its session: imports would make the bound, which is a part of its time, larger.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from processes import status_mb

from tasks.measure.inventory import usable_cores
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

REFERENCE = 2000
OUTPUT = "logits"


def read_samples(path: Path, rows: slice) -> Samples:
    """Some samples of the file, with labels."""
    with np.load(path) as arrays:
        inputs = {name: arrays[name][rows] for name in arrays.files if name != "label"}
        labels = arrays["label"][rows]
    return Samples(DataFile(path, "0" * 64, len(labels)), inputs, labels)


def evaluate(model: Path, samples: Samples) -> str:
    """The metric, as `tasks.trials.measure_accuracy` takes it of a model that has the machine for itself."""
    from tasks.measure.metrics.classification import ACCURACY
    from tasks.runtimes.ort import open_session, run_batches
    from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE

    settings = SessionSettings("CPUExecutionProvider", usable_cores()).without_spinning()
    with open_session(model, settings) as session:
        outputs = run_batches(session, samples.batches(EVALUATION_BATCH_SIZE), OUTPUT)
    return f"accuracy {ACCURACY.value(ACCURACY.rows(outputs, samples.labels, None)):.4f}"


def validate(model: Path, calibration: Samples, evaluation: Samples) -> str:
    """The outcome, as `tasks.evidence.judge_calibration` finds it."""
    import tempfile

    from tasks.measure.activations import open_tapped, view_samples
    from tasks.measure.taps import find_taps
    from validators.calibration.judge import judge_calibration
    from validators.job.job_data import CalibrationBounds

    bounds, settings = CalibrationBounds(), SessionSettings("CPUExecutionProvider", usable_cores())
    with tempfile.TemporaryDirectory() as folder:
        with open_tapped(model, settings, lambda graph: find_taps(graph, OUTPUT, None)) as watch:
            view = view_samples(watch, calibration, evaluation, most=bounds.model_samples, fixed_batch=None, seed=7)
        return judge_calibration(calibration, evaluation, None, view, bounds, Path(folder), seed=7).outcome


def main(what: str, model: Path, pool: Path) -> None:
    import psutil

    evaluation = read_samples(pool, slice(REFERENCE))
    if what == "evaluation":
        from tasks.runtimes.ort import installed_runtime

        installed_runtime()
        import onnxruntime  # noqa: F401  before the clock starts

        begun = time.perf_counter()
        answer = evaluate(model, evaluation)
        seconds = time.perf_counter() - begun
    else:
        count = int(what.partition("-")[2])
        answer = validate(model, read_samples(pool, slice(REFERENCE, REFERENCE + count)), evaluation)
        seconds = time.time() - psutil.Process().create_time()
    print(json.dumps({"answer": answer, "seconds": round(seconds, 2), "peak_memory_mb": round(status_mb("VmHWM"))}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

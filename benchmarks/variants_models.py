"""The models of `variants_cpu.py`, each as jobs: one for each shape of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from flows.cli.demo import prepare_demo
from validators.job.job import Confirmation, Job
from validators.job.read_job import parse_job, read_job

LANGUAGE_WINDOWS = 16  # of 512 tokens
LANGUAGE_CALIBRATION = 32
# Of the default list, one of those that differ in ranges alone and run equally fast: between them chance would choose.
CANDIDATES = (
    "fp32-fused@ort-cpu",
    "int8-static-mse-pc@ort-cpu",
    "int8-static-mse-pc-all@ort-cpu",
    "int8-static-mse-pc-smooth@ort-cpu",
    "int8-static-mse-pc-bc@ort-cpu",
    "int8-dynamic-pc@ort-cpu",
    "int8-dynamic-pc+fused@ort-cpu",
    "int4-g32-gptq@ort-cpu",
)
LANGUAGE_CANDIDATES = (
    "int8-dynamic-pc@ort-cpu",
    "int8-dynamic-pc-smooth@ort-cpu",
    "int4-g32-rtn@ort-cpu",
    "int4-g32-gptq-asym@ort-cpu",
)


@dataclass(frozen=True)
class Case:
    """A job whose first batch size, and dims, are the shape of a request; the rivals calibrate so many samples at once."""

    label: str
    job: Job
    calibration_batch: int = 16


def text(state: Path) -> Iterator[Case]:
    """The demo's sentence encoder with its sentiment head: 2,000 reviews."""
    job = read_job(prepare_demo(state, image=False))
    for batch, length in ((1, 16), (16, 48)):
        yield Case(f"batch {batch}, {length} tokens", _shaped(job, batch, {"sequence": (length,)}))


def image(state: Path) -> Iterator[Case]:
    """The demo's EfficientNet-Lite0 with its digits head."""
    job = read_job(prepare_demo(state, image=True))
    for batch in (1, 16):
        yield Case(f"batch {batch}", _shaped(job, batch, {}))


def language(state: Path) -> Iterator[Case]:
    """SmolLM2-135M-Instruct on Wikipedia articles; its gains are folded, so that its weights lie on no grid."""
    from models.language import language_pool

    folder = state / "benchmark-language"
    if not (folder / "evaluation.npz").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pool = language_pool(folder)
        np.savez(folder / "calibration.npz", input_ids=pool.calibration[:LANGUAGE_CALIBRATION].astype(np.int64))
        np.savez(folder / "evaluation.npz", input_ids=pool.evaluation[:LANGUAGE_WINDOWS].astype(np.int64))
    raw = {
        "source": str(folder / "language.onnx"),
        "data": {"calibration": "calibration.npz", "evaluation": "evaluation.npz"},
        "metric": "perplexity",
        "gates": {"max_drop": 0.05},
        "measurement": {"block_count": 5},
    }
    job = parse_job(yaml.safe_load(yaml.safe_dump(raw)), base=folder)
    for batch, length in ((1, 16), (1, 128)):
        yield Case(
            f"batch {batch}, {length} tokens",
            _shaped(job, batch, {"sequence": (length,)}, LANGUAGE_CANDIDATES),
            calibration_batch=1,
        )


def _shaped(job: Job, batch: int, dims: dict[str, tuple[int, ...]], candidates: tuple[str, ...] = CANDIDATES) -> Job:
    """The job at one shape; more launches than usual, since a process keeps what luck it had at its start. All samples judge:
    nothing is promoted here, and rivals are held against them as well."""
    measurement = job.measurement.model_copy(update={"batch_sizes": (batch,), "dims": dims, "launches": 8})
    everything = Confirmation(share=0)
    return job.model_copy(update={"measurement": measurement, "candidates": candidates, "confirmation": everything})


MODELS: dict[str, Callable[[Path], Iterator[Case]]] = {"text": text, "image": image, "language": language}

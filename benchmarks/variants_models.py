"""The models of `variants_cpu.py`, each as jobs: one for each shape of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from flows.cli.demo import prepare_demo
from tasks.demo.image import MODEL_FILE
from validators.job.job import Confirmation, Job
from validators.job.read_job import parse_job, read_job
from validators.targets import facts_of

LANGUAGE_WINDOWS = 16  # of 512 tokens
LANGUAGE_CALIBRATION = 32
# Of the default list those that can pass on a decoder in reasonable time: static ranges lose far more than the gate allows.
LANGUAGE_CANDIDATES = (
    "int8-dynamic-pc@ort-cpu",
    "int8-dynamic-pc-smooth@ort-cpu",
    "int4-g32-gptq-asym@ort-cpu",
    "fp32-fused@openvino",
    "bf16@openvino",
    "int8-static-mse-pc-all-smooth@openvino",
    "int8-static-mse-pc-all-smooth-bf16@openvino",
)
# Samples of a case that only shows whether all works.
FEW = 8
# The shape at which the choice is also compared with that of a run for ONNX Runtime alone.
BESIDE_BEFORE = (16, 64)


@dataclass(frozen=True)
class Case:
    """A job whose first batch size, and dims, are the shape of a request; the rivals calibrate so many samples at once.

    `torch_weights` are those of the model's PyTorch form, where there is one. `job_before` is the job of an earlier choice.
    """

    kind: str
    label: str
    job: Job
    calibration_batch: int = 16
    torch_weights: Path | None = None
    job_before: Job | None = None


def text(state: Path) -> Iterator[Case]:
    """The demo's sentence encoder with its sentiment head: 2,000 reviews."""
    job = read_job(prepare_demo(state))
    for batch, length in ((1, 16), (1, 64), (16, 16), (16, 64)):
        shaped = _shaped(job, batch, {"sequence": (length,)})
        before = shaped.model_copy(update={"target": "ort-cpu", "candidates": _without_numerics("ort-cpu")})
        yield Case(
            "text",
            f"batch {batch}, {length} tokens",
            shaped,
            job_before=before if (batch, length) == BESIDE_BEFORE else None,
        )


def image(state: Path) -> Iterator[Case]:
    """The demo's EfficientNet-Lite0 with its digits head."""
    job = read_job(prepare_demo(state, "image"))
    for batch in (1, 16):
        # Beside its samples lie the weights of the PyTorch module.
        weights = Path(str(job.data.evaluation)).with_name(MODEL_FILE)
        yield Case("image", f"batch {batch}", _shaped(job, batch, {}), torch_weights=weights)


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
    for batch, length in ((1, 16), (1, 128), (16, 16)):
        shaped = _shaped(job, batch, {"sequence": (length,)}, LANGUAGE_CANDIDATES)
        yield Case("language", f"batch {batch}, {length} tokens", shaped, calibration_batch=1)


def rough(case: Case) -> Case:
    """Return the case with measurements that accept any load of the machine."""
    return replace(case, job=_rough(case.job), job_before=case.job_before and _rough(case.job_before))


def cut(case: Case) -> Case:
    """Return the case with few samples, launches and candidates, and a wide gate: what it finds are no figures."""
    job = case.job
    files = {}
    for name in ("calibration", "evaluation"):
        whole = Path(str(getattr(job.data, name)))
        files[name] = whole.with_name(f"few-{whole.name}")
        with np.load(whole) as archive:
            np.savez(files[name], **{key: archive[key][:FEW] for key in archive.files})
    measurement = job.measurement.model_copy(update={"launches": 1, "blocks": 3, "block_count": 1})
    changes = {
        "data": job.data.model_copy(update=files),
        "gates": job.gates.model_copy(update={"max_drop": 5.0}),
        "measurement": measurement,
        # The first of each engine.
        "candidates": tuple({name.partition("@")[2]: name for name in reversed(job.candidates or ())}.values()),
    }
    return replace(case, job=job.model_copy(update=changes), job_before=None)


def _rough(job: Job) -> Job:
    return job.model_copy(update={"measurement": job.measurement.model_copy(update={"max_other_load": None})})


def _shaped(job: Job, batch: int, dims: dict[str, tuple[int, ...]], candidates: tuple[str, ...] | None = None) -> Job:
    """Return the job at one shape, with the default candidates of the class `cpu`.

    It has more launches than usual, since a process keeps what luck it had at its start. All samples judge: nothing is promoted
    here, and rivals are held against them as well.
    """
    measurement = job.measurement.model_copy(update={"batch_sizes": (batch,), "dims": dims, "launches": 8})
    changes = {
        "target": "cpu",
        "candidates": candidates or _without_numerics("cpu"),
        "search": "race",
        "measurement": measurement,
        "confirmation": Confirmation(share=0),
    }
    return job.model_copy(update=changes)


def _without_numerics(target: str) -> tuple[str, ...]:
    """Return the default candidates of a target or class, without those that are never promoted."""
    return tuple(name for name in facts_of(target).default_candidates if not name.startswith("fp8"))


MODELS: dict[str, Callable[[Path], Iterator[Case]]] = {"text": text, "image": image, "language": language}

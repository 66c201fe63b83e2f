"""The models of `variants_cpu.py`, each as jobs: one for each shape of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flows.cli.demo import prepare_demo
from tasks.demo.image import MODEL_FILE
from validators.job.job import Confirmation, Job
from validators.job.read_job import read_job
from validators.targets import facts_of

# Samples of a case that only shows whether all works.
FEW = 8
# The shape at which the choice is also compared with that of a run for ONNX Runtime alone.
BESIDE_BEFORE = (16, 64)


@dataclass(frozen=True)
class Case:
    """A job whose first batch size, and dims, are the shape of a request.

    `torch_weights` are those of the model's PyTorch form, where there is one. `job_before` is the job of an earlier choice.
    """

    kind: str
    label: str
    job: Job
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


def _shaped(job: Job, batch: int, dims: dict[str, tuple[int, ...]]) -> Job:
    """Return the job at one shape, with the default candidates of the class `cpu`.

    It has more launches than usual, since a process keeps what luck it had at its start. All samples judge: nothing is promoted
    here, and rivals are held against them as well.
    """
    measurement = job.measurement.model_copy(update={"batch_sizes": (batch,), "dims": dims, "launches": 8})
    changes = {
        "target": "cpu",
        "candidates": _without_numerics("cpu"),
        "search": "race",
        "measurement": measurement,
        "confirmation": Confirmation(share=0),
    }
    return job.model_copy(update=changes)


def _without_numerics(target: str) -> tuple[str, ...]:
    """Return the default candidates of a target or class, without those that are never promoted."""
    return tuple(name for name in facts_of(target).default_candidates if not name.startswith("fp8"))


MODELS: dict[str, Callable[[Path], Iterator[Case]]] = {"text": text, "image": image}

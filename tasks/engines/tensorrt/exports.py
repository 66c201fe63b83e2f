"""Export of engines for Triton's backend `tensorrt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.engines.tensorrt.shipped.model import ENGINE
from tasks.serving.exporter import Exporter
from tasks.serving.triton import Sides, TritonBackend, batch_of

PLAN = "model.plan"


def _batch(manifest: Mapping[str, Any], tensors: Sides, asked: int | None) -> tuple[int, tuple[str, ...]]:
    batch, notes = batch_of(manifest, tensors, asked)
    notes += ("an engine runs on the TensorRT, the GPU and the driver that it was built with, and nowhere else",)
    if batch > 1:
        notes += ("Triton adds dynamic batching to an engine unless it is started with --disable-auto-complete-config",)
    return batch, notes


BACKEND = TritonBackend(name="tensorrt", platform="tensorrt_plan", model_file=PLAN, files={PLAN: ENGINE}, batch=_batch)
EXPORTS = {"--triton": Exporter(BACKEND.write, in_repository=True)}

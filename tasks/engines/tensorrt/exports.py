"""READMEs of engines, and their export for Triton's backend `tensorrt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.engines.tensorrt.shipped.model import ENGINE
from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter
from tasks.serving.sections import shown
from tasks.serving.triton import Sides, TritonBackend, batch_of

PLAN = "model.plan"


def program(_manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for TensorRT, which use the package that MLflow stores beside the artifacts."""
    lines = [
        "import json",
        "import sys",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        'sys.path.insert(0, "../code")  # of the same version',
        "from quantgate_tensorrt.model import open_version",
        "",
        f'session = open_version(Path("{FOLDER}"), json.loads(Path("manifest.json").read_text(encoding="utf-8")))',
        "",
    ]
    return ExampleProgram(lines, "[one.name for one in session.outputs]", "session.run(feed, names)")


def settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the approved settings of the session, by their names for people."""
    engine = manifest["engine"]
    build = engine["build"]
    return [
        ("Built for", shown(f"{engine['gpu']}, compute capability {engine['compute_capability']}")),
        ("Driver", shown(str(engine["driver"]))),
        ("Workspace", f"{build['workspace_mb']} MB" if build["workspace_mb"] else "all there is"),
        ("TF32", "yes" if build["tf32"] else "no"),
        *((f"Shapes of {shown(name)}", _range(shapes)) for name, shapes in build["profile"].items()),
    ]


def _range(shapes: dict[str, list[int]]) -> str:
    return f"{list(shapes['minimum'])} to {list(shapes['maximum'])}, fastest at {list(shapes['optimum'])}"


def _batch(manifest: Mapping[str, Any], tensors: Sides, asked: int | None) -> tuple[int, tuple[str, ...]]:
    batch, notes = batch_of(manifest, tensors, asked)
    notes += ("an engine runs on the TensorRT, the GPU and the driver that it was built with, and nowhere else",)
    if batch > 1:
        notes += ("Triton adds dynamic batching to an engine unless it is started with --disable-auto-complete-config",)
    return batch, notes


BACKEND = TritonBackend(name="tensorrt", platform="tensorrt_plan", model_file=PLAN, files={PLAN: ENGINE}, batch=_batch)
EXPORTS = {"--triton": Exporter(BACKEND.write, in_repository=True)}

"""Example program and settings for the README of a version in TensorRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.sections import shown


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

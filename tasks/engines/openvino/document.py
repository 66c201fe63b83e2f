"""Example program and settings for the README of a version in OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.engines.openvino.exports import openvino_options
from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.sections import shown


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for OpenVINO."""
    options, file = openvino_options(manifest["session"]), manifest.get("artifact", "model.onnx")
    lines = [
        "import numpy as np",
        "import openvino as ov",
        "",
        "core = ov.Core()",
        f'session = core.compile_model(core.read_model("{FOLDER}/{file}"), "CPU", {options!r})',
        "",
    ]
    return ExampleProgram(lines, repr(manifest["outputs"]), "session(feed).values()")


def settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the approved settings of the session, by their names for people."""
    return [(f"Option {shown(key)}", shown(value)) for key, value in openvino_options(manifest["session"]).items()]

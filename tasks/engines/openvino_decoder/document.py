"""Example program and settings for the README of a decoder in OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.engines.genai import document as decoders
from tasks.serving.example import FOLDER, ExampleProgram

# A decoder has the same settings in either engine.
settings = decoders.settings


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for a decoder in OpenVINO, which use the package that MLflow stores beside the artifacts."""
    session, file = manifest["session"], manifest.get("artifact", "model.onnx")
    lines = [
        "import sys",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "from tokenizers import Tokenizer",
        "",
        'sys.path.insert(0, "../code")  # of the same version',
        "from quantgate_openvino_decoder.model import OpenVinoDecoder",
        "",
        f"options = {dict(session['provider_options'])!r}",
        f'session = OpenVinoDecoder(Path("{FOLDER}/{file}"), {session["threads"]}, options)',
        f'tokenizer = Tokenizer.from_file("{FOLDER}/tokenizer.json")',
        'tokens = np.array([tokenizer.encode("your prompt").ids])',
        "print(tokenizer.decode(session.generate(tokens)[0]))",
    ]
    return ExampleProgram(lines, answered="")

"""Python example that loads a version's artifact with its runtime alone, under the approved settings, and runs one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from validators.targets import facts_of_provider

# Folder of the artifact's files, beside the README.
FOLDER = "variant"


@dataclass(frozen=True)
class ExampleProgram:
    """The lines of a program that opens a version, and the expressions for its outputs' names and for its answer to `feed`.

    One without an answer is whole: it asks the model itself.
    """

    lines: list[str]
    names: str = "[one.name for one in session.get_outputs()]"
    answered: str = "session.run(names, feed)"


def example(manifest: Mapping[str, Any], request: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the lines of a program that runs in the README's folder and defines `session`, `feed` and `outputs`.

    `request` holds the shape of each input by name.
    """
    needed = manifest.get("saturates_without")
    checked = _sums(needed) if needed else []
    document = facts_of_provider(manifest["session"]["provider"]).document
    opened = import_module(document).program(manifest) if document else ExampleProgram(_session(manifest))
    if not opened.answered:
        return [*checked, *opened.lines]
    feed = [
        f"    {name!r}: np.zeros({shape!r}, dtype={manifest['inputs'][name]!r}),  # your samples, along axis 0"
        for name, shape in request.items()
    ]
    return [
        *checked,
        *opened.lines,
        "feed = {",
        *feed,
        "}",
        f"names = {opened.names}",
        f"outputs = dict(zip(names, {opened.answered}))",
        "for name, array in outputs.items():",
        "    print(name, array.dtype, array.shape)",
    ]


def _sums(needed: Sequence[str]) -> list[str]:
    """Return the lines that stop on a processor on which sums of the version's INT8 products saturate."""
    return [
        "from pathlib import Path",
        "",
        "# Sums of its INT8 products saturate on an x86 processor without these, which gives other answers.",
        f"needed = {{{', '.join(map(repr, needed))}}}",
        'cpuinfo = Path("/proc/cpuinfo")',
        "flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()",
        'assert "avx2" not in flags or flags & needed, "a processor on which the version is not what was approved"',
        "",
    ]


def _session(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines for ONNX Runtime: `tasks/champion/consumer/consumer.py`, specialized for this version."""
    settings = manifest["session"]
    provider = settings["provider"]
    packages = [library["package"] for library in manifest["libraries"] if "package" in library]
    lines = [
        "import numpy as np",
        "import onnxruntime as ort",
        *(f"import {name}" for name in packages),
        "",
        "options = ort.SessionOptions()",
        f"options.intra_op_num_threads = {settings['threads']}  # lower it where fewer cores are usable",
        f"options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_{settings['optimization'].upper()}",
        *(f"options.add_session_config_entry({key!r}, {value!r})" for key, value in settings["entries"].items()),
        *(f"options.register_custom_ops_library({_library(library)})" for library in manifest["libraries"]),
    ]
    requested: Any = provider
    if facts_of_provider(provider).on_gpu:
        lines.append("ort.preload_dlls()")
        requested = (provider, settings["provider_options"])
    return [
        *lines,
        f'session = ort.InferenceSession("{FOLDER}/model.onnx", options, providers={[requested]!r})',
        f"assert session.get_providers()[0] == {provider!r}, session.get_providers()",
        "",
    ]


def _library(library: Mapping[str, str]) -> str:
    return repr(f"{FOLDER}/{library['file']}") if "file" in library else f"{library['package']}.get_library_path()"

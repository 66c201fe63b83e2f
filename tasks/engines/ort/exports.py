"""READMEs of versions that ONNX Runtime runs, and their export for Triton's backend `onnxruntime`.

| approved setting | in `config.pbtxt` |
|---|---|
| threads inside an operator | parameter `intra_op_thread_count`; sequential execution is `execution_mode` 0 |
| optimization of the graph | `optimization.graph.level`: 0 for all, -1 for basic |
| session entries | only `session.use_device_allocator_for_initializers`: the backend passes on no other |
| options of the CUDA provider | `gpu_execution_accelerator`; the device number is that of the instance |
| a library of custom operators | `model_operations.op_library_filename` |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter
from tasks.serving.prototext import Fields
from tasks.serving.sections import shown
from tasks.serving.triton import TritonBackend, batch_of, parameters_of
from validators.errors import JobError
from validators.target_facts import CUDA_PROVIDER
from validators.targets import facts_of_provider

# Session entries that the ONNX Runtime backend reads.
ENTRIES = frozenset({"session.use_device_allocator_for_initializers"})


def program(manifest: Mapping[str, Any]) -> ExampleProgram:
    """Return the lines for ONNX Runtime, as its shipped module opens the version."""
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
    lines += [
        f'session = ort.InferenceSession("{FOLDER}/model.onnx", options, providers={[requested]!r})',
        f"assert session.get_providers()[0] == {provider!r}, session.get_providers()",
        "",
    ]
    return ExampleProgram(lines)


def _library(library: Mapping[str, str]) -> str:
    return repr(f"{FOLDER}/{library['file']}") if "file" in library else f"{library['package']}.get_library_path()"


def settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the approved settings of the session, by their names for people."""
    told = manifest["session"]
    rows = [
        ("Provider", told["provider"]),
        *((f"Option {shown(key)} of the provider", shown(value)) for key, value in told["provider_options"].items()),
        ("`intra_op_num_threads`", f"{told['threads']}" + (" (all cores)" if told["threads"] == 0 else "")),
        ("`graph_optimization_level`", f"`ORT_ENABLE_{told['optimization'].upper()}`"),
        *((f"Entry {shown(key)}", shown(value)) for key, value in told["entries"].items()),
    ]
    for library in manifest["libraries"]:
        name = library.get("file") or f"{library['distribution']} {library['version']}"
        rows.append(("Custom operators", shown(name)))
    return rows


def _triton_settings(manifest: Mapping[str, Any], place: Path) -> tuple[Fields, tuple[str, ...]]:
    """Return the approved session settings as fields of the ONNX Runtime backend, and notes on those it does not support."""
    settings = manifest["session"]
    notes = [
        f"the entry {key}={value} of the session: the backend hands none such on"
        for key, value in settings["entries"].items()
        if key not in ENTRIES
    ]
    level = {"all": 0, "basic": -1}[settings["optimization"]]
    parameters = {"intra_op_thread_count": str(settings["threads"]), "execution_mode": "0"}
    parameters |= {key: value for key, value in settings["entries"].items() if key in ENTRIES}
    fields: Fields = (
        ("optimization", (("graph", (("level", level),)), *_accelerators(settings))),
        *parameters_of(parameters),
    )
    libraries = [_exported_library(library, place) for library in manifest["libraries"]]
    if libraries:
        fields += (("model_operations", tuple(("op_library_filename", path) for path in libraries)),)
        notes.append(f"where the server finds {', '.join(libraries)}: the path is that of the machine which wrote this")
    return fields, tuple(notes)


def _exported_library(library: Mapping[str, str], place: Path) -> str:
    if "file" not in library:
        raise JobError(
            found=f"custom operators of the Python package {library['package']}",
            expected="operators of a shared library file, which is exported with the model",
            fix="name the library's file in `operator_libraries` of the job, and promote a variant again",
        )
    return str(PurePosixPath(place.absolute()) / "1" / library["file"])


def _accelerators(settings: Mapping[str, Any]) -> Fields:
    """Return the field with the options of the CUDA provider, if there are any."""
    options = {key: value for key, value in settings.get("provider_options", {}).items() if key != "device_id"}
    if settings["provider"] != CUDA_PROVIDER or not options:
        return ()
    parameters: Fields = tuple(("parameters", (("key", key), ("value", value))) for key, value in options.items())
    return (("execution_accelerators", (("gpu_execution_accelerator", (("name", "cuda"), *parameters)),)),)


BACKEND = TritonBackend(name="onnxruntime", platform="onnxruntime_onnx", settings=_triton_settings, batch=batch_of)
EXPORTS = {"--triton": Exporter(BACKEND.write, in_repository=True)}

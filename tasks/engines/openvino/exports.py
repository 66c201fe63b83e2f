"""READMEs of versions of the target `openvino`, and exports for servers: its Model Server, and Triton's backend.

Sources, as of August 2026: the JSON schema of `config.json` (github.com/openvinotoolkit/model_server, `src/schema.cpp`) and the
page on parameters there; the README and `src/openvino.cc` of github.com/triton-inference-server/openvino_backend. No such
server has run an exported version.

| approved setting | Model Server | Triton's backend |
|---|---|---|
| threads, streams, hint | `plugin_config` | `parameters` of the same names |
| computed in bfloat16 | `plugin_config` | parameter `HINT_BF16` |
| computed in float32 | `plugin_config` | none: it computes in bfloat16 where the processor has it |
| batches of any size | the shapes of the file | `max_batch_size` 0: any other number is the only size that it takes |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.serving.example import FOLDER, ExampleProgram
from tasks.serving.exporter import Exporter, RegisteredVersion, Written
from tasks.serving.prototext import Fields
from tasks.serving.sections import shown, unchecked_device
from tasks.serving.triton import Sides, TritonBackend, parameters_of
from validators.errors import JobError

CONFIG = "config.json"
PRECISION = "INFERENCE_PRECISION_HINT"
# Options that Triton's backend reads under their own names.
TRITON_PARAMETERS = ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT")


def openvino_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the options with which OpenVINO compiles a version, from the session settings of its manifest."""
    return {**settings["provider_options"], "INFERENCE_NUM_THREADS": str(settings["threads"])}


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


def _triton_settings(manifest: Mapping[str, Any], _place: Path) -> tuple[Fields, tuple[str, ...]]:
    """Return the approved options as parameters of Triton's backend, and notes on those that it does not read."""
    options = openvino_options(manifest["session"])
    found = {key: options.pop(key) for key in TRITON_PARAMETERS if key in options}
    if options.get(PRECISION) == "bf16":
        found["HINT_BF16"] = "YES"
        del options[PRECISION]
    notes = [
        f"the option {key}={value} of OpenVINO: the backend reads no such parameter" for key, value in options.items()
    ]
    if PRECISION in options:
        notes.append("the backend computes in bfloat16 on a processor that has it; the variant was approved without")
    return parameters_of(found), tuple(notes)


def _batch(_manifest: Mapping[str, Any], tensors: Sides, asked: int | None) -> tuple[int, tuple[str, ...]]:
    if asked is not None:
        raise JobError(
            found=f"--max-batch {asked} for OpenVINO",
            expected="no bound: the backend would take batches of exactly that size",
            fix="remove --max-batch; batches of any size are taken",
        )
    if scalars := [spec.name for spec in tensors[0] if not spec.shape]:
        raise JobError(
            found=f"the input {scalars[0]!r} is a scalar",
            expected="inputs with axes: the OpenVINO backend of Triton takes no scalars",
            fix="export it with --ovms or --out",
        )
    return 0, ()


def _for_model_server(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    config, notes = model_server_config(version.name, version.manifest)
    files = {f"{version.name}/1/{name}": file for name, file in version.files.items()}
    return Written({**files, CONFIG: config}, notes)


def model_server_config(name: str, manifest: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return `config.json` of OpenVINO Model Server for the model `name`, and what it cannot express of the approval.

    The model is in `<name>/1/` beside it.
    """
    config = {
        "name": name,
        "base_path": name,
        # Its default is a GPU where there is one.
        "target_device": "CPU",
        "plugin_config": openvino_options(manifest["session"]),
    }
    notes = (
        f"the runtime is the server's own; the variant was approved with openvino {manifest['runtime_version']}",
        *unchecked_device(manifest),
    )
    return json.dumps({"model_config_list": [{"config": config}]}, indent=1) + "\n", notes


BACKEND = TritonBackend(name="openvino", settings=_triton_settings, batch=_batch)
EXPORTS = {
    "--triton": Exporter(BACKEND.write, in_repository=True),
    "--ovms": Exporter(_for_model_server),
}

"""Layers of an engine, parsed from the builder's log or from the inspector's JSON.

`tensorrt_rtx` (1.7) prints one line per layer into the verbose log of a build, after `Layers:`

    Name: c_U22_myl0_2, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [-1,4,8,8], ..., Datatype: Int8, ... }],
    Constants: [ { ... } ], Outputs: [ { ... } ], TacticName: ..., StreamId: 0, Metadata: [ONNX Layer: c][ONNX Layer: ...]

The inspector of `tensorrt` (11) returns JSON: `{"Layers": [{"Name": ..., "LayerType": ..., "Inputs": [{"Name": ..., "Datatype":
..., "Format": ...}], ...}], "I/O Tensors": [...]}`. Up to version 10, "Format/Datatype" holds the dtype before the layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from validators.errors import CandidateRefused
from validators.records.engines import EngineLayer

HEADING = "Layers:"
# Names of `nvinfer1::DataType` as both texts print them, in lower case.
_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "fp8": "fp8",
    "e4m3": "fp8",
    "int4": "int4",
    "fp4": "fp4",
    "e2m1": "fp4",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}
_LINE = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: \[(?P<inputs>.*?)\], Constants: \[(?P<constants>.*?)\], "
    r"Outputs: \[(?P<outputs>.*?)\], TacticName: (?P<tactic>.*?), StreamId: -?\d+,(?: EventId: -?\d+,)? "
    r"Metadata: ?(?P<metadata>.*)"
)
_DTYPE = re.compile(r"\bDatatype: ([^,}]+)")
# Entries follow each other directly or after a control character; a suffix such as `__gemm_from_conv1x1` may follow.
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\[\x1e\x1f_]|$)")


def layers_in_log(messages: Iterable[str]) -> tuple[EngineLayer, ...]:
    """Return the layers in the messages of a build; none if the runtime does not print them.

    Raises:
        CandidateRefused: `unsupported`: the text differs from the format of the pinned version.
    """
    texts = [text for text in messages if text.startswith(HEADING)]
    return parse_layers_text(texts[-1]) if texts else ()


def parse_layers_text(text: str) -> tuple[EngineLayer, ...]:
    """Return the layers in the text of `tensorrt_rtx` that begins with `Layers:` and ends with an empty line.

    Raises:
        CandidateRefused: `unsupported`: the text differs from the format of the pinned version.
    """
    lines = text.removeprefix(HEADING).strip("\n").split("\n\n", 1)[0].split("\n")
    return tuple(_layer_of_line(line) for line in lines)


def parse_layers_json(text: str) -> tuple[EngineLayer, ...]:
    """Return the layers in the inspector's JSON of `tensorrt`.

    Raises:
        CandidateRefused: `unsupported`: the text has no list of layers.
    """
    try:
        layers = json.loads(text)["Layers"]
        return tuple(_layer_of_entry(entry) for entry in layers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unknown_format(text) from error


def with_times(layers: Iterable[EngineLayer], milliseconds: Mapping[str, float]) -> tuple[EngineLayer, ...]:
    """Return the layers with a profiler's times by name; layers that the profiler does not name get 0.

    >>> layer = EngineLayer("head", "gemm", (), (), (), "", ())
    >>> with_times([layer], {"head": 0.25})[0].microseconds
    250.0
    """
    return tuple(replace(layer, microseconds=milliseconds.get(layer.name, 0.0) * 1e3) for layer in layers)


def _layer_of_line(line: str) -> EngineLayer:
    match = _LINE.fullmatch(line.rstrip())
    if match is None:
        raise _unknown_format(line)
    tensors = {part: tuple(map(_dtype, _DTYPE.findall(match[part]))) for part in ("inputs", "constants", "outputs")}
    return EngineLayer(
        name=match["name"],
        kind=match["kind"],
        inputs=tensors["inputs"],
        constants=tensors["constants"],
        outputs=tensors["outputs"],
        tactic=match["tactic"],
        nodes=tuple(_NODE.findall(match["metadata"])),
    )


def _layer_of_entry(entry: dict[str, Any]) -> EngineLayer:
    weights = [entry["Weights"]["Type"]] if "Weights" in entry else []
    return EngineLayer(
        name=entry["Name"],
        kind=entry.get("LayerType", ""),
        inputs=_dtypes(entry.get("Inputs", [])),
        constants=_dtypes(entry.get("Constants", [])) or tuple(map(_dtype, weights)),
        outputs=_dtypes(entry.get("Outputs", [])),
        tactic=entry.get("TacticName", ""),
        nodes=tuple(_NODE.findall(entry.get("Metadata", ""))),
    )


def _dtypes(tensors: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(_dtype(tensor["Datatype"] if "Datatype" in tensor else tensor["DataType"]) for tensor in tensors)


def _dtype(name: str) -> str:
    return _DTYPES.get(name.strip().lower(), name.strip().lower())


def _unknown_format(found: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=f"unknown format of an engine's layers: {found[:200]!r}",
        expected="the text of tensorrt_rtx 1.7, or the JSON of the inspector of tensorrt 11",
        fix="install the version that the extra names, since coverage cannot be read from this format",
    )

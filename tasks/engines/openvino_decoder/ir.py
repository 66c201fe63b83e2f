"""Decoders in OpenVINO's own format, as its exporters write them: taken up as given files, and the bytes of their weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx

from tasks.engines.openvino.ir import read_ir, take_ir
from tasks.engines.openvino_decoder.session import BEAMS
from tasks.runtimes.decoder_session import LOGITS, MASK, PAST, POSITIONS, TOKENS
from validators.errors import CandidateRefused
from validators.graph.interfaces import spec_of
from validators.job.given_file import GivenFile
from validators.records.generation import DecoderBytes
from validators.samples.datasets import TensorSpec

CONFIG = "genai_config.json"
INPUTS = frozenset({TOKENS, MASK, POSITIONS, BEAMS})


def take_decoder_ir(given: GivenFile, path: Path, source: Path) -> str:
    """Copy a decoder whose caches are states to `path`, after a check that they are the source's; see `TakeUp`.

    Raises:
        CandidateRefused: `invalid`: OpenVINO does not read it, or an input, the output or a state differs from the source's.
    """
    maker = take_ir(given, path, source)
    model = read_ir(path)
    for what, ports, expected in (("inputs", model.inputs, INPUTS), ("outputs", model.outputs, {LOGITS})):
        found = {name for port in ports for name in port.names}
        if found != expected:
            raise _refused(given, f"it has the {what} {', '.join(sorted(found))}", ", ".join(sorted(expected)))
    graph = onnx.load(source, load_external_data=False).graph
    caches = [spec_of(value) for value in graph.input if value.name.startswith(PAST)]
    states = {state.info.variable_id: state.info.data_shape for state in model.get_variables()}
    for cache in caches:
        mine = [shape for name, shape in states.items() if name.startswith(cache.name)]
        if len(mine) != 1 or not _fits(mine[0], cache):
            has = f"a state {mine[0]} for" if mine else "no state for"
            raise _refused(given, f"it has {has} {cache.name}", f"a state of the source's shape: {cache}")
    if len(states) != len(caches):
        raise _refused(given, f"it has {len(states)} states", f"{len(caches)}, as the source")
    return maker


def _fits(found: Any, expected: TensorSpec) -> bool:
    """Return True if a partial shape has the fixed sizes of a cache."""
    return len(found) == len(expected.shape) and all(
        mine.is_dynamic if not isinstance(size, int) else mine.is_static and mine.get_length() == size
        for mine, size in zip(found, expected.shape, strict=True)
    )


def _refused(given: GivenFile, found: str, expected: str) -> CandidateRefused:
    fix = "export the decoder with its caches as states, of the version that the job names"
    return CandidateRefused(kind="invalid", found=f"{given.file.name}: {found}", expected=expected, fix=fix)


def bytes_of_ir(path: Path) -> DecoderBytes:
    """Return the bytes of a decoder's weights, and of its caches in float32."""
    model = read_ir(path)
    weights: dict[str, int] = {}
    in_full: set[str] = set()
    # Constants behind each value that is computed from constants alone.
    behind: dict[Any, frozenset[str]] = {}
    for operation in model.get_ordered_ops():
        name, sources = operation.get_friendly_name(), [port.get_source_output() for port in operation.inputs()]
        kinds = [behind.get((one.get_node().get_friendly_name(), one.get_index()), frozenset()) for one in sources]
        if operation.get_type_name() == "Constant":
            weights[name] = operation.get_byte_size()
            behind[name, 0] = frozenset({name})
        elif kinds and all(kinds):
            behind |= {(name, port.get_index()): frozenset().union(*kinds) for port in operation.outputs()}
        else:
            is_table = operation.get_type_name() == "Gather"
            in_full.update(*(kinds[1:] if is_table else kinds))
    caches = (state.info for state in model.get_variables())
    context = json.loads(path.with_name(CONFIG).read_text(encoding="utf-8"))["model"]["context_length"]
    return DecoderBytes(
        weights=sum(weights.values()),
        read_weights=sum(size for name, size in weights.items() if name in in_full),
        cache=sum(4 * math.prod(one.data_shape[axis].get_length() for axis in (1, 3)) for one in caches),
        context=int(context),
    )

"""Behaviour of TensorRT-RTX's parser with a file, for `quantgate lint`. The parser needs no GPU; no engine is built."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnx

from tasks.engines.tensorrt.build import available
from tasks.engines.tensorrt.build_process import run_builder
from tasks.engines.tensorrt.build_process_child import ANSWER
from tasks.engines.tensorrt.errors import told_lines
from tasks.engines.tensorrt.shipped.build import NodeError
from validators.errors import CandidateRefused, SourceError
from validators.graph.graph_scope import label
from validators.graph.lint import WHOLE, Finding, RuntimeFacts
from validators.untrusted.external_data import check_external_data

FIX = "replace the operator, its setting or its type by one of TensorRT's support matrix"


def observe_parser(model: Path) -> RuntimeFacts:
    """Parse a file by TensorRT-RTX in a process of its own; each error is a fact. Builder and kernels are left to the rules."""
    version = available().get("tensorrt_rtx")
    if version is None:
        return RuntimeFacts("rules alone: tensorrt_rtx is not installed (extra `tensorrt-aot`)")
    proto = onnx.load(model, load_external_data=False)
    try:
        check_external_data(model, proto)
        errors = _parse(model)
    except SourceError as error:
        return RuntimeFacts(f"rules alone: {error.found}")
    except CandidateRefused as error:
        return RuntimeFacts(f"rules alone: {error.found}")
    facts = (_fact(error, proto, f"TensorRT-RTX {version}") for error in errors)
    return RuntimeFacts(f"rules, and the parser of TensorRT-RTX {version}; no engine was built", tuple(facts))


def _parse(model: Path) -> tuple[NodeError, ...]:
    """Return the parser's errors.

    Raises:
        CandidateRefused: the parser crashed, or cannot be imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A compute capability chooses the runtime; the parser reads none.
        settings: dict[str, Any] = {"workspace_mb": None, "tf32": True, "compute_capabilities": ["8.9"]}
        files = {"onnx": str(model.resolve()), "folder": folder, "shared_cache": None}
        run_builder(settings | files | {"profile": {}, "values": {}, "parse_only": True}, None)
        answer = json.loads(Path(folder, ANSWER).read_text(encoding="utf-8"))
    return tuple(NodeError(**error) for error in answer["errors"])


def _fact(error: NodeError, proto: onnx.ModelProto, runtime: str) -> Finding:
    """Return an error as a finding; the parser does not name the node of every error."""
    node = label(proto.graph.node[error.index]) if 0 <= error.index < len(proto.graph.node) else ""
    told = " ".join(told_lines(error.text))[:300] or error.code
    return Finding("SEEN fails", error.name or node or WHOLE, "fails", f"{runtime} refuses it: {told}", FIX)

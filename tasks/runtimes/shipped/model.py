"""A session of ONNX Runtime with exactly the requested settings.

It imports only the runtime, and measuring processes and consumers load this file without the rest of quantgate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort

CUDA = "CUDAExecutionProvider"
# Session option that makes the runtime record what `assignment` reads (onnxruntime_session_options_config_keys.h).
RECORD = {"session.record_ep_graph_assignment_info": "1"}
# Every multiplying operator's name contains one of these words.
PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention", "LSTM", "GRU", "RNN", "Einsum")
DOMAINS = ("", "ai.onnx", "com.microsoft")


class SessionModel:
    """A session, whose arrays are in host memory."""

    most_bound = sys.maxsize

    def __init__(self, session: ort.InferenceSession) -> None:
        self.session = session
        self.providers: Sequence[str] = session.get_providers()

    def run(self, batch: Mapping[str, Any]) -> list[Any]:
        """Run one request on arrays by input name, and return all outputs."""
        return list(self.session.run(None, batch))

    def bound(self, batch: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a request on the memory of these arrays; each call blocks until it is done. Threads may call it at once."""
        return lambda: self.session.run(None, batch)


def options_of(session: Mapping[str, Any]) -> ort.SessionOptions:
    """Return the options of a session on the processor, without libraries of operators."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = session["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = f"ORT_ENABLE_{session['optimization'].upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in session["entries"].items():
        options.add_session_config_entry(key, value)
    return options


class AssignedNode(NamedTuple):
    """A node with its operator and the provider that runs it."""

    name: str
    kind: str
    domain: str
    provider: str


def assignment(session: ort.InferenceSession) -> list[AssignedNode]:
    """Return the nodes of a session, opened with `RECORD`, as they were before the runtime fused them, in its order.

    A session reports the requested provider first, even if that provider runs a single node.
    """
    return [
        AssignedNode(node.name, node.op_type, node.domain, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def strays(nodes: Iterable[AssignedNode], provider: str) -> list[str]:
    """Return the products that another provider runs. It may run other nodes, such as shape computations."""
    return [
        f"{node.name or 'a node without a name'} ({node.kind} on {node.provider})"
        for node in nodes
        if node.provider != provider and node.domain in DOMAINS and any(word in node.kind for word in PRODUCTS)
    ]


def version() -> str:
    """Return the version of the runtime, as versions name it."""
    return str(ort.__version__)


def load(model: Path, session: Mapping[str, Any], _mismatch: object = None) -> SessionModel:
    """Open a file; `session` has the fields of `validators.records.run.SessionSettings`, libraries as paths.

    Raises:
        RuntimeError: another provider would run the model, or one of its products, more slowly than approved.
    """
    provider = session["provider"]
    on_gpu = provider == CUDA
    options = options_of(session)
    for library in session["libraries"]:
        options.register_custom_ops_library(library)
    providers: Any = [provider]
    if on_gpu:
        for key, value in RECORD.items():
            options.add_session_config_entry(key, value)
        ort.preload_dlls()
        providers = [(provider, session["provider_options"])]
    opened = ort.InferenceSession(model, options, providers=providers, enable_fallback=not on_gpu)
    if opened.get_providers()[0] != provider:
        raise RuntimeError(f"found providers {opened.get_providers()}; expected {provider} first")
    if on_gpu and (found := strays(assignment(opened), provider)):
        raise RuntimeError(
            f"found products that {provider} does not run: {', '.join(found[:5])}; expected all products on it, as approved; "
            "install the versions that the manifest names"
        )
    return SessionModel(opened)

"""Assignment of nodes to providers, as ONNX Runtime reports it after partitioning a graph and before fusing nodes.

A session reports the requested provider first, even if that provider runs a single node. If a product runs elsewhere, a
measurement of the session would carry the wrong label.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from validators.errors import CandidateRefused
from validators.samples.words import SHOWN, and_more

if TYPE_CHECKING:
    import onnxruntime as ort

# Session option that makes the runtime record what `assignment` reads (onnxruntime_session_options_config_keys.h).
RECORD = {"session.record_ep_graph_assignment_info": "1"}


class AssignedNode(NamedTuple):
    """A node with its operator and the provider that runs it."""

    name: str
    kind: str
    domain: str
    provider: str


def assignment(session: ort.InferenceSession) -> tuple[AssignedNode, ...]:
    """Return the nodes of a session that was opened with `RECORD`, in the runtime's order."""
    return tuple(
        AssignedNode(node.name, node.op_type, node.domain, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def refuse_strays(nodes: Iterable[AssignedNode], provider: str) -> None:
    """Refuse a session in which another provider runs a product. It may run other nodes, such as shape computations.

    Raises:
        CandidateRefused: `unsupported`: another provider runs nodes with multiply-accumulates; the error names them.
    """
    # Imported here: `macs` reads profiles, and these need sessions, which import this module.
    from tasks.runtimes.macs import MAC_RULES, RUNTIME_DOMAINS

    strays = [
        f"{node.name or 'a node without a name'} ({node.kind} on {node.provider})"
        for node in nodes
        if node.kind in MAC_RULES and node.domain in RUNTIME_DOMAINS and node.provider != provider
    ]
    if strays:
        raise CandidateRefused(
            kind="unsupported",
            found=f"{provider} does not run the products {', '.join(strays[:SHOWN])}{and_more(strays)}",
            expected=f"all products on {provider}",
            fix="use a precision for which the provider has kernels, see docs/candidates.md",
        )

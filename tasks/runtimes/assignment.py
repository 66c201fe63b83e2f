"""Which provider got which node, as ONNX Runtime tells when it has divided a graph, before it fuses nodes.

A session bears the name of the provider that was asked for as soon as one node runs there. A product that went elsewhere makes
it another session than the one that a measurement is labelled with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from validators.errors import CandidateRefused
from validators.samples.words import SHOWN, and_more

if TYPE_CHECKING:
    import onnxruntime as ort

# Of the session options: keep what `assignment` reads (onnxruntime_session_options_config_keys.h).
RECORD = {"session.record_ep_graph_assignment_info": "1"}


class AssignedNode(NamedTuple):
    """A node with its operator and the provider that runs it."""

    name: str
    kind: str
    domain: str
    provider: str


def assignment(session: ort.InferenceSession) -> tuple[AssignedNode, ...]:
    """The nodes of a session that was opened with `RECORD`, in the order of the runtime."""
    return tuple(
        AssignedNode(node.name, node.op_type, node.domain, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def refuse_strays(nodes: Iterable[AssignedNode], provider: str) -> None:
    """Refuse a session in which another provider runs a product; other nodes, such as shapes, it may run.

    Raises:
        CandidateRefused: `unsupported`: the nodes with multiply-accumulates that another provider runs, by name.
    """
    # The rules read profiles, which sessions make.
    from tasks.runtimes.macs import MAC_RULES, RUNTIME_DOMAINS

    strays = [
        f"{node.name or 'a node without a name'} ({node.kind} on {node.provider})"
        for node in nodes
        if node.kind in MAC_RULES and node.domain in RUNTIME_DOMAINS and node.provider != provider
    ]
    if strays:
        raise CandidateRefused(
            kind="unsupported",
            found=f"products that {provider} does not run: {', '.join(strays[:SHOWN])}{and_more(strays)}",
            expected=f"all of them on {provider}",
            fix="a precision for which the provider has kernels: see docs/candidates.md",
        )

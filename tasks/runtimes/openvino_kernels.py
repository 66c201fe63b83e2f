"""Which kernels OpenVINO ran, by node of the model: read from the profile that its provider gives to ONNX Runtime.

The provider runs all that it takes as one node. Profiled, it adds an event of category `Kernel` for each step of its own
compiled graph (`ov::ProfilingInfo`): the name, `ov_node_type` such as `FullyConnected`, and `ov_exec_type` such as
`brgemm_avx512_I8`, a kernel with the type of what it reads (I8 stands for UINT8). A product has the name of its node, with
what was made of it behind a slash, or that of the last operator fused into it; attention becomes one step of which only the
name of a tensor is left. Products that no step can be traced back to are of unknown precision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx

from tasks.runtimes.kernels import Kernel

INTEGERS = frozenset({"i8", "u8", "i4", "u4"})
PRODUCTS = ("fullyconnected", "matmul", "convolution")


def products_behind(graph: onnx.GraphProto, products: Collection[str]) -> dict[str, str]:
    """The one product of `products` that a node is, or reads with no other in between, by node; others are left out.

    By the names of outputs as well, which the steps that make them take.
    """
    makers: dict[str, frozenset[str]] = {}
    behind = {}
    for node in graph.node:
        found = frozenset({node.name}) if node.name in products else frozenset()
        if not found:
            found = found.union(*(makers.get(name, frozenset()) for name in node.input))
        makers |= dict.fromkeys(node.output, found)
        if len(found) == 1:
            behind[node.name] = next(iter(found))
    made = {value.name: makers.get(value.name, frozenset()) for value in graph.output}
    return behind | {name: next(iter(found)) for name, found in made.items() if len(found) == 1}


def kernels_by_node(events: Iterable[dict[str, Any]], behind: Mapping[str, str]) -> dict[str, Kernel]:
    """The kernel of each product that the events of a profile tell of; `behind` gives the product of a node's name.

    >>> ran = {"ov_node_type": "Convolution", "ov_exec_type": "brgconv_avx512_1x1_I8"}
    >>> events = [{"cat": "Kernel", "name": "OV::/conv/WithoutBiases", "args": ran}]
    >>> kernels_by_node(events, {"/conv": "/conv"})["/conv"].name
    'Convolution brgconv_avx512_1x1_I8'
    """
    found = {}
    for event in events:
        if event.get("cat") != "Kernel" or "ov_exec_type" not in event["args"]:
            continue
        kind, how = event["args"]["ov_node_type"], event["args"]["ov_exec_type"]
        node = _node_of(event["name"].removeprefix("OV::"), behind)
        if node and any(product in kind.lower() for product in PRODUCTS):
            # Of compressed weights the kernel tells the type of the activations, which are float.
            low = how.rpartition("_")[2].lower() in INTEGERS or kind.endswith("Compressed")
            found[behind[node]] = Kernel(f"{kind} {how}", low)
    return found


def _node_of(name: str, nodes: Collection[str]) -> str:
    """The node that a step was made of: the name without what was added, from the right, behind slashes."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name

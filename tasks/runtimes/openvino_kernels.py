"""OpenVINO's kernels by node of the model, read from the profile that its provider gives to ONNX Runtime.

The provider runs all nodes that it takes as one. When profiled, it adds an event of category `Kernel` for each step of its
compiled graph (`ov::ProfilingInfo`): the name, `ov_node_type` such as `FullyConnected`, and `ov_exec_type` such as
`brgemm_avx512_I8`, the kernel with the type of its input (I8 also means UINT8). A product has the name of its node, with a
suffix after a slash, or the name of the last operator fused into it. Attention becomes one step that keeps only the name of a
tensor. Products that match no step have unknown precision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx

from tasks.runtimes.kernels import Kernel

INTEGERS = frozenset({"i8", "u8", "i4", "u4"})
PRODUCTS = ("fullyconnected", "matmul", "convolution")


def products_behind(graph: onnx.GraphProto, products: Collection[str]) -> dict[str, str]:
    """Map each node to the only product of `products` that it is or depends on with no other product in between.

    Nodes with several such products, or none, are left out. Names of graph outputs are mapped too, since the steps that
    produce them take their names.
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
    """Return the kernel of each product in the events of a profile; `behind` maps node names to products.

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
            # With compressed weights, the kernel's name has the type of the activations, which are float.
            low = how.rpartition("_")[2].lower() in INTEGERS or kind.endswith("Compressed")
            found[behind[node]] = Kernel(f"{kind} {how}", low)
    return found


def _node_of(name: str, nodes: Collection[str]) -> str:
    """Return the node of a step: its name without the suffixes added after slashes; "" if there is none."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name

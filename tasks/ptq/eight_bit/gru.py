"""GRU layers as integer products: ONNX Runtime's CPU provider has an integer kernel for LSTM and none for GRU.

The product of all steps' inputs with W is one DynamicQuantizeMatMul; a Scan does the rest of each step, with the product of
the state and R as another. Its dozen small operators take 5 us a step, so that small layers get slower (one thread, 80 steps,
W of twice the state, beside the GRU kernel: 48 units 0.05 -> 0.47 ms, 256 units 0.92 -> 0.82 ms or 4.16 -> 1.95 ms for a batch
of 8, 512 units 3.54 -> 1.53 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_graph, make_node, make_tensor_value_info

from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import Names, attribute
from validators.graph.stored import to_array

LEAST_UNITS = 256
_DEFAULTS = {"clip": None, "layout": 0, "activations": None, "activation_alpha": None, "activation_beta": None}
# Name and array -> the name of a new constant.
AddConstant = Callable[[str, NDArray[Any]], str]


def why_no_gru(view: GraphView, node: onnx.NodeProto) -> str | None:
    """Return why a GRU stays in float, or None."""
    weights = [view.constants.get(name) for name in [*node.input[1:4]] if name]
    fixed = all(weight is not None and weight.data_type == onnx.TensorProto.FLOAT for weight in weights)
    plain = all(attribute(node, name, default) == default for name, default in _DEFAULTS.items())
    if not fixed or not plain or any(node.input[4:5]) or not attribute(node, "linear_before_reset", 0):
        return "a GRU in a form that has no quantized one"
    if attribute(node, "hidden_size", 0) < LEAST_UNITS:
        return f"a GRU of fewer than {LEAST_UNITS} units, which integer kernels make slower"
    return None


def quantized_gru(
    node: onnx.NodeProto,
    view: GraphView,
    weights: Int8Weights,
    names: Names,
    add: AddConstant,
) -> list[onnx.NodeProto]:
    """Return the nodes that replace a GRU, for which `why_no_gru` has no reason.

    X `[steps, batch, inputs]`, W `[directions, 3 units, inputs]`, R `[directions, 3 units, units]`, B `[directions, 6 units]`;
    Y `[steps, directions, batch, units]`, Y_h `[directions, batch, units]`. Gates are z, r, h (ONNX, GRU).
    """
    w, r = (to_array(view.constants[name]) for name in node.input[1:3])
    ways, units = r.shape[0], r.shape[2]
    given = node.input[3] if len(node.input) > 3 else ""
    bias = to_array(view.constants[given]) if given else np.zeros((ways, 6 * units), np.float32)

    def new(part: str) -> str:
        return names.new(f"{node.name}_{part}")

    def product(data: str, matrix: NDArray[Any], row: NDArray[Any], part: str) -> onnx.NodeProto:
        codes, scales = weights.quantize(np.ascontiguousarray(matrix), 1)
        arrays = (codes, scales, np.zeros(scales.shape, np.int8), np.ascontiguousarray(row))
        inputs = [
            add(f"{node.name}_{part}_{suffix}", array)
            for suffix, array in zip(("int8", "scale", "zero_point", "bias"), arrays, strict=True)
        ]
        return make_node("DynamicQuantizeMatMul", [data, *inputs], [new(part)], name=new(part), domain="com.microsoft")

    nodes = [product(node.input[0], w.reshape(-1, w.shape[2]).T, bias[:, : 3 * units].reshape(-1), "inputs")]
    parts = [new(f"inputs_{way}") for way in range(ways)]
    sizes = add(f"{node.name}_ways", np.full(ways, 3 * units, np.int64))
    nodes.append(make_node("Split", [nodes[0].output[0], sizes], parts, name=new("split"), axis=2))
    starts, first = _starts(node, ways, units, new, add)
    nodes += first
    gates = add(f"{node.name}_gates", np.array([units, units, units], np.int64))
    ends, states = [], []
    for way in range(ways):
        step = product("", r[way].T, bias[way, 3 * units :], f"state_{way}")
        backward = int(way == 1 or attribute(node, "direction", b"forward") == b"reverse")
        scan, end, state = _scan(step, starts[way], parts[way], gates, units, backward, new)
        nodes.append(scan)
        ends.append(end)
        states.append(state)
    outputs = [*node.output, ""][:2]
    for output, found, axis in zip(outputs, (states, ends), (1, 0), strict=True):
        if output:
            nodes += _stack(found, output, axis, new, add)
    return nodes


def _starts(
    node: onnx.NodeProto, ways: int, units: int, new: Callable[[str], str], add: AddConstant
) -> tuple[list[str], list[onnx.NodeProto]]:
    """Return the first state of each direction, `[batch, units]`, and the nodes that make them."""
    if len(node.input) > 5 and node.input[5]:
        starts = [new(f"start_{way}") for way in range(ways)]
        places = [add(f"{node.name}_way_{way}", np.array(way, np.int64)) for way in range(ways)]
        gathers = [
            make_node("Gather", [node.input[5], place], [start], name=new("gather"), axis=0)
            for place, start in zip(places, starts, strict=True)
        ]
        return starts, gathers
    shape, batch, size, start = (new(part) for part in ("shape", "batch", "size", "start"))
    one, width = (
        add(f"{node.name}_one", np.array([1], np.int64)),
        add(f"{node.name}_units", np.array([units], np.int64)),
    )
    return [start] * ways, [
        make_node("Shape", [node.input[0]], [shape], name=new("shape")),
        make_node("Gather", [shape, one], [batch], name=new("gather")),
        make_node("Concat", [batch, width], [size], name=new("concat"), axis=0),
        make_node("ConstantOfShape", [size], [start], name=new("zeros")),
    ]


def _scan(
    step: onnx.NodeProto, start: str, data: str, gates: str, units: int, backward: int, new: Callable[[str], str]
) -> tuple[onnx.NodeProto, str, str]:
    """Return the Scan of one direction, its last state `[batch, units]` and its states `[steps, batch, units]`."""
    before, now, after, kept = (new(part) for part in ("before", "now", "after", "kept"))
    names = {
        part: new(part)
        for part in ("xz", "xr", "xh", "hz", "hr", "hh", "az", "ar", "z", "r", "rh", "ah", "n", "d", "zd")
    }

    def op(kind: str, inputs: list[str], outputs: list[str], **options: Any) -> onnx.NodeProto:
        found = [names.get(name, name) for name in inputs], [names.get(name, name) for name in outputs]
        return make_node(kind, *found, name=new(kind), **options)

    step.input[0] = before
    nodes = [
        step,
        op("Split", [now, gates], ["xz", "xr", "xh"], axis=1),
        op("Split", [step.output[0], gates], ["hz", "hr", "hh"], axis=1),
        op("Add", ["xz", "hz"], ["az"]),
        op("Sigmoid", ["az"], ["z"]),
        op("Add", ["xr", "hr"], ["ar"]),
        op("Sigmoid", ["ar"], ["r"]),
        op("Mul", ["r", "hh"], ["rh"]),
        op("Add", ["xh", "rh"], ["ah"]),
        op("Tanh", ["ah"], ["n"]),
        # (1 - z) n + z h
        op("Sub", [before, "n"], ["d"]),
        op("Mul", ["z", "d"], ["zd"]),
        op("Add", ["n", "zd"], [after]),
        op("Identity", [after], [kept]),
    ]

    def matrix(name: str, width: int) -> onnx.ValueInfoProto:
        return make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, width])

    body = make_graph(
        nodes, new("step"), [matrix(before, units), matrix(now, 3 * units)], [matrix(after, units), matrix(kept, units)]
    )
    end, states = new("end"), new("states")
    scan = make_node(
        "Scan",
        [start, data],
        [end, states],
        name=new("scan"),
        num_scan_inputs=1,
        body=body,
        scan_input_directions=[backward],
        scan_output_directions=[backward],
    )
    return scan, end, states


def _stack(
    found: list[str], output: str, axis: int, new: Callable[[str], str], add: AddConstant
) -> list[onnx.NodeProto]:
    """Return nodes that stack the directions along a new axis."""
    place = add(new("axis"), np.array([axis], np.int64))
    apart = [new("apart") for _ in found]
    nodes = [
        make_node("Unsqueeze", [name, place], [end], name=new("unsqueeze"))
        for name, end in zip(found, apart, strict=True)
    ]
    return [*nodes, make_node("Concat", apart, [output], name=new("stack"), axis=axis)]

"""Rules for the nodes of a float32 graph that cannot compute in float16, and why.

The bounds of the format are those of IEEE 754-2008, table 3.5 (binary16): largest 65,504, smallest normal number 2^-14. A node
stays in float32 when

- calibration saw values of an input or output beyond a quarter of the largest (the next request may have larger ones), or all
  values below the smallest normal number, where digits are lost;
- one of its constants is beyond the format, or wholly below its normal numbers. Nodes that divide by the result or take its
  root then stay too: a 1e-12 in a denominator guards against a zero, and float16 would round it to zero;
- its result becomes an integer or a size (Cast to an integer, `scales` of Resize): float16 counts exactly to 2,048 only;
- it has a body (If, Loop, Scan), or the operator is not defined for float16 (ONNX operator schemas).

Masks are an exception. A number such as -3.4e38 or -1e9, added to the input of Softmax to mask a position, becomes -16,384, so
that attention stays in float16: exp of either is 0 beside any number that the first rule allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import attribute
from validators.graph.stored import to_array
from validators.untrusted.external_data import bodies_of

LARGEST, SMALLEST_NORMAL = 65504.0, 2.0**-14
HEADROOM = 4
# The sum of two masks, causal and padding, is still finite: a fully masked row of infinities would give NaN.
MASK = -16384.0

INTEGERS = frozenset(
    {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)
# Operators that compute sizes and positions; the search for their origin ends at any other operator.
_COUNTING = frozenset(
    {"Cast", "Floor", "Ceil", "Round", "Mul", "Div", "Add", "Sub", "Sqrt", "Reciprocal", "Concat", "Gather", "Slice"}
    | {"Squeeze", "Unsqueeze", "Reshape", "Range", "Min", "Max", "Neg", "Abs", "Where", "Expand", "Identity"}
)
_GUARDED = frozenset({"Sqrt", "Reciprocal", "Div", "Log", "Pow"})
_TO_SOFTMAX = frozenset(
    {"Add", "Mul", "Where", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Concat", "Cast"}
)
_TINY = "below the normal numbers of float16"


@dataclass(frozen=True)
class Slots:
    """For each input and output of a node: whether the operator supports float16 there."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def slots_of(node: onnx.NodeProto, opset: int) -> Slots:
    """Return the inputs and outputs that may be float16 by the operator's schema; none for a node with a body or a `dtype`.

    Constant has none either: graph preparation turns it into initializers.

    >>> slots_of(onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"]), 21)
    Slots(inputs=(True, True, False), outputs=(True,))
    """
    nowhere = Slots((False,) * len(node.input), (False,) * len(node.output))
    if bodies_of(node) or node.op_type == "Constant" or attribute(node, "dtype", None) is not None:
        return nowhere
    schema = onnx.defs.get_schema(node.op_type, opset)
    sides = []
    for formal, count in ((schema.inputs, len(node.input)), (schema.outputs, len(node.output))):
        # A variadic last formal parameter describes all further ones.
        allowed = [formal[min(index, len(formal) - 1)].types for index in range(count)]
        if not all(any(kind.startswith("tensor(") for kind in kinds) for kinds in allowed):
            return nowhere  # sequences and optionals
        sides.append(tuple("tensor(float16)" in kinds for kinds in allowed))
    return Slots(*sides)


@dataclass(frozen=True)
class Floats:
    """Float32 tensors of a graph, and the float16 slots of each node."""

    view: GraphView
    names: frozenset[str]
    slots: Mapping[str, Slots]

    def inputs(self, node: onnx.NodeProto, *, half: bool) -> list[int]:
        """Return the indices of a node's float32 inputs that may be float16 (`half`), or that may not."""
        return self._places(node.input, self.slots[node.name].inputs, half)

    def outputs(self, node: onnx.NodeProto, *, half: bool) -> list[int]:
        """Return the indices of a node's float32 outputs that may be float16 (`half`), or that may not."""
        return self._places(node.output, self.slots[node.name].outputs, half)

    def _places(self, names: Iterable[str], allowed: tuple[bool, ...], half: bool) -> list[int]:
        found = enumerate(zip(names, allowed, strict=True))
        return [index for index, (name, may) in found if may == half and name in self.names]


@dataclass(frozen=True)
class Rules:
    """Decision for a graph: `left` maps nodes to the reason; float16 copies of the `masks` constants are at least `MASK`."""

    left: dict[str, str]
    masks: frozenset[str]


def find_rules(floats: Floats, ranges: Mapping[str, Range]) -> Rules:
    """Return the rules for a graph. `ranges` maps tensors to the (least, greatest) values seen in calibration."""
    view = floats.view
    masks, masked = _find_masks(view)
    adding = [node for node in view.graph.node if masked & set(node.output)]
    scores = frozenset(name for node in adding for name in node.input) - masks - masked
    left: dict[str, str] = {}
    for node in view.graph.node:
        names = [node.input[index] for index in floats.inputs(node, half=True)]
        names += [node.output[index] for index in floats.outputs(node, half=True)]
        if not names and (floats.inputs(node, half=False) or floats.outputs(node, half=False)):
            left[node.name] = "it has a body" if bodies_of(node) else f"{node.op_type} has no float16"
        reason = next(filter(None, (_why_not(view, name, ranges, masks, masked, scores) for name in names)), "")
        if reason:
            left[node.name] = reason
    _keep_masked(view, left, masked)
    _keep_guarded(view, left)
    _keep_counts(floats, left)
    return Rules(left, masks)


def _why_not(
    view: GraphView,
    name: str,
    ranges: Mapping[str, Range],
    masks: frozenset[str],
    masked: frozenset[str],
    scores: frozenset[str],
) -> str:
    constant = view.constants.get(name)
    if constant is not None:
        if name in masks:
            return ""
        values = np.abs(to_array(constant))
        most = float(np.max(values, where=np.isfinite(values), initial=0.0))
        if most > LARGEST:
            return f"a constant of {most:.3g}, and float16 ends at 65,504"
    elif name in ranges:
        low, high = ranges[name]
        most = max(high, 0.0 if name in masked else -low)
        if name in scores and most > -MASK / 2:
            return f"scores up to {most:.3g}, which a mask of {MASK:.5g} in float16 would not hide"
        if most > LARGEST / HEADROOM:
            return f"values up to {most:.3g}, with headroom beyond float16"
    else:
        return ""
    return f"values of at most {most:.3g}, {_TINY}" if 0 < most < SMALLEST_NORMAL else ""


def _find_masks(view: GraphView) -> tuple[frozenset[str], frozenset[str]]:
    """Return the mask constants, which reach only Softmax inputs, and the activations that contain their values."""
    only_softmax: set[str] = set()
    names = {name for node in view.graph.node for name in node.input} - view.pinned
    for node in reversed(view.graph.node):
        for name in (*node.output, *(name for name in node.input if name in view.constants)):
            readers = view.readers.get(name, [])
            if (
                name in names
                and readers
                and all(
                    reader.op_type == "Softmax"
                    or (reader.op_type in _TO_SOFTMAX and set(reader.output) <= only_softmax)
                    for reader, _ in readers
                )
            ):
                only_softmax.add(name)
    masks = {name for name in only_softmax & set(view.constants) if _is_mask(view.constants[name])}
    masked = set(masks)
    for node in view.graph.node:
        if masked & set(node.input):
            masked.update(set(node.output) & only_softmax)
    return frozenset(masks), frozenset(masked - masks)


def _is_mask(constant: onnx.TensorProto) -> bool:
    if constant.data_type != TensorProto.FLOAT:
        return False
    values = to_array(constant)
    return bool(values.size) and float(values.max()) <= LARGEST and bool((values < -LARGEST / HEADROOM).any())


def _keep_masked(view: GraphView, left: dict[str, str], masked: frozenset[str]) -> None:
    """Keep what reads masked scores in float32: as float16 the mask would be infinite, and a fully masked row NaN."""
    wide: set[str] = set()
    for node in view.graph.node:
        if wide & set(node.input):
            left.setdefault(node.name, "it reads masked scores in float32")
        if node.name in left:
            wide |= masked & set(node.output)


def _keep_guarded(view: GraphView, left: dict[str, str]) -> None:
    guarded = {name for node in view.graph.node if _TINY in left.get(node.name, "") for name in node.output}
    for node in view.graph.node:
        if node.op_type in _GUARDED and guarded & set(node.input):
            left.setdefault(node.name, f"it reads what a constant {_TINY} guards")
            guarded.update(node.output)


def _keep_counts(floats: Floats, left: dict[str, str]) -> None:
    exact: set[str] = set()
    for node in reversed(floats.view.graph.node):
        makes_integers = node.op_type == "Cast" and attribute(node, "to", 0) in INTEGERS
        if makes_integers or (node.op_type in _COUNTING and exact & set(node.output)):
            exact.update(node.input)
            if floats.inputs(node, half=True) or floats.outputs(node, half=True):
                left.setdefault(node.name, "its result becomes an integer or a size")
        elif not bodies_of(node):
            exact.update(node.input[index] for index in floats.inputs(node, half=False))

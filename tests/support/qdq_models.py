"""Small models with Q/DQ pairs around one product `y`, made by hand: parts, and how they are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
E4M3, INT4 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.int4)
HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
INT8 = np.dtype(np.int8)
VECTOR, IMAGE = ("n", 64), ("n", 4, 8, 8)


@dataclass(frozen=True)
class Part:
    """Nodes in order, and the constants that they read."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def __add__(self, other: Part) -> Part:
        return Part([*self.nodes, *other.nodes], self.constants | other.constants)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Part:
    """One node, named like its first output."""
    outputs = output.split()
    return Part([helper.make_node(kind, inputs.split(), outputs, name=outputs[0], **attributes)])


def const(**arrays: Any) -> Part:
    """Constants by name."""
    return Part([], {name: np.asarray(array) for name, array in arrays.items()})


def drawn(*shape: int) -> Array:
    """Normal numbers, float64, the same each time."""
    return np.random.default_rng([*shape]).normal(size=shape)


def pair(
    source: str = "x",
    output: str = "xd",
    *,
    codes: Any = INT8,
    floats: Any = HALF,
    scale: Any = 0.05,
    zero: Any = None,
    axis: int | None = None,
) -> Part:
    """QuantizeLinear and DequantizeLinear of one scale, or of those of an axis."""
    scales = np.asarray(scale, floats)
    zeros = np.zeros(scales.shape, codes) if zero is None else np.asarray(zero, codes)
    names = f"{output}_s {output}_z"
    along = {} if axis is None else {"axis": axis}
    nodes = op("QuantizeLinear", f"{source} {names}", f"{output}_q", **along)
    nodes += op("DequantizeLinear", f"{output}_q {names}", output, **along)
    return nodes + const(**{f"{output}_s": scales, f"{output}_z": zeros})


def weight(
    *shape: int,
    output: str = "wd",
    codes: Any = INT8,
    floats: Any = HALF,
    axis: int | None = -1,
    blocks: int = 0,
    scale: Any = None,
    zero: Any = None,
) -> Part:
    """DequantizeLinear of a stored weight: scales of an axis, of blocks along it, or one (`axis` None)."""
    stored = np.clip(np.rint(drawn(*shape) * 3), -7, 7).astype(codes)
    along: dict[str, int] = {} if axis is None else {"axis": axis}
    scales_shape: tuple[int, ...] = () if axis is None else (shape[axis],)
    if blocks and axis is not None:
        along["block_size"] = shape[axis] // blocks
        scales_shape = tuple(blocks if index == axis % len(shape) else size for index, size in enumerate(shape))
    scales = (np.abs(drawn(*scales_shape)) + 0.01 if scale is None else np.asarray(scale)).astype(floats)
    made = const(**{f"{output}_q": stored, f"{output}_s": scales})
    names = f"{output}_q {output}_s"
    if zero is not None:
        made, names = made + const(**{f"{output}_z": np.asarray(zero, codes)}), f"{names} {output}_z"
    return op("DequantizeLinear", names, output, **along) + made


def product(inputs: str = "xd wd", kind: str = "MatMul", output: str = "y", **attributes: Any) -> Part:
    """The node that multiplies."""
    return op(kind, inputs, output, **attributes)


def model(
    part: Part,
    shape: Sequence[int | str] = VECTOR,
    *,
    floats: Any = HALF,
    opset: int = 21,
    others: Mapping[str, tuple[Any, Sequence[int | str]]] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model `x` -> `y` of these nodes; `others` are more inputs, by name with dtype and shape."""
    elements = helper.np_dtype_to_tensor_dtype(np.dtype(floats))
    inputs = [helper.make_tensor_value_info("x", elements, shape)]
    for name, (kind, dims) in (others or {}).items():
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), dims))
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = elements
    tensors = [numpy_helper.from_array(array, name) for name, array in part.constants.items()]
    domains = {node.domain for node in part.nodes if node.domain}
    return helper.make_model(
        helper.make_graph(part.nodes, "g", inputs, [output], tensors),
        opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in sorted(domains))],
        functions=list(functions),
        ir_version=10,
    )


def attention(
    codes: Any, floats: Any = HALF, shape: Sequence[int | str] = (1, 8, 128, 64), quantized: int = 4
) -> onnx.ModelProto:
    """softmax(x kT / 8) v, with the first `quantized` of its four factors behind pairs."""
    part = op("Transpose", "k", "kt", perm=[0, 1, 3, 2]) + const(eighth=np.asarray(0.125, floats))
    names = dict(zip(("x", "kt", "p", "v"), ("x", "kt", "p", "v"), strict=True))
    for name in ("x", "kt", "p", "v")[:quantized]:
        names[name] = f"{name}d"

    def factor(name: str) -> Part:
        return pair(name, f"{name}d", codes=codes, floats=floats) if names[name] != name else Part()

    part += factor("x") + factor("kt") + product(f"{names['x']} {names['kt']}", output="s")
    part += op("Mul", "s eighth", "t") + op("Softmax", "t", "p", axis=-1)
    part += factor("p") + factor("v") + product(f"{names['p']} {names['v']}")
    return model(part, shape, floats=floats, others={"k": (floats, shape), "v": (floats, shape)})

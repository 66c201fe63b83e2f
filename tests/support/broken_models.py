"""Models that each break one rule of the linter, and how a build shows what the rule says comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from qdq_models import E4M3, HALF, IMAGE, INT4, SINGLE, Part, attention, const, drawn, model, op, pair, product, weight
from real_builds import Built

Evidence = Callable[[Built], bool]


@dataclass(frozen=True)
class Broken:
    """A model, the only rule that it breaks, and the evidence: words of the error, or what has to hold of the build."""

    rule: str
    model: onnx.ModelProto
    evidence: str | Evidence


def named(built: Built, word: str) -> bool:
    """Whether a step is in the name of some kernel: Myelin names them by what they compute."""
    return any(word in layer.tactic for layer in built.layers)


def in_float(built: Built) -> bool:
    return not built.multiplies_integers("y")


def domain(part: Part, name: str) -> Part:
    part.nodes[-1].domain = name
    return part


def zeros(kind: str) -> np.ndarray:
    return np.zeros(64, getattr(ml_dtypes, kind, None) or kind)


def plain(change: Part | None = None, **weights: object) -> onnx.ModelProto:
    """MatMul of a pair and a weight, with either changed."""
    return model((change or pair()) + weight(64, 32, **weights) + product())  # type: ignore[arg-type]  # the table gives the right types


def one_of(scales: np.ndarray, value: float) -> np.ndarray:
    scales = scales.copy()
    scales.flat[3] = value
    return scales


GOOD = np.full(32, 0.1)
BLOCKS = np.full((4, 64), 0.1)
UNSIGNED = op("QuantizeLinear", "x xs", "q") + op("DequantizeLinear", "q xs", "xd") + const(xs=np.asarray(0.1, HALF))
BIAS = op("DequantizeLinear", "bq bs", "b", axis=0) + const(bq=np.arange(32, dtype=np.int32), bs=GOOD.astype(HALF))
COMPUTED = op("ReduceMax", "x", "top", keepdims=0) + op("Div", "top most", "xd_s") + const(most=np.asarray(127, HALF))
OTHER_SCALE = pair(scale=0.1, output="xe") + weight(64, 32, output="we")
CONV = pair() + weight(8, 4, 3, 3, axis=0) + product(kind="Conv", output="c")
RELU_FUNCTION = helper.make_function(
    "own", "Relu", ["a"], ["o"], op("Sigmoid", "a", "o").nodes, [helper.make_opsetid("", 21)]
)


def int4(rows: int, columns: int, blocks: int, x: int | None = None, **changes: object) -> onnx.ModelProto:
    """MatMul of a float activation and a weight of INT4."""
    part = weight(rows, columns, codes=INT4, axis=0, blocks=blocks, **changes)  # type: ignore[arg-type]  # the table gives the right types
    return model(part + product("x wd"), ("n", x or rows))


def short_block() -> onnx.ModelProto:
    """100 channels in blocks of 64 and 36."""
    made = int4(100, 32, 2)
    made.graph.node[0].attribute[1].i = 64
    return made


BROKEN: dict[str, Broken] = {
    # What fails
    "zero point of an activation": Broken("TRT001", plain(pair(zero=3)), "Non-zero zero point"),
    "zero point of a weight": Broken("TRT001", plain(zero=[0] * 31 + [1]), "Non-zero zero point"),
    "zero point 128": Broken("TRT001", plain(pair(codes=np.uint8, zero=128)), "Non-zero zero point"),
    "zero point of INT4": Broken("TRT001", int4(256, 64, 4, zero=np.ones((4, 64))), "Non-zero zero point"),
    "bias of INT32": Broken(
        "TRT002", model(pair() + weight(64, 32) + BIAS + product("xd wd b", "Gemm")), "input has type Int32"
    ),
    **{
        f"constant of {kind}": Broken(
            "TRT003",
            model(const(k=zeros(kind)) + op("Cast", "k", "w", to=10) + op("Add", "x w", "y")),
            "import initializer",
        )
        for kind in ("int16", "uint16", "uint32", "uint64", "uint4", "int2", "uint2", "float8_e5m2", "float8_e4m3fnuz")
    },
    "weight of UINT8": Broken("TRT003", plain(codes=np.uint8, zero=[0] * 32), "unsupported input type of UINT8"),
    "activation of INT16": Broken("TRT003", plain(pair(codes=np.int16)), "unsupported datatype"),
    **{
        f"scale {value} of {codes}": Broken(
            "TRT004", plain(pair(codes=codes), codes=codes, scale=one_of(GOOD, value)), "positive"
        )
        for codes in (np.dtype(np.int8), E4M3)
        for value in (0.0, -0.1, np.nan)
    },
    "scale 0 of an activation": Broken("TRT004", plain(pair(scale=0.0)), "positive"),
    "scales of two types": Broken("TRT005", plain(floats=SINGLE), "must have same input types"),
    "bias of another type": Broken(
        "TRT005",
        model(
            pair() + weight(64, 32) + product(output="m") + op("Add", "m b", "y") + const(b=drawn(32).astype(SINGLE))
        ),
        "must have same input types",
    ),
    "INT8 by FP8": Broken("TRT006", plain(codes=E4M3), "Input and filter have to be the same"),
    "FP8 by INT8": Broken("TRT006", plain(pair(codes=E4M3)), "Input and filter have to be the same"),
    "FP8 by INT4": Broken("TRT006", plain(pair(codes=E4M3), codes=INT4), "Input and filter have to be the same"),
    "INT8 by INT4 of one scale": Broken("TRT006", plain(codes=INT4, axis=None), "Input and filter have to be the same"),
    "too few scales": Broken("TRT007", plain(scale=np.full(16, 0.1)), "number of scales is not equal"),
    "dynamic quantization": Broken(
        "TRT008",
        model(op("MatMulInteger", "x w", "y") + const(w=np.ones((64, 32), np.int8)), floats=np.int8),
        "MatMulInteger",
    ),
    "operator of ONNX Runtime": Broken(
        "TRT008", model(domain(op("QuickGelu", "x", "y"), "com.microsoft")), "Plugin not found"
    ),
    "INT4 of ONNX Runtime": Broken(
        "TRT008",
        model(
            domain(op("MatMulNBits", "x w s", "y", K=64, N=32, bits=4, block_size=32), "com.microsoft")
            + const(w=np.zeros((32, 2, 16), np.uint8), s=np.ones(64, HALF))
        ),
        "failed to load MatMulNBits plugin",
    ),
    # What is wrong: UINT8 becomes INT8 in the layers, a zero point and a function leave no trace, scales have another shape.
    "UINT8 without a zero point": Broken(
        "TRT101", plain(UNSIGNED), lambda built: "Int8" in built.types and "UInt8" not in built.types
    ),
    "UINT8": Broken(
        "TRT101",
        plain(pair(codes=np.uint8)),
        lambda built: any("Defaulting to INT8" in text for text in built.warnings),
    ),
    "zero point of FP8": Broken(
        "TRT102", plain(pair(codes=E4M3, zero=1), codes=E4M3), lambda built: not named(built, "Add")
    ),
    "infinite scale": Broken("TRT103", plain(scale=one_of(GOOD, np.inf)), lambda built: built.engine),
    "infinite scale of INT4": Broken(
        "TRT103", int4(256, 64, 4, scale=one_of(BLOCKS, np.inf)), lambda built: built.engine
    ),
    "no number as a scale of INT4": Broken(
        "TRT103", int4(256, 64, 4, scale=one_of(BLOCKS, np.nan)), lambda built: built.engine
    ),
    # Two blocks of 32 channels: 64 scales multiply 32 results.
    "INT8 in blocks": Broken("TRT104", plain(axis=0, blocks=2), lambda built: [1, 64] in built.constant_shapes),
    "INT4 in blocks by INT8": Broken(
        "TRT104", plain(codes=INT4, axis=0, blocks=2), lambda built: [1, 64] in built.constant_shapes
    ),
    "FP8 in blocks": Broken(
        "TRT104", plain(pair(codes=E4M3), codes=E4M3, axis=0, blocks=2), lambda built: [1, 64] in built.constant_shapes
    ),
    "a short last block": Broken("TRT105", short_block(), lambda built: built.engine),
    "Relu of another domain": Broken(
        "TRT106", model(domain(op("Relu", "x", "y"), "acme")), lambda built: named(built, "Relu")
    ),
    "Relu of the file": Broken(
        "TRT106",
        model(domain(op("Relu", "x", "y"), "own"), functions=[RELU_FUNCTION]),
        lambda built: named(built, "Relu"),
    ),
    # What runs in float
    "weight of MatMul along K": Broken("TRT201", plain(axis=0), in_float),
    "FP8 weight along K": Broken("TRT201", plain(pair(codes=E4M3), codes=E4M3, axis=0), in_float),
    "weight of Gemm along K": Broken(
        "TRT201", model(pair() + weight(32, 64, axis=1) + product(kind="Gemm", transB=1)), in_float
    ),
    "weight of Conv along K": Broken(
        "TRT201", model(pair() + weight(8, 4, 3, 3, axis=1) + product(kind="Conv"), IMAGE), in_float
    ),
    "transposed weight along K": Broken(
        "TRT201",
        model(pair() + weight(32, 64, axis=1) + op("Transpose", "wd", "t", perm=[1, 0]) + product("xd t")),
        in_float,
    ),
    "batch of matrices by matrix": Broken(
        "TRT201", model(pair() + weight(4, 64, 32, axis=0) + product(), ("n", 4, 8, 64)), in_float
    ),
    "activation by channel": Broken("TRT202", plain(pair(scale=[0.1] * 64, axis=1)), in_float),
    "FP8 activation by channel": Broken(
        "TRT202", plain(pair(scale=[0.1] * 64, axis=1, codes=E4M3), codes=E4M3), in_float
    ),
    "activation by token": Broken(
        "TRT202", model(pair(scale=[0.1] * 8, axis=1) + weight(64, 32) + product(), ("n", 8, 64)), in_float
    ),
    "image by channel": Broken(
        "TRT202",
        model(pair(scale=[0.1] * 4, axis=1) + weight(8, 4, 3, 3, axis=0) + product(kind="Conv"), IMAGE),
        in_float,
    ),
    "float weight": Broken("TRT203", model(pair() + const(w=drawn(64, 32).astype(HALF)) + product("xd w")), in_float),
    "float activation": Broken("TRT203", model(weight(64, 32) + product("x wd")), in_float),
    "float activation of FP8": Broken("TRT203", model(weight(64, 32, codes=E4M3) + product("x wd")), in_float),
    "float image": Broken("TRT203", model(weight(8, 4, 3, 3, axis=0) + product("x wd", "Conv"), IMAGE), in_float),
    "padding before a product": Broken(
        "TRT203",
        model(
            pair() + op("Pad", "xd ends", "p") + weight(66, 32) + product("p wd") + const(ends=np.array([0, 0, 0, 2]))
        ),
        in_float,
    ),
    "Mul by a vector between": Broken(
        "TRT203",
        model(weight(64, 32) + op("Mul", "x v", "s") + product("s wd") + const(v=drawn(64).astype(HALF))),
        in_float,
    ),
    "scales joined": Broken(
        "TRT203",
        model(
            pair("x", "xd")
            + pair("z", "zd", scale=0.1)
            + op("Concat", "xd zd", "j", axis=1)
            + weight(128, 32)
            + product("j wd"),
            others={"z": (HALF, ("n", 64))},
        ),
        in_float,
    ),
    "computed scale": Broken(
        "TRT204",
        model(COMPUTED + Part(pair().nodes, {"xd_z": np.asarray(0, np.int8)}) + weight(64, 32) + product()),
        in_float,
    ),
    "ConvTranspose": Broken(
        "TRT205", model(pair() + weight(4, 8, 3, 3, axis=1) + product(kind="ConvTranspose"), IMAGE), in_float
    ),
    "INT4 in one block": Broken("TRT206", int4(64, 64, 1), lambda built: not built.reads("y", "Int4")),
    "INT4 per channel": Broken(
        "TRT206", model(weight(64, 32, codes=INT4) + product("x wd")), lambda built: not built.reads("y", "Int4")
    ),
    "INT4 per tensor": Broken(
        "TRT206",
        model(weight(64, 32, codes=INT4, axis=None) + product("x wd")),
        lambda built: not built.reads("y", "Int4"),
    ),
    "INT4 in odd rows": Broken("TRT206", int4(256, 7, 4), lambda built: not built.reads("y", "Int4")),
    "INT4 of a Conv": Broken(
        "TRT206",
        model(weight(8, 4, 3, 3, codes=INT4, axis=0) + product("x wd", "Conv"), IMAGE),
        lambda built: not built.reads("y", "Int4"),
    ),
    # What is slow
    "float32 around": Broken(
        "TRT301",
        model(pair(floats=SINGLE) + weight(64, 32, floats=SINGLE) + product(), floats=SINGLE),
        lambda built: built.multiplies_integers("y") and "Half" not in built.types,
    ),
    "pair before a sum": Broken(
        "TRT302",
        model(pair() + op("Add", "xd b", "y") + const(b=drawn(64).astype(HALF))),
        lambda built: named(built, "Roun") and "Int8" not in built.types,
    ),
    "pair between Conv and Relu": Broken(
        "TRT302",
        model(CONV + pair("c", "cd") + op("Relu", "cd", "y"), IMAGE),
        lambda built: sum("Roun" in layer.tactic for layer in built.layers) == 2,
    ),
    "two scales of a tensor": Broken(
        "TRT303",
        model(
            pair()
            + OTHER_SCALE
            + weight(64, 32)
            + product(output="m")
            + product("xe we", output="o")
            + op("Add", "m o", "y")
        ),
        lambda built: any(layer.outputs == ("Int8", "Int8") for layer in built.layers),
    ),
    "three channels": Broken(
        "TRT304",
        model(pair() + weight(8, 3, 3, 3, axis=0) + product(kind="Conv"), ("n", 3, 8, 8)),
        lambda built: named(built, "ReplConc"),
    ),
    "depthwise": Broken(
        "TRT304",
        model(pair() + weight(4, 1, 3, 3, axis=0) + product(kind="Conv", group=4), IMAGE),
        lambda built: named(built, "ReplConc"),
    ),
    "odd K": Broken(
        "TRT304", model(pair() + weight(63, 32) + product(), ("n", 63)), lambda built: named(built, "ReplConc")
    ),
    "odd N": Broken("TRT304", model(pair() + weight(64, 31) + product()), lambda built: named(built, "Slic")),
    "attention in INT8": Broken("TRT305", attention(np.int8), lambda built: not named(built, "mha")),
    "attention half in FP8": Broken("TRT305", attention(E4M3, quantized=2), lambda built: not named(built, "mha")),
    "attention of any length": Broken(
        "TRT305", attention(E4M3, shape=("n", 8, "s", 64)), lambda built: not named(built, "mha")
    ),
}

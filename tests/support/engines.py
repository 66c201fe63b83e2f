"""Engines for the tests of what runs them: what each computes is said here in numpy, once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
from fake_cuda import FakeCuda
from fake_trt_runtime import Arrays, FakeTensorRT, Model, Port


def _compute(given: Arrays) -> Arrays:
    ids, mask, x = given["ids"], given["mask"], given["x"]
    return {"sum": x.sum(axis=1) + mask.astype(np.float16), "twice": ids * 2, "not": ~mask}


# Three rows at least, eight at most; one row is 4 wide.
MIXED = Model(
    inputs=(
        Port("x", "HALF", (-1, 4), (3, 4), (8, 4)),
        Port("ids", "INT64", (-1,), (3,), (8,)),
        Port("mask", "BOOL", (-1,), (3,), (8,)),
    ),
    outputs=(
        Port("sum", "HALF", (-1,), of=lambda shapes, _: (shapes.get("x", (-1,))[0],)),
        Port("twice", "INT64", (-1,), of=lambda shapes, _: (shapes.get("ids", (-1,))[0],)),
        Port("not", "BOOL", (-1,), of=lambda shapes, _: (shapes.get("mask", (-1,))[0],)),
    ),
    compute=_compute,
    layers=(("gemm", 0.25), ("loop", 0.5), ("loop", 0.5)),
)
STATIC = Model(
    inputs=(Port("x", "FLOAT", (2, 3)),),
    outputs=(Port("y", "FLOAT", (2, 3)),),
    compute=lambda given: {"y": given["x"] * 2 + 1},
)
# The width of the output is an input's value, which stays on the host.
RESHAPED = Model(
    inputs=(Port("x", "FLOAT", (2, 3)), Port("width", "INT64", (1,), on_host=True)),
    outputs=(Port("y", "FLOAT", (2, -1), of=lambda _, values: (2, int(values["width"][0]))),),
    compute=lambda given: {"y": np.repeat(given["x"].sum(axis=1, keepdims=True), int(given["width"][0]), axis=1)},
)
# As NonZero: the shape of the output hangs on values that the GPU alone knows.
FOUND = replace(STATIC, outputs=(Port("y", "FLOAT", (-1, 3), of=lambda *_: (-1, 3)),))
ROWS = replace(
    STATIC,
    inputs=(Port("x", "FLOAT", (-1, 3), (0, 3), (4, 3)),),
    outputs=(Port("y", "FLOAT", (-1, 3), of=lambda shapes, _: shapes.get("x", (-1, 3))),),
)


@dataclass(frozen=True)
class Fakes:
    """The stand-ins, and TensorRT's module."""

    cuda: FakeCuda
    tensorrt: FakeTensorRT
    api: ModuleType


@contextmanager
def faked() -> Iterator[Fakes]:
    """Both in the places of the real ones, with an engine `b"mixed"` and its like for each above."""
    cuda = FakeCuda()
    tensorrt = FakeTensorRT(cuda)
    tensorrt.plans.update({b"mixed": MIXED, b"static": STATIC, b"reshaped": RESHAPED, b"found": FOUND, b"rows": ROWS})
    api = tensorrt.module()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda.bindings.runtime", cuda.module())
        patch.setitem(sys.modules, "tensorrt", api)
        yield Fakes(cuda, tensorrt, api)


def mixed_batch(rows: int, seed: int = 0) -> Arrays:
    """For MIXED; in float16 every sum of it is exact."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.integers(-8, 8, (rows, 4)).astype(np.float16),
        "ids": rng.integers(-(2**40), 2**40, rows),
        "mask": rng.integers(0, 2, rows).astype(bool),
    }

"""The tolerance of a registered version's answers: a net of 12 blocks whose sums are computed in several orders."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.champion import readback as check_version
from tasks.champion.readback import check_answer
from validators.errors import VersionUnsound
from validators.gates.read_back import find_difference, tolerance_of

Floats = NDArray[Any]
WIDTH, BLOCKS = 128, 12


def in_float(values: Floats) -> Floats:
    return values


def in_int8(values: Floats) -> Floats:
    """Quantize by one scale, and dequantize."""
    scale = np.abs(values).max() / 127
    return np.rint(values / scale) * scale


def in_fp8(values: Floats) -> Floats:
    """The same in E4M3."""
    scale = np.abs(values).max() / 448
    return (values / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


# By candidate: the type between the products, and what is done to the factors of each.
ARITHMETIC: dict[str, tuple[Any, Callable[[Floats], Floats]]] = {
    "fp32-fused@ort-cpu": (np.float32, in_float),
    "fp16@ort-cuda": (np.float16, in_float),
    "int8-dynamic-pc@ort-cpu": (np.float16, in_int8),
    "fp8-amax-pc@tensorrt": (np.float16, in_fp8),
}


class Net:
    """Residual blocks of layer normalization and two products with GELU between, and a head of 100 classes."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        inner = 4 * WIDTH
        self.blocks = [
            (draw.normal(size=(WIDTH, inner)) / WIDTH**0.5, draw.normal(size=(inner, WIDTH)) / inner**0.5)
            for _ in range(BLOCKS)
        ]
        self.head = draw.normal(size=(WIDTH, 100)) / WIDTH**0.5

    def answer(self, x: Floats, candidate: str, order: str) -> Floats:
        """The logits of `x`, in the candidate's arithmetic, each sum of a product in an order."""
        kind, low = ARITHMETIC[candidate]
        h = x.astype(kind)
        for up, down in self.blocks:
            wide = h.astype(np.float32)
            normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
            z = product(low(normal), low(up), order, kind).astype(np.float32)
            gelu = z * 0.5 * (1 + np.tanh(0.7978846 * (z + 0.044715 * z**3)))
            h = (h + product(low(gelu), low(down), order, kind)).astype(kind)
        return product(h, self.head, order, kind)


def product(x: Floats, weight: Floats, order: str, kind: Any) -> Floats:
    """A product with one float32 accumulator, or with an accumulator of the type over blocks of 16 terms."""
    x, weight = (one.astype(kind).astype(np.float32) for one in (x, weight))
    if order == "whole":
        return (x @ weight).astype(kind)
    total = np.zeros((len(x), weight.shape[1]), kind)
    for start in range(len(weight) - 16, -1, -16):
        total = (total + (x[:, start : start + 16] @ weight[start : start + 16]).astype(kind)).astype(kind)
    return total


@pytest.fixture(scope="module")
def x() -> Floats:
    return np.random.default_rng(7).normal(size=(8, WIDTH))


@pytest.mark.parametrize("candidate", ARITHMETIC)
def test_another_summation_order_is_the_same_answer(candidate: str, x: Floats) -> None:
    net = Net(0)
    whole, blocks = (net.answer(x, candidate, order) for order in ("whole", "blocks"))
    assert (whole != blocks).any()
    assert find_difference(blocks, whole, tolerance_of(candidate)) == ""


@pytest.mark.parametrize("candidate", ARITHMETIC)
def test_a_wrong_weight_is_found_in_every_precision(candidate: str, x: Floats) -> None:
    """The columns of one product of 24 in another order; and the weights of one class those of another."""
    right, wrong, swapped = Net(0), Net(0), Net(0)
    up, down = wrong.blocks[-1]
    wrong.blocks[-1] = (up, down[:, np.random.default_rng(1).permutation(WIDTH)])
    swapped.head[:, [3, 4]] = swapped.head[:, [4, 3]]
    expected = right.answer(x, candidate, "whole")
    for other in (wrong, swapped) if candidate != "fp8-amax-pc@tensorrt" else (wrong,):
        assert find_difference(other.answer(x, candidate, "whole"), expected, tolerance_of(candidate))


@pytest.mark.parametrize(
    ("found", "expected", "differs"),
    [
        (np.float32([[1.0]]), np.float32([1.0]), "shape"),
        (np.int64([30000, 2]), np.int64([30001, 2]), "other values"),
        (np.array(["a"]), np.array(["b"]), "other values"),
        (np.float32([np.nan, 1.0]), np.float32([1.0, 1.0]), "NaN or Inf"),
        (np.float32([1.0, 1.0]), np.float32([np.inf, 1.0]), "NaN or Inf"),
        (np.float32([np.nan, 1.0]), np.float32([np.nan, 1.0]), ""),
        (np.float32([0.0, 0.0]), np.float32([0.0, 0.0]), ""),
        (np.float32([0.0, 0.1]), np.float32([0.0, 0.0]), "RMS"),
        # One of 10,000 values: a small part of the output's energy, and still another answer.
        (np.where(np.arange(10000) == 5, -0.05, 1.0), np.ones(10000), "peak"),
        (np.float16([1.001]), np.float16([1.0]), ""),
    ],
)
def test_difference_is_found_by_kind(found: Floats, expected: Floats, differs: str) -> None:
    assert differs in find_difference(found, expected, 1.5e-2) and bool(differs) == bool(
        find_difference(found, expected, 1.5e-2)
    )


def test_version_is_held_to_the_tolerance_of_its_precision(monkeypatch: pytest.MonkeyPatch, x: Floats) -> None:
    """What float16 may differ is too much for float32; an output of another shape is a finding, no crash."""
    net = Net(0)
    whole, blocks = (net.answer(x, "fp16@ort-cuda", order).astype(np.float32) for order in ("whole", "blocks"))
    served: Any = SimpleNamespace(predict=lambda request: {"y": blocks[request["row"]]})
    monkeypatch.setattr(check_version, "load_version", lambda _: served)
    requests, expected = [{"row": np.arange(4)}, {"row": np.arange(4, 8)}], [{"y": whole[:4]}, {"y": whole[4:]}]
    check_answer("models:/m/1", requests, expected, "fp16@ort-cuda")
    with pytest.raises(VersionUnsound, match="of the RMS"):
        check_answer("models:/m/1", requests, expected, "fp32-fused@ort-cpu")
    with pytest.raises(VersionUnsound, match="shapes"):
        check_answer("models:/m/1", requests, [{"y": whole}, {"y": whole}], "fp16@ort-cuda")

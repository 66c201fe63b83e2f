"""Weights in the format of GPTQ are read as its files define them."""

from __future__ import annotations

import numpy as np
import torch
from rounding_peers import BLOCK, unpacked


def test_codes_zero_points_and_scales_are_unpacked() -> None:
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 16, (2 * BLOCK, 16)), rng.integers(1, 16, (2, 16))
    scales = rng.uniform(0.1, 1, (2, 16)).astype(np.float32)

    def packed(values: np.ndarray) -> torch.Tensor:
        """Eight numbers of four bits in each integer, along the last axis, the first one lowest."""
        words = sum(values[..., index::8].astype(np.uint32) << (4 * index) for index in range(8))
        return torch.from_numpy(np.asarray(words, np.uint32).view(np.int32))

    stored = {
        "layer.qweight": packed(codes.T).T.contiguous(),
        "layer.qzeros": packed(zeros - 1),
        "layer.scales": torch.from_numpy(scales).half(),
        "other.weight": torch.zeros(3),
    }
    found = unpacked(stored)
    block = np.arange(2 * BLOCK) // BLOCK
    expected = (codes - zeros[block]) * scales.astype(np.float16).astype(np.float32)[block]
    assert list(found) == ["layer"]
    np.testing.assert_allclose(found["layer"].numpy(), expected.T, rtol=1e-6)

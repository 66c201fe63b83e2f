"""Patches of a picture or signal that a convolution multiplies with its weight, as rows of a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tasks.ptq.graph.edits import attribute

# Of each sample, at most as many patches, drawn once: neighbours say nearly the same.
MOST_PATCHES = 512


@dataclass(frozen=True)
class Patches:
    """Geometry of a Conv that reads `tensor`, `[batch, C, ...]`; a patch has `channels` numbers in each of the `groups`."""

    tensor: str
    groups: int
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(cls, node: onnx.NodeProto, weight: onnx.TensorProto) -> Patches | None:
        """Return the patches of a Conv, or None if its padding depends on the size of the picture."""
        if attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return None
        kernel = tuple(weight.dims[2:])
        ones, axes = (1,) * len(kernel), len(kernel)
        return cls(
            node.input[0],
            int(attribute(node, "group", 1)),
            math.prod(weight.dims[1:]),
            kernel,
            tuple(attribute(node, "strides", ones)),
            tuple(attribute(node, "dilations", ones)),
            tuple(attribute(node, "pads", (0,) * 2 * axes)),
        )

    def rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return patches of `values`, `[batch, C, ...]`, as `[groups, rows, channels]`, ordered as the weight's inputs are."""
        axes = len(self.kernel)
        padded = np.pad(values, [(0, 0), (0, 0), *zip(self.pads[:axes], self.pads[axes:], strict=True)])
        spans = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + axes)))
        steps = [slice(None, None, step) for step in (*self.strides, *self.dilations)]
        windows = windows[(slice(None), slice(None), *steps)]
        places = windows.shape[2 : 2 + axes]
        drawn = np.random.default_rng(0).permutation(math.prod(places))[:MOST_PATCHES]
        # The drawn places become one axis: [batch, C, places, *kernel].
        where: Any = np.unravel_index(drawn, places)
        picked = windows[(slice(None), slice(None), *where)]
        split = picked.reshape(len(values), self.groups, -1, len(drawn), math.prod(self.kernel))
        return split.transpose(1, 0, 3, 2, 4).reshape(self.groups, -1, self.channels)

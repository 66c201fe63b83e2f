"""The format `pack-quantized` of compressed-tensors (vllm-project/compressed-tensors), which vLLM and transformers load.

tensor              type     shape                           content
weight_packed       int32    [rows, columns * bits / 32]     codes of a row, the earliest in the lowest bits
weight_scale        float32  [rows, columns / block]         scales as they were judged
weight_zero_point   int32    [rows * bits / 32, ...]         zero points, packed along rows; none if symmetric
weight_shape        int64    [2]                             rows, columns

value = (code - zero point) * scale
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.checkpoint.names import NamedProduct, Scheme, Tensors, left_in_floats
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import BlockMatrix


class CompressedTensors:
    """4 and 8 bits, with and without zero points."""

    def pack(self, matrix: BlockMatrix, *, symmetric: bool) -> dict[str, NDArray[Any]]:
        """Return the tensors of the module's table; without `symmetric`, with zero points."""
        made: dict[str, NDArray[Any]] = {
            "weight_packed": packed(matrix.codes, matrix.bits),
            "weight_scale": np.ascontiguousarray(matrix.scales, np.float32),
            "weight_shape": np.array(matrix.shape, np.int64),
        }
        if not symmetric:
            zeros = matrix.zero_points.astype(np.uint8)
            if (zeros != matrix.zero_points).any():
                raise refusal(
                    "zero points that are no whole numbers",
                    "whole zero points, which compressed-tensors holds",
                    "export with --gguf or --genai FOLDER",
                )
            made["weight_zero_point"] = np.ascontiguousarray(packed(zeros.T, matrix.bits).T)
        return made

    def unpack(self, stored: Tensors, scheme: Scheme, rows: slice) -> NDArray[np.float64]:
        """Return rows of the weight."""
        count, columns = (int(size) for size in stored["weight_shape"])
        codes = _unpacked(stored["weight_packed"][rows], scheme.bits)[:, :columns].astype(np.float64)
        zeros: Any = 2.0 ** (scheme.bits - 1)
        if not scheme.symmetric:
            all_zeros = _unpacked(stored["weight_zero_point"].T, scheme.bits)[:, :count].T
            zeros = all_zeros[rows].repeat(scheme.block, axis=1)
        scales = stored["weight_scale"][rows].astype(np.float64)
        return np.asarray((codes - zeros) * scales.repeat(scheme.block, axis=1))

    def settings(self, products: Sequence[NamedProduct]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return one group for each scheme, by the names of its products if there are several."""
        schemes = sorted({product.scheme for product in products if product.scheme is not None})
        groups = {
            f"group_{index}": {
                "targets": ["Linear"] if len(schemes) == 1 else [one.name for one in products if one.scheme == scheme],
                "weights": {
                    "num_bits": scheme.bits,
                    "type": "int",
                    "symmetric": scheme.symmetric,
                    "strategy": "group",
                    "group_size": scheme.block,
                    "dynamic": False,
                },
                "input_activations": None,
                "output_activations": None,
            }
            for index, scheme in enumerate(schemes)
        }
        settings = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": left_in_floats(products),
        }
        return ({"quantization_config": settings} if schemes else {}), {}


def packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Return rows of codes, 32 / bits of them in each int32; a row is filled up with zeros.

    >>> packed(np.array([[1, 2, 3]], np.uint8), 4).tolist(), packed(np.array([[1, 2, 3]], np.uint8), 8).tolist()
    ([[801]], [[197121]])
    """
    padded: NDArray[Any] = np.pad(codes, ((0, 0), (0, -codes.shape[1] % (32 // bits))))
    if bits == 4:
        padded = padded[:, ::2] | (padded[:, 1::2] << 4)
    return np.ascontiguousarray(padded).view("<i4")


def _unpacked(words: NDArray[np.int32], bits: int) -> NDArray[np.int64]:
    codes = (words[:, :, None].astype(np.int64) >> np.arange(0, 32, bits)) & (2**bits - 1)
    return np.asarray(codes.reshape(len(words), -1))

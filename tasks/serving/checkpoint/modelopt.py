"""The format W4A16_AWQ of NVIDIA ModelOpt's unified checkpoint, which TensorRT-LLM loads (`hf_quant_config.json`).

    tensor           type     shape                     content
    weight           uint8    [rows / 2, columns]       code - 8 in two's complement, even rows in the low halves
    weight_scale     float32  [rows, columns / block]   scales as they were judged
    pre_quant_scale  float32  [columns]                 ones: activations are not scaled

    value = (code - 8) * scale

Nothing here ran in TensorRT-LLM: there is no build of it for CPUs. The layout is that of `pack_int4_in_uint8` of ModelOpt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.checkpoint.names import NamedProduct, Scheme, Tensors, left_in_floats
from tasks.serving.decoder.graph_nodes import CODES, refusal
from tasks.serving.decoder.matrices import BlockMatrix

FILE, ALGORITHM, BLOCK = "hf_quant_config.json", "W4A16_AWQ", 128


class ModelOpt:
    """4 bits in blocks of 128 without zero points."""

    def pack(self, matrix: BlockMatrix, *, symmetric: bool) -> dict[str, NDArray[Any]]:
        """Return the tensors of the module's table."""
        if matrix.bits != 4 or matrix.block != BLOCK or not symmetric or matrix.shape[0] % 2:
            raise refusal(
                f"{matrix.bits} bits in blocks of {matrix.block}{'' if symmetric else ' with zero points'}",
                f"4 bits in blocks of {BLOCK} without zero points, for which TensorRT-LLM has kernels",
                f"promote int4-g{BLOCK} by {CODES}, or export with --vllm, --gguf or --genai FOLDER",
            )
        signed = (matrix.codes - np.uint8(8)) & 15
        return {
            "weight": signed[::2] | (signed[1::2] << 4),
            "weight_scale": np.ascontiguousarray(matrix.scales, np.float32),
            "pre_quant_scale": np.ones(matrix.shape[1], np.float32),
        }

    def unpack(self, stored: Tensors, scheme: Scheme, rows: slice) -> NDArray[np.float64]:
        """Return rows of the weight."""
        halves = stored["weight"].astype(np.int16)
        signed = np.stack((halves & 15, halves >> 4), axis=1).reshape(-1, halves.shape[1])[rows]
        values = np.where(signed > 7, signed - 16, signed).astype(np.float64)
        scales = stored["weight_scale"][rows].astype(np.float64).repeat(scheme.block, axis=1)
        return np.asarray(values * scales * stored["pre_quant_scale"])

    def settings(self, products: Sequence[NamedProduct]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the content of `hf_quant_config.json`."""
        quantization = {
            "quant_algo": ALGORITHM,
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "has_zero_point": False,
            "pre_quant_scale": True,
            "exclude_modules": left_in_floats(products),
        }
        return {}, {FILE: {"producer": {"name": "quantgate"}, "quantization": quantization}}

"""Layouts of quantized products in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.serving.checkpoint.names import HEAD, NamedProduct, Scheme
from tasks.serving.decoder.matrices import BlockMatrix

Tensors = Mapping[str, NDArray[Any]]


class CheckpointFormat(Protocol):
    """A layout. It holds products as they were judged, bit for bit."""

    def pack(self, matrix: BlockMatrix, *, symmetric: bool) -> dict[str, NDArray[Any]]:
        """Return the tensors of a product by the ends of their names.

        Raises:
            JobError: the layout has no such blocks.
        """

    def unpack(self, stored: Tensors, scheme: Scheme, rows: slice) -> NDArray[np.float64]:
        """Return rows of the weight, dequantized."""

    def settings(self, products: Sequence[NamedProduct]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return what `config.json` says of quantized products, and the content of other files."""


def left_in_floats(products: Sequence[NamedProduct]) -> list[str]:
    """Return the names of products that are not quantized, the head first."""
    return [HEAD, *(product.name for product in products if product.scheme is None)]

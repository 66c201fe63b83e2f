"""Gram matrices of the activations of an exported program, for GPTQ; `tasks.ptq.calibrate.grams` has those of ONNX graphs.

Only the compiling process imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Rows that are converted to float64 at once.
_ROWS_AT_ONCE = 2048
# Matrices of one pass: two of K = 11,008.
_BYTES_A_PASS = 2e9


def grams(
    module: torch.fx.GraphModule, tensors: Mapping[str, int], batches: Sequence[tuple[torch.Tensor, ...]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the Gram matrix `X^T X` (float64 `[K, K]`, on the CPU) of each tensor X by the name of its node, in order.

    `tensors` maps each name to its channels K, the length of the last axis. The module runs over all batches once for each
    group of matrices that fit into 2 GB of the samples' device together; the caller drops a matrix before it takes the next.
    Padding rows count like others.
    """
    names = list(tensors)
    while names:
        total = 0.0
        group: list[str] = []
        while names and (not group or total + 8.0 * tensors[names[0]] ** 2 <= _BYTES_A_PASS):
            total += 8.0 * tensors[names[0]] ** 2
            group.append(names.pop(0))
        watch = _Watch(module, {name: tensors[name] for name in group}, batches[0][0].device)
        for batch in batches:
            watch.run(*batch)
        for name in group:
            yield name, watch.sums.pop(name).cpu()


class _Watch(torch.fx.Interpreter):
    """Interpreter of a module that adds up the Gram matrices of some of its tensors."""

    def __init__(self, module: torch.fx.GraphModule, channels: Mapping[str, int], device: torch.device) -> None:
        super().__init__(module)
        self.sums = {name: torch.zeros(k, k, dtype=torch.float64, device=device) for name, k in channels.items()}

    def run_node(self, n: torch.fx.Node) -> Any:
        found = super().run_node(n)
        if n.name in self.sums:
            for rows in found.reshape(-1, found.shape[-1]).split(_ROWS_AT_ONCE):
                wide = rows.to(torch.float64)
                self.sums[n.name].addmm_(wide.t(), wide)
        return found

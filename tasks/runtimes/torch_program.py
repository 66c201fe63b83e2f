"""Exported PyTorch programs (`.pt2`) that `check_program` accepted; only confined processes load them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from validators.untrusted.torch_program import container_types

if TYPE_CHECKING:
    import torch

# Key in the metadata of a compiled program: ranges of activations come from each request.
RANGES = "ranges_at_run_time"


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Load an exported program, with lists in place of containers of other libraries, such as ModelOutput.

    Its sample inputs are left out: torch unpickles them, also where it may read tensors alone, and nothing needs them.
    """
    import torch
    from torch.export.pt2_archive._package import PT2ArchiveReader

    _stand_in(container_types(path))
    read = PT2ArchiveReader.read_bytes

    def read_bytes(self: PT2ArchiveReader, name: str) -> bytes:
        return b"" if name.startswith("data/sample_inputs/") else read(self, name)

    PT2ArchiveReader.read_bytes = read_bytes  # type: ignore[method-assign]  # torch has no option for it
    try:
        return torch.export.load(path)
    finally:
        PT2ArchiveReader.read_bytes = read  # type: ignore[method-assign]  # as above


def _stand_in(names: set[str]) -> None:
    """Register a list in place of each container of another library, which need not be installed."""
    from torch.utils import _pytree as pytree

    for name in sorted(names - set(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE)):
        made = type(name.rpartition(".")[2], (_StandIn,), {})
        pytree.register_pytree_node(
            made,
            lambda value: (value.leaves, value.context),
            made,
            serialized_type_name=name,
            to_dumpable_context=lambda context: context,
            from_dumpable_context=lambda context: context,
        )


class _StandIn:
    """Container of another library: its leaves in order."""

    def __init__(self, leaves: Any, context: Any) -> None:
        self.leaves, self.context = list(leaves), context

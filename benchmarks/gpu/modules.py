"""The demos' PyTorch modules with the weights of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu.bundle import Bundle

if TYPE_CHECKING:
    from torch import nn


def blank_module(kind: str, shape: Mapping[str, Any] | None = None, classes: int = 0) -> Any:
    """A module of a kind (bert, llama, efficientnet) by the fields of its own shape, with weights as torch makes them."""
    if kind == "bert":
        from tasks.demo.bert import BertEncoder, BertShape, Dense, TextClassifier

        sizes = BertShape(**(shape or {}))
        return TextClassifier(BertEncoder(sizes), Dense(sizes.width, classes))
    if kind == "llama":
        from models.llama import Llama, LlamaShape

        return Llama(LlamaShape(**(shape or {})))
    from tasks.demo.efficientnet import EfficientNetLite0

    return EfficientNetLite0(classes)


def build_module(bundle: Bundle) -> nn.Module:
    """The demo's module with the weights of the bundle, float32."""
    import torch

    module = blank_module(**bundle.notes.module)
    if bundle.notes.module["kind"] == "llama":
        from models.llama import fold_gains

        fold_gains(module)  # those of the source are folded: the module must not have any
    wanted = module.state_dict()
    found = {name: torch.from_numpy(array.copy()) for name, array in bundle.state.items() if name in wanted}
    module.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in found.items()})
    return module.eval().requires_grad_(False)

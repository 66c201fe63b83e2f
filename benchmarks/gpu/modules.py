"""The demos' PyTorch modules with the weights of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.bundle import Bundle

if TYPE_CHECKING:
    from torch import nn


def build_module(bundle: Bundle) -> nn.Module:
    """The demo's module with the weights of the bundle, float32."""
    import torch

    given = bundle.notes.module
    module: nn.Module
    if given["kind"] == "bert":
        from tasks.demo.bert import BertEncoder, BertShape, Dense, TextClassifier

        shape = BertShape(**given["shape"])
        module = TextClassifier(BertEncoder(shape), Dense(shape.width, given["classes"]))
    elif given["kind"] == "llama":
        from models.llama import Llama, LlamaShape, fold_gains

        module = Llama(LlamaShape(**given["shape"]))
        fold_gains(module)  # those of the source are folded: the module must not have any
    else:
        from tasks.demo.efficientnet import EfficientNetLite0

        module = EfficientNetLite0(given["classes"])
    wanted = module.state_dict()
    found = {name: torch.from_numpy(array.copy()) for name, array in bundle.state.items() if name in wanted}
    module.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in found.items()})
    return module.eval().requires_grad_(False)

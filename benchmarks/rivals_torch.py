"""The models of `variants_cpu.py` as PyTorch users have them, and what TorchInductor and torchao make of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.demo.bert import BertEncoder, BertShape, Dense, TextClassifier
from tasks.demo.image import load_model
from validators.samples.datasets import Arrays

MOST_SAMPLES = 64


def module_of(kind: str, onnx_path: Path, weights: Path | None) -> nn.Module:
    """Return the model in evaluation mode.

    Raises:
        ValueError: this kind of model has no PyTorch form here.
    """
    if kind == "image" and weights is not None:
        return load_model(weights)
    if kind == "text":
        return _text(onnx_path)
    raise ValueError(f"no PyTorch form of the {kind} model is kept")


@dataclass(frozen=True)
class Compiler:
    """What TorchInductor makes of a module; inputs and outputs get the names of the ONNX file.

    The package's metadata names them, as `tasks.engines.inductor` reads them.
    """

    module: nn.Module
    batches: list[Arrays]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def in_float(self, path: Path) -> None:
        """Compile the float32 module to an AOTInductor package."""
        self._package(self._exported(self.module), path)

    def in_int8(self, path: Path, *, is_dynamic: bool) -> None:
        """Quantize with torchao's quantizer for x86 and its default configuration, then compile."""
        from torchao.quantization.pt2e import move_exported_model_to_eval
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic))
        prepared = prepare_pt2e(self._exported(self.module).module(), quantizer)
        for batch in self.batches:
            prepared(*self._tensors(batch))
        converted = convert_pt2e(prepared)
        move_exported_model_to_eval(converted)
        self._package(self._exported(converted), path)

    def _exported(self, module: nn.Module) -> Any:
        """Export with dynamic samples and, for texts, a dynamic length."""
        some = self._tensors({name: array[:2] for name, array in self.batches[0].items()})
        samples = torch.export.Dim("batch", min=1, max=MOST_SAMPLES)
        length = torch.export.Dim("sequence", min=2, max=BertShape().positions)
        axes = tuple({0: samples, 1: length} if array.ndim == 2 else {0: samples} for array in some)
        with torch.inference_mode():
            return torch.export.export(module, some, dynamic_shapes=axes)

    def _package(self, program: Any, path: Path) -> None:
        some = self.batches[0]
        # A text's other axis is dynamic, too.
        axes = {name: ["length"] if some[name].ndim == 2 else [*some[name].shape[1:]] for name in self.inputs}
        inputs = [(name, str(some[name].dtype), ["samples", *axes[name]]) for name in self.inputs]
        about = {"inputs": inputs, "outputs": [(name, "float32", []) for name in self.outputs], "products": []}
        # Freezing folds weights into the layout of the kernels; without it nothing computes in integers.
        configs = {"freezing": True, "aot_inductor.metadata": {"quantgate": json.dumps(about)}}
        with torch.inference_mode():
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)

    def _tensors(self, batch: Arrays) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(batch[name]) for name in self.inputs)


def _text(onnx_path: Path) -> nn.Module:
    """Return the sentence encoder with `nn.Linear`, of which PyTorch's users build it, and with the weights of the file."""
    import onnx

    model = TextClassifier(BertEncoder(BertShape()), Dense(BertShape().width, 2)).eval()
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(onnx_path).graph.initializer}
    model.load_state_dict({name: torch.from_numpy(tensors[name].copy()) for name in model.state_dict()})
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Dense):
                setattr(parent, name, _linear(child))
    return model


def _linear(dense: Dense) -> nn.Linear:
    linear = nn.Linear(*dense.weight.shape).eval()
    linear.weight.data, linear.bias.data = dense.weight.data.T.contiguous(), dense.bias.data
    return linear

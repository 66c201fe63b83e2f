"""Rewrites of an exported program: inputs and outputs as flat tensors, INT8 by torchao, and products in bfloat16.

Only the compiling process imports this module.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils import _pytree as pytree

from validators.job.methods import RANGES

aten = torch.ops.aten
# Operators whose kernels multiply 16-bit floats; the order of their operands is data, weight, bias.
IN_HALF = frozenset(
    {
        aten.linear.default,
        aten.matmul.default,
        aten.bmm.default,
        aten.mm.default,
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
    }
)
# The quantizer finds patterns by the modules that the operators came from, of which an exported program keeps no record.
_MODULES: dict[Any, Any] = {
    aten.linear.default: torch.nn.Linear,
    aten.conv1d.default: torch.nn.Conv1d,
    aten.conv2d.default: torch.nn.Conv2d,
    aten.batch_norm.default: torch.nn.BatchNorm2d,
    aten.add.Tensor: operator.add,
    aten.add_.Tensor: operator.add,
    aten.relu.default: torch.nn.ReLU,
    aten.relu_.default: torch.nn.ReLU,
    aten.hardtanh.default: torch.nn.Hardtanh,
    aten.hardtanh_.default: torch.nn.Hardtanh,
    aten.hardswish.default: torch.nn.Hardswish,
    aten.silu.default: torch.nn.SiLU,
    aten.leaky_relu.default: torch.nn.LeakyReLU,
    aten.tanh.default: torch.nn.Tanh,
    aten.gelu.default: torch.nn.GELU,
}
Tensors = tuple[torch.Tensor, ...]


class Flat(torch.nn.Module):
    """A program whose arguments are tensors by position, and whose result is a tuple of tensors."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.module = program.module()
        self._spec = program.call_spec.in_spec

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        args, kwargs = pytree.tree_unflatten(tensors, self._spec)
        leaves = pytree.tree_leaves(self.module(*args, **kwargs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def register_operators() -> None:
    """Register the operators that quantizers write into programs, with Inductor's kernels for them."""
    if find_spec("torchao") is not None:
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401  # registers them on import


def dynamic_axes(program: torch.export.ExportedProgram) -> list[dict[int, Any]]:
    """Return the dynamic axes of each input."""
    signature = program.graph_signature
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [values[name].shape for name in signature.user_inputs]
    return [
        {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(shape) if not isinstance(size, int)}
        for shape in shapes
    ]


def export(module: torch.nn.Module, example: Tensors, axes: Sequence[dict[int, Any]]) -> torch.export.ExportedProgram:
    """Export a module; the axes of the example that are dynamic have at least two entries, since one is taken as fixed."""
    inputs = []
    for tensor, dynamic in zip(example, axes, strict=True):
        for axis in dynamic:
            tensor = tensor.repeat_interleave(2, axis) if tensor.shape[axis] == 1 else tensor
        inputs.append(tensor)
    # An exported module has an argument for each tensor.
    shapes = (tuple(axes),) if isinstance(module, Flat) else tuple(axes)
    return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)


def quantize(
    module: torch.fx.GraphModule, batches: Sequence[Tensors], *, is_dynamic: bool, method: str | None, weight_bits: int
) -> torch.nn.Module:
    """Quantize an exported module by torchao: weights per output channel, activations in UINT8 with fixed or dynamic ranges.

    `method` finds fixed ranges; torchao has an observer for it.
    """
    from torchao.quantization.pt2e import observer as observers
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationSpec
    from torchao.quantization.pt2e.quantizer.utils import QuantizationConfig
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import X86InductorQuantizer

    # As in `get_default_x86_inductor_quantization_config`, with the observer of the method.
    observer = observers.PlaceholderObserver if is_dynamic else getattr(observers, RANGES[str(method)].observer)
    activation = QuantizationSpec(
        dtype=torch.uint8,
        quant_min=0,
        quant_max=255,
        qscheme=torch.per_tensor_affine,
        is_dynamic=is_dynamic,
        observer_or_fake_quant_ctr=observer.with_args(eps=2**-12),
    )
    largest = 2 ** (weight_bits - 1)
    weight = QuantizationSpec(
        dtype=torch.int8,
        quant_min=-largest,
        quant_max=largest - 1,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
        is_dynamic=False,
        observer_or_fake_quant_ctr=observers.PerChannelMinMaxObserver.with_args(eps=2**-12),
    )
    quantizer = X86InductorQuantizer().set_global(QuantizationConfig(activation, activation, weight, None))
    for node in module.graph.nodes:
        if node.target in _MODULES:
            node.meta["source_fn_stack"] = [(node.name, _MODULES[node.target])]
    prepared = prepare_pt2e(module, quantizer)
    for batch in batches:
        prepared(*batch)
    converted: torch.nn.Module = convert_pt2e(prepared)
    return converted


def in_half(module: torch.fx.GraphModule, half: torch.dtype, targets: Collection[Any] = IN_HALF) -> int:
    """Compute products of an exported module in a 16-bit type, between casts; return how many.

    `targets` are the operators of the products. Everything else stays in float32, as under `torch.autocast`.
    """
    products = [node for node in module.graph.nodes if node.op == "call_function" and node.target in targets]
    for node in products:
        with module.graph.inserting_before(node):
            node.args = tuple(
                module.graph.call_function(aten.to.dtype, (one, half)) if _is_float32(one) else one for one in node.args
            )
            node.kwargs = {
                name: module.graph.call_function(aten.to.dtype, (one, half)) if _is_float32(one) else one
                for name, one in node.kwargs.items()
            }
        with module.graph.inserting_after(node):
            back = module.graph.call_function(aten.to.dtype, (node, torch.float32))
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
    module.recompile()
    return len(products)


def _is_float32(argument: Any) -> bool:
    """Return True for a node of a float32 tensor; one without a recorded value was inserted in float32."""
    if not isinstance(argument, torch.fx.Node):
        return False
    value = argument.meta.get("val")
    return value is None or value.dtype == torch.float32


def products_of(program: torch.export.ExportedProgram, *, whole_attention: bool) -> list[tuple[str, str, str, str]]:
    """Return the products of a program in order: name, multiply-accumulates in terms of the axes' symbols, operator, dtype.

    The dtype is that of the first operand that is multiplied. With `whole_attention`, attention is one product even where
    torch has no fused kernel for its type.
    """
    table = torch.export.default_decompositions()
    if whole_attention:
        del table[aten.scaled_dot_product_attention.default]
    found = []
    for node in program.run_decompositions(table).graph.nodes:
        rule = _MACS.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            count, first = rule
            output = node.meta["val"]
            output = output[0] if isinstance(output, (tuple, list)) else output
            shapes = [one.meta["val"].shape if isinstance(one, torch.fx.Node) else None for one in node.args]
            dtype = str(node.args[first].meta["val"].dtype).removeprefix("torch.")
            operator_name = node.target.name().removeprefix("aten::").partition(".")[0]
            found.append((node.name, str(count(shapes, output.shape)), operator_name, dtype))
    return found


def _depth_of(operand: int) -> Callable[[Any, Any], Any]:
    """Return the rule of a product of matrices: the output's size times the last axis of an operand."""
    return lambda shapes, output: math.prod(output) * shapes[operand][-1]


def _convolution(shapes: Any, output: Any) -> Any:
    return math.prod(output) * math.prod(shapes[1][1:])


def _attention(shapes: Any, output: Any) -> Any:
    """Count scores and context: queries and output, each times the number of keys."""
    return (math.prod(shapes[0]) + math.prod(output)) * shapes[1][-2]


# Count of a product, and the index of the first operand that it multiplies.
_MACS: dict[Any, tuple[Callable[[Any, Any], Any], int]] = {
    aten.mm.default: (_depth_of(0), 0),
    aten.bmm.default: (_depth_of(0), 0),
    aten.mv.default: (_depth_of(0), 0),
    aten.addmm.default: (_depth_of(1), 1),
    aten.baddbmm.default: (_depth_of(1), 1),
    aten.convolution.default: (_convolution, 0),
    aten._int_mm.default: (_depth_of(0), 0),
    aten._scaled_mm.default: (_depth_of(0), 0),
    aten._weight_int4pack_mm.default: (_depth_of(0), 0),
    aten._weight_int4pack_mm_for_cpu.default: (_depth_of(0), 0),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (_attention, 0),
    aten._scaled_dot_product_flash_attention.default: (_attention, 0),
    aten._scaled_dot_product_efficient_attention.default: (_attention, 0),
    aten._scaled_dot_product_cudnn_attention.default: (_attention, 0),
    aten.scaled_dot_product_attention.default: (_attention, 0),
}

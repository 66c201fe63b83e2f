"""Rules about Q/DQ graphs in TensorRT, checked before any build.

Each claim comes from ahead-of-time builds by TensorRT-RTX 1.7.1 for compute capability 8.9: the errors of its parser and
builder, and the data types in its `Layers:` text. `tests/unit/validators/graph/test_tensorrt_rules.py` reproduces all of them.
No claim was verified on a GPU. The first line of a check's docstring is the claim, the rest is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE, Scope, attribute, is_standard, label, type_name
from validators.graph.lint import Findings, Rule
from validators.graph.quantized_graph import QuantizedGraph, code_type
from validators.graph.tensorrt_operators import (
    CONTRIB_AS_STANDARD,
    IMPORTED,
    LIMIT_RULES,
    STANDARD_IMPORTED,
)
from validators.graph.tensorrt_product_rules import PRODUCT_RULES

FP8, INT8, INT4 = TensorProto.FLOAT8E4M3FN, TensorProto.INT8, TensorProto.INT4
INTEGERS = frozenset({INT8, TensorProto.UINT8, INT4})
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
SAME_TYPE = ("Add", "Concat", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul", "Sub")
UNREADABLE = frozenset(
    {TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.UINT4}
    | {TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ}
    | {TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT8E8M0}
)


def _tensors(graph: QuantizedGraph, index: int) -> Iterator[tuple[Scope, onnx.NodeProto, TensorProto]]:
    """Yield the constant scales (`index` 1) or zero points (`index` 2), each with the first node that reads it."""
    seen: set[int] = set()
    for scope, node in graph.of_kind(QUANTIZE, DEQUANTIZE):
        tensor = scope.constant(node.input[index]) if len(node.input) > index else None
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield scope, node, tensor


def zero_point(graph: QuantizedGraph) -> Findings:
    """A zero point of INT8, UINT8 or INT4 other than 0 is a parse error.

    TensorRT quantizes symmetrically; only its deep learning accelerator supports asymmetric integers.
    """
    for scope, node, tensor in _tensors(graph, 2):
        if tensor.data_type in INTEGERS and (numbers := scope.numbers(tensor)).any():
            found = f"zero point {numbers.flat[np.flatnonzero(numbers)[0]]:g} of {type_name(tensor.data_type)}"
            yield label(node), found


def quantized_bias(graph: QuantizedGraph) -> Findings:
    """DequantizeLinear of INT32 is a parse error.

    ONNX Runtime stores biases in INT32 by default. TensorRT dequantizes 8 bits or fewer.
    """
    for scope, node in graph.of_kind(DEQUANTIZE):
        if code_type(scope, node) == TensorProto.INT32:
            yield label(node), f"{node.input[0]} of INT32"


def stored_type(graph: QuantizedGraph) -> Findings:
    """A constant of UINT4, INT2, 16 bits, E5M2 or another type that its parser cannot read is a parse error.

    The parser reads FLOAT, FLOAT16, BFLOAT16, DOUBLE, INT64, INT32, INT8, UINT8, BOOL, INT4 and E4M3. It widens UINT8 to INT32,
    which DequantizeLinear does not accept.
    """
    for scope in graph.scopes:
        for name, tensor in scope.constants.items():
            readers = [node for _, node, index in scope.read_by(name)]
            weight = any(node.op_type == DEQUANTIZE and index == 0 for _, node, index in scope.read_by(name))
            if tensor.data_type in UNREADABLE or (weight and tensor.data_type == TensorProto.UINT8):
                yield label(readers[0]) if readers else name, f"{name} of {type_name(tensor.data_type)}"


def scale_value(graph: QuantizedGraph) -> Findings:
    """A scale of INT8 or FP8 that is zero, negative or no number is a parse error.

    The parser does not check INT4 scales; a scale of zero or below has the meaning that ONNX defines.
    """
    for scope, node, scale in _tensors(graph, 1):
        if code_type(scope, node) == INT4:
            continue
        numbers = scope.numbers(scale)
        bad = numbers[~(numbers > 0)]
        if bad.size:
            yield label(node), f"scale {bad.flat[0]:g} ({bad.size} of {numbers.size} of {scale.name})"


def mixed_floats(graph: QuantizedGraph) -> Findings:
    """An operator whose inputs are of two float types is a type mismatch.

    TensorRT takes types from the file unchanged, and DequantizeLinear outputs the float type of its scale. The usual case is a
    FLOAT16 model whose scales stayed in FLOAT.
    """
    for scope, node in graph.of_kind(*SAME_TYPE):
        kinds = sorted({scope.element_type(name) for name in node.input if name} & FLOATS)
        if len(kinds) > 1:
            yield label(node), f"inputs of {' and '.join(map(type_name, kinds))}"


def mixed_types(graph: QuantizedGraph) -> Findings:
    """A product of FP8 with INT8 or INT4, or of INT8 with INT4 by one scale, is a build error.

    "Input and filter have to be the same": no kernel takes two types, and TensorRT converts neither.
    """
    for product in graph.products:
        if len(product.quantized) < 2:
            continue
        types = {item.code_type for item in product.quantized}
        one_scale = any(item.code_type == INT4 and item.stored and item.scales == 1 for item in product.quantized)
        if types in ({FP8, INT8}, {FP8, INT4}) or (one_scale and types == {INT8, INT4}):
            yield label(product.node), " and ".join(type_name(item.code_type) for item in product.quantized)


def scale_count(graph: QuantizedGraph) -> Findings:
    """Scales per channel that are not as many as the channels are a parse error."""
    for scope, node in graph.of_kind(QUANTIZE, DEQUANTIZE):
        scale, shape = scope.constant(node.input[1]), scope.shape(node.input[0])
        if scale is None or not shape or len(scale.dims) != 1 or scale.dims[0] == 1 or attribute(node, "block_size", 0):
            continue
        axis = int(attribute(node, "axis", 1))
        channels = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if channels and channels != scale.dims[0]:
            yield label(node), f"{scale.dims[0]} scales for {channels} channels on axis {axis}"


def unknown_operator(graph: QuantizedGraph) -> Findings:
    """An operator that its parser has no importer for is a parse error, unless a plugin of that name is loaded.

    This includes DynamicQuantizeLinear, MatMulInteger, QLinearConv, QLinearMatMul, and nearly all of ONNX Runtime's operators.
    MatMulNBits has an importer, but its plugin is missing.
    """
    functions = {(function.domain, function.name) for function in graph.model.functions}
    for _, node in graph.nodes:
        # TensorRT's own operators are not in ONNX.
        own = node.domain.startswith("trt") or node.op_type.startswith("TRT_")
        if not own and node.op_type not in IMPORTED and (node.domain, node.op_type) not in functions:
            yield label(node), f"{node.domain + '::' if node.domain else ''}{node.op_type}"


def unsigned(graph: QuantizedGraph) -> Findings:
    """QuantizeLinear to UINT8 is taken as one to INT8: what is above 127 scales is cut.

    With a zero point of 0 the parser warns and builds. ONNX also defaults to UINT8 if neither a zero point nor `output_dtype`
    is given.
    """
    for scope, node in graph.of_kind(QUANTIZE):
        zero = scope.constant(node.input[2]) if len(node.input) > 2 else None
        if code_type(scope, node) == TensorProto.UINT8 and (zero is None or not scope.numbers(zero).any()):
            told = "a zero point of UINT8" if len(node.input) > 2 else "no zero point, which means UINT8"
            yield label(node), told


def fp8_zero_point(graph: QuantizedGraph) -> Findings:
    """A zero point of FP8 other than 0 is left out without a word."""
    for scope, node, tensor in _tensors(graph, 2):
        if tensor.data_type == FP8 and scope.numbers(tensor).any():
            yield label(node), f"zero point {tensor.name} of E4M3 other than 0"


def infinite_scale(graph: QuantizedGraph) -> Findings:
    """An infinite scale, or one of INT4 that is no number, is built into the engine.

    The parser only checks that scales are above zero, which infinity is, and does not check INT4 scales.
    """
    for scope, node, scale in _tensors(graph, 1):
        numbers = scope.numbers(scale)
        bad = np.isinf(numbers)
        if code_type(scope, node) == INT4:
            bad = ~np.isfinite(numbers)
        if bad.any():
            yield label(node), f"scale {numbers[bad].flat[0]:g} ({int(bad.sum())} of {numbers.size} of {scale.name})"


def scales_of_blocks(graph: QuantizedGraph) -> Findings:
    """Scales of blocks, with both factors quantized, are applied to the result as if they were of its channels.

    The product runs in integers over all of K, and its result is multiplied by one row with the scales of all blocks: by 64
    numbers for two blocks along K of 32 channels. Blocks are meant for weights with a float activation.
    """
    for product in graph.products:
        if len(product.quantized) == 2:
            for item in product.quantized:
                if item.blocks > 1:
                    yield label(product.node), f"{item.blocks} blocks of {label(item.node)}, and both factors quantized"


def uneven_blocks(graph: QuantizedGraph) -> Findings:
    """The size of a block is taken from the number of scales, and `block_size` is not read.

    `INetworkDefinition.add_dequantize` has no argument for it. ONNX allows a shorter last block, which therefore shifts the
    borders of all blocks: 100 channels in blocks of 64 and 36 are read as two blocks of 50.
    """
    for scope, node in graph.of_kind(QUANTIZE, DEQUANTIZE):
        size, axis = attribute(node, "block_size", 0), int(attribute(node, "axis", 1))
        scale, shape = scope.constant(node.input[1]), scope.shape(node.input[0])
        if not size or scale is None or not shape or len(scale.dims) != len(shape):
            continue
        if shape[axis] and scale.dims[axis] * size != shape[axis]:
            yield label(node), f"{scale.dims[axis]} blocks of {size} for {shape[axis]} channels"


def namesake(graph: QuantizedGraph) -> Findings:
    """An operator of another domain, or a function of the file, is taken for the ONNX operator of its name.

    The parser matches names only: it ignores a function `Relu` that the file defines, and computes ReLU.
    """
    for _, node in graph.nodes:
        same = node.domain == "com.microsoft" and node.op_type in CONTRIB_AS_STANDARD
        if not is_standard(node) and node.op_type in STANDARD_IMPORTED and not same:
            yield label(node), f"{node.domain}::{node.op_type}"


TENSORRT_RULES: tuple[Rule, ...] = (
    Rule("TRT001", "fails", zero_point, "quantize symmetrically: zero points of 0"),
    Rule("TRT002", "fails", quantized_bias, "leave biases in float (QuantizeBias=False)"),
    Rule("TRT003", "fails", stored_type, "store weights in INT8, INT4 or E4M3, other constants in INT32 or INT64"),
    Rule("TRT004", "fails", scale_value, "use a small scale above zero for a tensor of zeros"),
    Rule("TRT005", "fails", mixed_floats, "convert scales to the type of the model's floats"),
    Rule("TRT006", "fails", mixed_types, "quantize both factors to the same type, or leave both in float"),
    Rule("TRT007", "fails", scale_count, "give one scale for all channels, or one per channel of `axis`"),
    Rule("TRT008", "fails", unknown_operator, "export with operators of ONNX, and quantize by Q/DQ pairs"),
    *LIMIT_RULES,
    Rule("TRT101", "wrong", unsigned, "quantize to INT8, with a zero point of INT8 zeros and a scale"),
    Rule("TRT102", "wrong", fp8_zero_point, "quantize symmetrically: zero points of 0"),
    Rule("TRT103", "wrong", infinite_scale, "check the computation of the scales for overflow"),
    Rule("TRT104", "wrong", scales_of_blocks, "leave the activation in float, or give scales per output channel"),
    Rule("TRT105", "wrong", uneven_blocks, "use a block size that divides the channels"),
    Rule("TRT106", "wrong", namesake, "rename the operator, and give a plugin or express it in ONNX operators"),
    *PRODUCT_RULES,
)

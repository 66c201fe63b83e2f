"""The files for TensorRT under the linter, and the parts that tests make small models of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.engines.catalog import lint

Array = NDArray[Any]
# What forms may break: a depthwise convolution is padded whoever quantizes it, a product of as many channels as a block has is
# one block, and blocks are also tried on a float32 model.
KNOWN = {
    "int4": {"TRT206 int4-apart", "TRT301 float32-base"},
    "int8": {"TRT304 padded-channels"},
    "fp8": {"TRT304 padded-channels"},
}


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def check_form(path: Path, precision: str) -> Counter[str]:
    """The file is valid, of ONNX's own operators, and breaks no rule but those known; returns its operators."""
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(path, load_external_data=False)
    assert [item.domain for item in proto.opset_import] == [""] and proto.opset_import[0].version >= 21
    found = lint(path, "tensorrt")
    assert {item.rule for item in found} <= KNOWN.get(precision, set()), found
    return Counter(node.op_type for node in proto.graph.node)

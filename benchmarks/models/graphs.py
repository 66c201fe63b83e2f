"""Small ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape | None],
    outputs: Mapping[str, Shape | None],
    constants: Mapping[str, NDArray[Any] | np.generic],
) -> onnx.ModelProto:
    """Return a model (opset 21, IR 10) of float inputs and outputs, by name with their shapes; None: the runtime infers it."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side.items()]
        for side in (inputs, outputs)
    ]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(list(nodes), "graph", *ends, stored), opset_imports=imports, ir_version=10
    )

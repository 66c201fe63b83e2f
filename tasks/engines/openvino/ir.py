"""OpenVINO's own files, an `.xml` with its `.bin`: taken up as given files, and their products with multiply-accumulates."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tasks.engines.openvino.kernels import INTEGERS
from tasks.engines.openvino.shipped.model import core, message_of
from validators.digests import weights_of
from validators.errors import CandidateRefused
from validators.job.given_file import GivenFile
from validators.samples.datasets import Arrays

Shape = tuple[int, ...]
# Multiply-accumulates of an operation from the shapes of its first input, its second input and its output (OpenVINO's
# "Operation Specifications"): weights are (out, in, kernel), of groups (group, out, in, kernel); backwards in and out change.
_MACS: dict[str, Callable[[Shape, Shape, Shape], int]] = {
    "Convolution": lambda _data, weights, out: math.prod(out) * math.prod(weights[1:]),
    "GroupConvolution": lambda _data, weights, out: math.prod(out) * math.prod(weights[2:]),
    "ConvolutionBackpropData": lambda data, weights, _out: math.prod(data) * math.prod(weights[1:]),
    "GroupConvolutionBackpropData": lambda data, weights, _out: math.prod(data) * math.prod(weights[2:]),
}


def read_ir(path: Path) -> Any:
    """Return the model of an `.xml` file.

    Raises:
        CandidateRefused: `invalid`: OpenVINO does not read it.
    """
    try:
        return core().read_model(path)
    except Exception as error:  # the bindings raise RuntimeError, TypeError and ValueError alike
        raise CandidateRefused(
            kind="invalid",
            found=f"OpenVINO does not read {path.name}: {message_of(error)}",
            expected="a complete .xml with its .bin, of this OpenVINO or an older one",
            fix="save or copy both files again",
        ) from error


def take_ir(given: GivenFile, path: Path, source: Path) -> str:
    """Copy a given file with its weights to `path`; see `tasks.engines.given.TakeUp`."""
    if given.codes:
        raise CandidateRefused(
            kind="unsupported",
            found=f"`codes` for {given.file.name}",
            expected="an ONNX file",
            fix="let the model take floats: openvino.preprocess.PrePostProcessor adds the conversion",
        )
    model = read_ir(given.file)
    graph = onnx.load(source, load_external_data=False).graph
    known = {value.name for value in [*graph.input, *graph.output]}
    renamed = False
    for ports, names in ((model.inputs, given.inputs), (model.outputs, given.outputs)):
        for port in ports:
            # A port has the names of all tensors that are equal to it; exactly one is the source's.
            fitting = {names.get(name, name) for name in port.names} & known
            if len(fitting) == 1 and port.names != fitting:
                port.get_tensor().set_names(fitting)
                renamed = True
    if renamed:
        import openvino as ov

        ov.save_model(model, path, compress_to_fp16=False)
    else:
        shutil.copyfile(given.file, path)
        shutil.copyfile(weights_of(given.file), weights_of(path))
    return "NNCF " + _told(model, ["nncf", "version"]) if model.has_rt_info(["nncf"]) else "OpenVINO"


def _told(model: Any, keys: list[str]) -> str:
    return str(model.get_rt_info(keys).astype(str)) if model.has_rt_info(keys) else ""


def graph_of_ir(path: Path, batch: Arrays) -> tuple[onnx.GraphProto, Counter[str]]:
    """Return the operations of a file as nodes of a graph, and the multiply-accumulates of its products for a request.

    What stands for values in few bits is a DequantizeLinear, as in a file with Q/DQ pairs: a FakeQuantize, and what is computed
    of constants of integers alone. Tensors have the names of their operations.
    """
    model = read_ir(path)
    model.reshape(
        {port: list(next(batch[name] for name in port.names if name in batch).shape) for port in model.inputs}
    )
    graph, counted = onnx.GraphProto(), Counter[str]()
    stored: dict[str, bool] = {}  # what is computed from constants alone: True if one of them holds integers
    for operation in model.get_ordered_ops():
        kind, name = operation.get_type_name(), operation.get_friendly_name()
        sources = [_tensor(port.get_source_output()) for port in operation.inputs()]
        outputs = [_tensor(port) for port in operation.outputs()]
        if kind == "Result":
            graph.output.add(name=sources[0])
        elif kind == "Constant":
            graph.initializer.add(name=name)
            stored[name] = operation.get_element_type().to_string() in INTEGERS
        else:
            is_constant = bool(sources) and all(source in stored for source in sources)
            if is_constant:
                stored |= dict.fromkeys(outputs, kind == "FakeQuantize" or any(stored[source] for source in sources))
                for output in outputs:
                    graph.initializer.add(name=output)
            if kind == "FakeQuantize" or (is_constant and stored[outputs[0]]):
                kind, sources = "DequantizeLinear", sources[:1]
            graph.node.add(op_type=kind, name=name, input=sources, output=outputs)
            if macs := _macs(operation, kind):
                counted[name] += macs
    return graph, counted


def _tensor(port: Any) -> str:
    name = str(port.get_node().get_friendly_name())
    return f"{name}.{port.get_index()}" if port.get_index() else name


def _macs(operation: Any, kind: str) -> int:
    if kind != "MatMul" and kind not in _MACS:
        return 0
    ports = [*list(operation.inputs())[:2], operation.output(0)]
    data, weights, out = (tuple(port.get_shape()) for port in ports)
    if kind == "MatMul":
        summed: int = data[-2 if operation.get_attributes()["transpose_a"] and len(data) > 1 else -1]
        return int(math.prod(out) * summed)
    return _MACS[kind](data, weights, out)

"""Inputs and outputs of an engine: names, types, shapes, and the check of batches."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
# TensorRT's DataType to numpy's; BF16, FP8, INT4, FP4 and E8M0 have no numpy dtype.
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}


class EngineError(RuntimeError):
    """Failure of TensorRT on an engine, or an engine that cannot be run here."""


class Tensor(NamedTuple):
    """An input or output: numpy dtype, shape with -1 for a dynamic axis, and the range of shapes of an input.

    TensorRT reads or writes an `on_host` tensor in host memory: it is a shape, not data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    on_host: bool
    minimum: tuple[int, ...]
    maximum: tuple[int, ...]


def describe(api: ModuleType, engine: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the inputs and the outputs of an engine, in its order, with the shapes of its first optimization profile.

    Raises:
        EngineError: one of them has a type that numpy lacks.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == api.TensorIOMode.INPUT]
    outputs = [name for name in names if engine.get_tensor_mode(name) == api.TensorIOMode.OUTPUT]
    return (
        tuple(_describe(api, engine, name, is_input=True) for name in inputs),
        tuple(_describe(api, engine, name, is_input=False) for name in outputs),
    )


def _describe(api: ModuleType, engine: Any, name: str, *, is_input: bool) -> Tensor:
    kind = engine.get_tensor_dtype(name).name
    if kind not in DTYPES:
        raise EngineError(
            f"found {name} of type {kind}; expected a type that numpy has; cast it in the model to float16"
        )
    shape = tuple(engine.get_tensor_shape(name))
    low = high = shape
    if is_input and -1 in shape:
        low, _, high = (tuple(one) for one in engine.get_tensor_profile_shape(name, 0))
    on_host = engine.get_tensor_location(name) == api.TensorLocation.HOST
    return Tensor(name, DTYPES[kind], shape, on_host, low, high)


def refuse_batch(inputs: tuple[Tensor, ...], batch: Arrays) -> None:
    """Raise unless a batch has every input, in its dtype and with a shape that the engine supports.

    Raises:
        ValueError: an input differs; the message names it, and the axis with its range.
    """
    names = [tensor.name for tensor in inputs]
    if set(names) != set(batch):
        raise ValueError(
            f"found inputs {sorted(batch)}; expected {sorted(names)}; rename or remove the inputs that differ"
        )
    for tensor in inputs:
        found = batch[tensor.name]
        if found.dtype != np.dtype(tensor.dtype):
            raise ValueError(f"found {tensor.name} in {found.dtype}; expected {tensor.dtype}; convert it first")
        if found.ndim != len(tensor.shape):
            raise ValueError(f"found {tensor.name} of shape {found.shape}; expected {len(tensor.shape)} axes")
        for axis, (size, low, high) in enumerate(zip(found.shape, tensor.minimum, tensor.maximum, strict=True)):
            if not low <= size <= high:
                expected = f"{low} to {high}" if low < high else f"{low}"
                raise ValueError(
                    f"found {size} on axis {axis} of {tensor.name}; expected {expected}; split or pad the batch, or build "
                    "the engine for more sizes (`engines.axes` of the job)"
                )

"""Models whose weights lie in files: read when a pass asks for one, and copied from file to file when it saves.

A pass over a model of many gigabytes so holds the weight that it works on, and what it made of others up to `KEPT_BYTES`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from validators.untrusted.external_data import graphs_of, tensors

# Larger models store their weights in a file beside the model: a message is read whole, and is limited to 2 GB.
EXTERNAL_DATA_BYTES = 500_000_000
# Constants that a pass makes stay in memory up to this sum, and smaller ones always do.
KEPT_BYTES, SMALL_BYTES = 256_000_000, 1024
# The runtime maps each weight by itself.
PAGE_BYTES = 4096


class _Spill:
    """A file of new constants, and the bytes of those that are in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.kept = file, 0


_spill: ContextVar[_Spill | None] = ContextVar("spill", default=None)


@contextmanager
def spilling() -> Iterator[None]:
    """Let `from_array` write what would take more memory than `KEPT_BYTES` to a temporary file, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder, (Path(folder) / "weights").open("wb") as file:
        token = _spill.set(_Spill(file))
        try:
            yield
        finally:
            _spill.reset(token)


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model whose external data, which must have been checked, stays in its files until `to_array` reads it."""
    model = onnx.load(path, load_external_data=False)
    locate(model, path.parent)
    return model


def locate(model: onnx.ModelProto, folder: Path) -> None:
    """Note the whole path of the external data of a model that was loaded, without it, from a folder."""
    for tensor in tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(folder.resolve() / entry.value)


def save_model(model: onnx.ModelProto, path: Path, *, shares: bool = False) -> None:
    """Write a model to one file, or a large one with its weights in a second file, `path` with `.data`.

    It may have been loaded from the files that it replaces. With `shares`, weights in other files of the same folder stay
    there. Afterwards the model's own external data has no folder any more.
    """
    weights, part = (path.with_name(f"{path.name}.data{end}") for end in ("", ".part"))
    if shares:
        _share(model, path.resolve().parent, weights.name)
    large = message_bytes(model) > EXTERNAL_DATA_BYTES
    if large:
        _write_weights(model, part, weights.name)
    # Of a small model all, else what operators have as attributes, which a runtime reads from the message alone.
    for tensor in tensors(model):
        if _is_away(tensor):
            # As onnx reads them in: a source must have the digest by which older versions knew it.
            tensor.raw_data = _content(tensor).tobytes()
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    if large:
        part.replace(weights)
    else:
        weights.unlink(missing_ok=True)
    onnx.save_model(model, path)


def _write_weights(model: onnx.ModelProto, path: Path, location: str) -> None:
    """Write the constants of all graphs, but for small ones, to a file that the model is to find at `location`."""
    with path.open("wb") as file:
        for graph in graphs_of(model.graph):
            for tensor in graph.initializer:
                if (_is_away(tensor) or tensor.ByteSize() >= SMALL_BYTES) and tensor.data_type != TensorProto.STRING:
                    _place(tensor, location, *_write(_content(tensor), file))


def message_bytes(model: onnx.ModelProto) -> int:
    """Return the approximate size of a model in memory, with its external data; `ByteSize` fails beyond protobuf's limit."""
    parts = [*model.graph.initializer, *model.graph.node, *model.functions]
    outside = (_length(tensor) for tensor in tensors(model) if _is_away(tensor))
    return sum(part.ByteSize() for part in parts) + sum(outside)


def to_array(tensor: onnx.TensorProto, folder: Path = Path()) -> NDArray[Any]:
    """Return a constant as an array, which must not be written to; `folder` holds its file if it is external data.

    External data is mapped: its pages take memory only while nothing else needs it.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor))
    content = _content(tensor, folder)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if len(content) == math.prod(tensor.dims) * dtype.itemsize:
        return np.asarray(content.view(dtype).reshape(tensor.dims))
    packed = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=content.tobytes())
    return np.asarray(numpy_helper.to_array(packed))


def from_array(array: NDArray[Any], name: str) -> onnx.TensorProto:
    """Return an array as a constant with this name; within `spilling`, its values may lie in a file."""
    spill = _spill.get()
    if spill is None or array.nbytes < SMALL_BYTES or spill.kept + array.nbytes <= KEPT_BYTES:
        if spill is not None:
            spill.kept += array.nbytes
        return numpy_helper.from_array(array, name)
    if array.dtype.isbuiltin == 1:
        made = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    else:  # numbers of less than a byte are packed
        made = numpy_helper.from_array(array, name)
        content = _content(made)
    _place(made, spill.file.name, *_write(content, spill.file))
    spill.file.flush()
    return made


def _content(tensor: onnx.TensorProto, folder: Path = Path()) -> NDArray[np.uint8]:
    """Return the bytes of a constant's numbers, mapped if they are external data."""
    if tensor.data_location != TensorProto.EXTERNAL:
        raw = tensor.raw_data or numpy_helper.from_array(to_array(tensor)).raw_data
        return np.frombuffer(raw, np.uint8)
    told = _told(tensor)
    # A mapping of nothing is an error.
    if not _length(tensor):
        return np.zeros(0, np.uint8)
    return np.memmap(
        folder / told["location"], np.uint8, "r", offset=int(told.get("offset", 0)), shape=(_length(tensor),)
    )


def _is_away(tensor: onnx.TensorProto) -> bool:
    """Return True if a constant's values lie in a file of which `load_model` noted the whole path."""
    return tensor.data_location == TensorProto.EXTERNAL and Path(_told(tensor)["location"]).is_absolute()


def _share(model: onnx.ModelProto, folder: Path, replaced: str) -> None:
    """Let the weights in files of this folder stay there, but for the file that is replaced."""
    for tensor in tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location" and Path(entry.value).parent == folder and Path(entry.value).name != replaced:
                entry.value = Path(entry.value).name


def _length(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a constant in its file."""
    told = _told(tensor)
    if "length" in told:
        return int(told["length"])
    return math.prod(tensor.dims) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _told(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _write(content: NDArray[np.uint8], file: IO[bytes]) -> tuple[int, int]:
    """Append bytes to a file at the start of a page; return their offset and length."""
    file.seek(-(-file.tell() // PAGE_BYTES) * PAGE_BYTES)
    offset = file.tell()
    file.write(content.data)
    return offset, len(content)


def _place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make a constant's values external data."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))

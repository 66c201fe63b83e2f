"""Models with their samples, packed small: one zip each, whose weights are float16 and become float32 where they are read.

The source of a check is thus the model with weights rounded to float16; what rounding cost stands in its notes. The weights are
beside the ONNX file, so that the part of the check that needs PyTorch alone reads them without ONNX.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.storage.files import write_whole
from validators.digests import digest_file, digest_values
from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.datasets import Samples, part_of

if TYPE_CHECKING:
    import onnx

MODEL, WEIGHTS, STATE, NOTES = "model.onnx", "weights.npz", "state.npz", "notes.json"
CALIBRATION, EVALUATION = "calibration.npz", "evaluation.npz"
LABEL = "label"
# Constants of formulas are small, and some of them (the epsilon of a norm) have no float16 but zero.
SMALLEST_ROUNDED = 1024


@dataclass(frozen=True)
class Notes:
    """What a bundled model is: its metric and output, the shapes of its requests, and what packing did to it.

    `dims` cuts an input's axis 1 to that many entries for latency, by input name; accuracy sees whole samples. `module` names
    the equal PyTorch module of the demos and what it is made with. `rounding` has the metric before and after rounding.
    """

    name: str
    metric: Literal["accuracy", "perplexity"]
    output: str
    batch_sizes: tuple[int, ...]
    evaluation_batch: int
    dims: dict[str, int] = field(default_factory=dict)
    module: dict[str, Any] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    rounded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bundle:
    """A model that was unpacked: its float32 ONNX file, samples with labels, and the state of its PyTorch module.

    The file is there unless it was unpacked without; `state` is float16 or float32.
    """

    notes: Notes
    source: Path
    calibration: Samples
    evaluation: Samples
    state: dict[str, NDArray[Any]]

    def request(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """The first evaluation samples as one request of that many, repeated when there are fewer."""
        rows = np.arange(batch_size) % len(self.evaluation)
        inputs = {name: array[rows] for name, array in self.evaluation.inputs.items()}
        for name, length in self.notes.dims.items():
            inputs[name] = inputs[name][:, :length]
        return {name: np.ascontiguousarray(array) for name, array in inputs.items()}

    def shortened(self, samples: int) -> Bundle:
        """The same with no more than so many samples of each kind."""
        return replace(self, calibration=_first(self.calibration, samples), evaluation=_first(self.evaluation, samples))


def narrow(model: onnx.ModelProto) -> tuple[str, ...]:
    """Store float32 initializers of 1,024 values and more as float16, unless one is out of its range; return their names."""
    from onnx import TensorProto

    from validators.graph.stored import from_array, to_array

    names = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < SMALLEST_ROUNDED:
            continue
        array = to_array(tensor)
        if np.abs(array).max() <= np.finfo(np.float16).max:
            tensor.CopyFrom(from_array(array.astype(np.float16), tensor.name))
            names.append(tensor.name)
    return tuple(names)


def take_weights(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Take the floats out of a model's initializers; return them by name."""
    from onnx import TensorProto

    from tasks.ptq.graph.edits import to_array

    taken = {}
    for tensor in model.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            taken[tensor.name] = to_array(tensor)
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    return taken


def put_weights(model: onnx.ModelProto, weights: Mapping[str, NDArray[Any]], widened: tuple[str, ...]) -> None:
    """Undo `take_weights`; those of the names `widened` become float32, each value exactly as it was stored."""
    from tasks.ptq.graph.edits import from_array

    for tensor in model.graph.initializer:
        if tensor.name in weights:
            array = weights[tensor.name]
            wide = array.astype(np.float32) if tensor.name in widened else array
            tensor.CopyFrom(from_array(wide, tensor.name))


def pack(
    folder: Path,
    notes: Notes,
    model: onnx.ModelProto,
    calibration: Mapping[str, NDArray[Any]],
    evaluation: Mapping[str, NDArray[Any]],
    state: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write `folder/<name>.zip`; `model` is `narrow`ed already, `state` is that of its PyTorch module, if not its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{notes.name}.zip"
    # Samples shrink to a fraction; weights hardly at all, and would take minutes.
    with zipfile.ZipFile(path, "w") as archive:
        bare = type(model)()
        bare.CopyFrom(model)
        weights = take_weights(bare)
        archive.writestr(MODEL, bare.SerializeToString(), zipfile.ZIP_STORED)
        archive.writestr(WEIGHTS, _npz(weights), zipfile.ZIP_STORED)
        archive.writestr(STATE, _npz(state or {}), zipfile.ZIP_STORED)
        archive.writestr(CALIBRATION, _npz(calibration), zipfile.ZIP_LZMA)
        archive.writestr(EVALUATION, _npz(evaluation), zipfile.ZIP_LZMA)
        archive.writestr(NOTES, json.dumps(asdict(notes)), zipfile.ZIP_STORED)
    return path


def unpack(path: Path, folder: Path, *, with_onnx: bool = True) -> Bundle:
    """The bundle of a zip, its files under `folder/<digest>`, written once; the ONNX file unless it is not wanted.

    Raises:
        DataError: there is no such file, or it is no bundle.
    """
    if not path.exists():
        raise DataError(
            found=f"no {path.name} in {path.parent}",
            expected="the bundle of this model",
            fix="write it with `python -m benchmarks.gpu bundle`, or put its parts together with `... join`",
        )
    place = folder / digest_file(path)[:16]
    with zipfile.ZipFile(path) as archive:
        raw = json.loads(archive.read(NOTES))
        notes = Notes(**raw | {key: tuple(raw[key]) for key in ("batch_sizes", "rounded")})
        place.mkdir(parents=True, exist_ok=True)
        for name in (CALIBRATION, EVALUATION, STATE, WEIGHTS):
            if not (place / name).exists():
                with write_whole(place / name) as partial:
                    partial.write_bytes(archive.read(name))
        if with_onnx and not (place / MODEL).exists():
            _write_model(archive.read(MODEL), arrays_of(place / WEIGHTS), notes, place / MODEL)
    state = arrays_of(place / STATE) or arrays_of(place / WEIGHTS)
    return Bundle(notes, place / MODEL, _samples(place / CALIBRATION), _samples(place / EVALUATION), state)


def _write_model(bare: bytes, weights: Mapping[str, NDArray[Any]], notes: Notes, path: Path) -> None:
    import onnx

    model = onnx.load_model_from_string(bare)
    put_weights(model, weights, notes.rounded)
    with write_whole(path) as partial:
        onnx.save_model(model, partial)


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def _samples(path: Path) -> Samples:
    arrays = arrays_of(path)
    labels = arrays.pop(LABEL, None)
    rows = len(next(iter(arrays.values())))
    return Samples(DataFile(path, digest_file(path), rows), arrays, labels)


def _first(samples: Samples, count: int) -> Samples:
    rows = min(count, len(samples))
    inputs = part_of(samples.inputs, 0, rows)
    labels = None if samples.labels is None else samples.labels[:rows]
    # Of another digest, so that nothing made of all of them is taken for something made of these.
    return Samples(DataFile(samples.file.path, digest_values(samples.file.digest, rows), rows), inputs, labels)


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
    return buffer.getvalue()

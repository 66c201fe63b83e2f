"""Writers of hostile files over a good job folder: each returns a function of the folder."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import yaml
from conftest import tiny_model, tiny_samples, tiny_weights
from numpy.typing import NDArray
from pyarrow import parquet

Arrays = dict[str, NDArray[Any]]
Plant = Callable[[Path], object]
# A new array, a function of the old one, or None to leave it out.
Change = NDArray[Any] | Callable[[NDArray[Any]], Any] | None
FEATURES = 64
# Of one row of random numbers: no compression, no repetition.
NAMES = [f"x.{number}" for number in range(FEATURES)]


def good_folder(folder: Path) -> None:
    """A job that `quantgate validate` accepts: `x[batch, 64] -> logits[batch, 4]`, 128 and 400 samples."""
    folder.mkdir(parents=True)
    onnx.save(tiny_model(*tiny_weights()), folder / "model.onnx")
    np.savez(folder / "calibration.npz", **tiny_samples(128, 11))
    np.savez(folder / "evaluation.npz", **tiny_samples(400, 12))
    job = {
        "source": "model.onnx",
        "data": {"calibration": "calibration.npz", "evaluation": "evaluation.npz"},
        "candidates": ["int8-static-minmax-pc@ort-cpu"],
        "gates": {"max_drop": 0.5},
        "calibration": {"model_samples": 0},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def arrays_of(folder: Path, role: str) -> Arrays:
    """The good arrays of a role."""
    with np.load(folder / f"{role}.npz") as file:
        return dict(file)


def changed(arrays: Arrays, changes: Mapping[str, Change]) -> Arrays:
    """The arrays with changes."""
    for name, change in changes.items():
        if change is None:
            del arrays[name]
        else:
            arrays[name] = change(arrays[name]) if callable(change) else change
    return arrays


def npz(role: str, **changes: Change) -> Plant:
    """Save the arrays of a role again with changes."""
    return lambda folder: np.savez(folder / f"{role}.npz", **changed(arrays_of(folder, role), changes))  # type: ignore[arg-type]  # numpy's own keyword


def both(**changes: Change) -> Plant:
    """Save the arrays of calibration and evaluation again with changes."""
    return steps(npz("calibration", **changes), npz("evaluation", **changes))


def steps(*plants: Plant) -> Plant:
    """One after the other."""
    return lambda folder: [plant(folder) for plant in plants]


def raw(name: str, content: bytes | str) -> Plant:
    """A file of other content."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name: str, share: float) -> Plant:
    """The begin of a file."""

    def plant(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(len(whole) * share)])

    return plant


def job(**changes: object) -> Plant:
    """Other values in the job; `data` is merged."""

    def plant(folder: Path) -> None:
        told = yaml.safe_load((folder / "job.yaml").read_text())
        data = told["data"]
        told |= changes
        if isinstance(changes.get("data"), dict):
            told["data"] = data | changes["data"]
        (folder / "job.yaml").write_text(yaml.safe_dump(told))

    return plant


def yaml_after(text: str) -> Plant:
    """Further lines of the job."""
    return lambda folder: (folder / "job.yaml").write_text((folder / "job.yaml").read_text() + text)


def as_file(name: str, write: Callable[[Path, Arrays], object], role: str = "calibration") -> Plant:
    """The arrays of a role in a file, or folder, of another type."""

    def plant(folder: Path) -> None:
        write(folder / name, arrays_of(folder, role))
        job(data={role: name})(folder)

    return plant


def csv_text(arrays: Arrays) -> str:
    """Columns `x.0` to `x.63` and `label`."""
    rows = [[*NAMES, "label"], *([*x, label] for x, label in zip(arrays["x"], arrays["label"], strict=True))]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def csv(change: Callable[[str], str | bytes], role: str = "calibration") -> Plant:
    """A CSV file whose text is changed."""

    def write(path: Path, arrays: Arrays) -> None:
        text = change(csv_text(arrays))
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return as_file(f"{role}.csv", write, role)


def columns_of(arrays: Arrays) -> dict[str, Any]:
    """A list of 64 numbers, and a label, for each row."""
    return {"x": pa.array(arrays["x"].tolist(), pa.list_(pa.float32())), "label": pa.array(arrays["label"])}


def table(change: Callable[[dict[str, Any]], dict[str, Any]], suffix: str = ".parquet") -> Plant:
    """Calibration data as Parquet or as an Arrow stream, with changed columns."""

    def write(path: Path, arrays: Arrays) -> None:
        made = pa.table(change(columns_of(arrays)))
        if suffix == ".parquet":
            parquet.write_table(made, path)
            return
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
            writer.write_table(made)

    return as_file(f"calibration{suffix}", write)


def huge_parquet(folder: Path) -> None:
    """The footer declares 10^12 rows for a few."""
    table(lambda columns: columns)(folder)
    path = folder / "calibration.parquet"
    whole = path.read_bytes()
    size = struct.unpack("<I", whole[-8:-4])[0]
    footer = whole[-8 - size : -8].replace(_varint(2 * 128), _varint(2 * 10**12))
    path.write_bytes(whole[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def npy(array: NDArray[Any]) -> bytes:
    """An array as numpy.save writes it; objects are pickled."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npy_header(shape: str, dtype: str = "<f4", content: bytes = b"\0" * 64) -> bytes:
    """An array file whose header declares a shape."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def archive(members: list[tuple[str, bytes]], name: str = "calibration.npz") -> Plant:
    """A zip archive of these members, some of which may have one name."""

    def plant(folder: Path) -> None:
        with warnings.catch_warnings(), zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as file:
            warnings.simplefilter("ignore")  # two members of one name
            for member, content in members:
                info = zipfile.ZipInfo(member)
                info.compress_type = zipfile.ZIP_DEFLATED
                file.writestr(info, content)

    return plant


def zip_bomb(folder: Path) -> None:
    """Four thousand members that are the same compressed bytes: 256 GB in 70 kB (D. Fifield, WOOT 2019)."""
    size, name = 64 * 2**20, b"x.npy"
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(bytes(size)) + deflate.flush()
    check = zlib.crc32(bytes(size))
    fields = (20, 0, 8, 0, 0, check, len(packed), size)
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields, len(name), 0) + name + packed
    count = 4000
    central = b"".join(
        struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, *fields, len(one), 0, 0, 0, 0, 0, 0) + one
        for one in (b"%05d.npy" % number for number in range(count))
    )
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(central), len(local), 0)
    (folder / "calibration.npz").write_bytes(local + central + end)


def in_folder(files: Mapping[str, Callable[[Arrays], bytes]], role: str = "calibration") -> Plant:
    """A folder of files made from the arrays of a role."""

    def write(path: Path, arrays: Arrays) -> None:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content(arrays))

    return as_file("folder", write, role)


def shard(rows: slice, **changes: Change) -> Callable[[Arrays], bytes]:
    """Some rows as an archive, with changes."""

    def content(arrays: Arrays) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **changed({name: array[rows] for name, array in arrays.items()}, changes))  # type: ignore[arg-type]  # numpy's own keyword
        return stream.getvalue()

    return content


def pipe(name: str) -> Plant:
    """A pipe that nobody writes to: whoever opens it waits forever."""

    def plant(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return plant


def link(name: str, target: str) -> Plant:
    """A symbolic link."""

    def plant(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return plant


def model(change: Callable[[onnx.ModelProto], object]) -> Plant:
    """The model with a change."""

    def plant(folder: Path) -> None:
        made = onnx.load(folder / "model.onnx")
        change(made)
        (folder / "model.onnx").write_bytes(made.SerializeToString())

    return plant


def external(location: str, length: int = 4) -> Plant:
    """The first weight in a file of its own."""

    def change(made: onnx.ModelProto) -> None:
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)

    return model(change)

"""Hostile inputs of a job, one row each: what is written over good files, what the job says, and what the error must name.

A row's function gets an empty folder and the arrays of good data, and returns the changes of the job. No row is accepted.
"""

from __future__ import annotations

import csv
import io
import os
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import FEATURES, tiny_model, tiny_samples, tiny_weights
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image

Arrays = dict[str, NDArray[Any]]
Changes = dict[str, Any]
ROWS = 40


@dataclass(frozen=True)
class Hostile:
    """A hostile input: `write(folder, arrays)` plants it; the error has this exit code and these words."""

    name: str
    write: Callable[[Path, Arrays], Changes]
    words: str
    code: int = 2


def evaluation(path: Path) -> Changes:
    return {"data": {"calibration": "calibration.npz", "evaluation": path.name}}


def npz(change: Callable[[Arrays], object], name: str = "evaluation.npz") -> Callable[[Path, Arrays], Changes]:
    """Plant a change in an npz file of arrays."""

    def write(folder: Path, arrays: Arrays) -> Changes:
        change(arrays)
        np.savez(folder / name, **arrays)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
        role = name.partition(".")[0]
        return {"data": {"calibration": "calibration.npz", "evaluation": "good.npz"} | {role: name}}

    return write


def put(key: str, make: Callable[[NDArray[Any]], Any]) -> Callable[[Arrays], object]:
    """Replace an array by what is made of it."""

    def change(arrays: Arrays) -> None:
        arrays[key] = make(arrays[key])

    return change


def rename(old: str, new: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({new: arrays.pop(old)})


def table(arrays: Arrays) -> pa.Table:
    """The arrays as a table with a column of lists."""
    return pa.table({"x": [row.tolist() for row in arrays["x"]], "label": arrays["label"]}).cast(
        pa.schema([("x", pa.list_(pa.float32())), ("label", pa.int64())])
    )


def parquet(make: Callable[[Arrays], pa.Table]) -> Callable[[Path, Arrays], Changes]:
    def write(folder: Path, arrays: Arrays) -> Changes:
        pq.write_table(make(arrays), folder / "evaluation.parquet")
        return evaluation(folder / "evaluation.parquet")

    return write


def csv_lines(arrays: Arrays) -> list[list[Any]]:
    """A table with columns `x.0` to `x.63` and `label`."""
    head = [*(f"x.{index}" for index in range(FEATURES)), "label"]
    return [head, *([*row, label] for row, label in zip(arrays["x"].tolist(), arrays["label"].tolist(), strict=True))]


def csv_text(lines: list[list[Any]], **options: Any) -> str:
    stream = io.StringIO()
    csv.writer(stream, **options).writerows(lines)
    return stream.getvalue()


def csv_file(make: Callable[[list[list[Any]]], str | bytes]) -> Callable[[Path, Arrays], Changes]:
    def write(folder: Path, arrays: Arrays) -> Changes:
        made = make(csv_lines(arrays))
        (folder / "evaluation.csv").write_bytes(made if isinstance(made, bytes) else made.encode())
        return evaluation(folder / "evaluation.csv")

    return write


def cell(row: int, column: int, value: object) -> Callable[[list[list[Any]]], str]:
    def make(lines: list[list[Any]]) -> str:
        lines[row][column] = value
        return csv_text(lines)

    return make


def raw(name: str, content: bytes) -> Callable[[Path, Arrays], Changes]:
    """Plant a file of these bytes as the evaluation data."""

    def write(folder: Path, _: Arrays) -> Changes:
        (folder / name).write_bytes(content)
        return evaluation(folder / name)

    return write


def npy_header(shape: str, dtype: str = "<f4") -> bytes:
    """An array file that claims a shape, and has a few bytes."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 64


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def bomb(_: Path, arrays: Arrays) -> bytes:
    """An archive of a few kilobytes that declares more bytes than any machine has."""
    content = bytearray(zipped(x=npy_header("(1000000, 64)"), label=npy(arrays["label"])))
    place = content.find(b"PK\x01\x02")
    # Uncompressed size of the first member in the central directory (APPNOTE.TXT 4.3.12), in the ZIP64 form's place.
    content[place + 24 : place + 28] = struct.pack("<I", 0xFFFFFFFE)
    return bytes(content)


def folder_of(**files: Callable[[Arrays], bytes | Arrays]) -> Callable[[Path, Arrays], Changes]:
    """A folder `evaluation` of data files; names have a double underscore for the dot."""

    def write(folder: Path, arrays: Arrays) -> Changes:
        place = folder / "evaluation"
        place.mkdir()
        for name, make in files.items():
            made = make({key: array.copy() for key, array in arrays.items()})
            path = place / name.replace("__", ".")
            if isinstance(made, bytes):
                path.write_bytes(made)
            elif path.suffix == ".npz":
                np.savez(path, **made)  # type: ignore[arg-type]  # see `npz`
            else:
                pq.write_table(table(made), path)
        return evaluation(place)

    return write


READ = """
import numpy as np
from PIL import Image

def read(path):
    return {"x": np.asarray(Image.open(path).convert("L").resize((8, 8)), np.float32).reshape(-1) / 255}

def quit(path):
    raise SystemExit(0)

def uneven(path):
    return {"x": np.zeros(64 if path.stem == "0" else 63, np.float32)}

def objects(path):
    return {"x": [object()]}

def nothing(path):
    return None
"""


def pictures(
    change: Callable[[Path], object] = lambda _: None, function: str = "read"
) -> Callable[[Path, Arrays], Changes]:
    """A folder of pictures with a table of labels, read by a function of the job."""

    def write(folder: Path, arrays: Arrays) -> Changes:
        (folder / "reading.py").write_text(READ)
        place = folder / "evaluation"
        place.mkdir()
        for index in range(4):
            Image.new("L", (8, 8), index * 40).save(place / f"{index}.png")
        lines = ["file_name,label", *(f"{index}.png,{index}" for index in range(4))]
        (place / "metadata.csv").write_text("\n".join(lines) + "\n")
        change(place)
        changes = evaluation(place)
        changes["data"] |= {"calibration": "evaluation", "read": f"reading:{function}"}
        return changes

    return write


def picture_bomb(place: Path) -> None:
    """A PNG of a few bytes that declares 60,000 by 60,000 pixels."""
    content = bytearray((place / "2.png").read_bytes())
    content[16:24] = struct.pack(">II", 60_000, 60_000)
    (place / "2.png").write_bytes(bytes(content))


def model(change: Callable[[onnx.ModelProto], object]) -> Callable[[Path, Arrays], Changes]:
    def write(folder: Path, _: Arrays) -> Changes:
        made = tiny_model(*tiny_weights())
        change(made)
        onnx.save(made, folder / "model.onnx")
        return {"source": "model.onnx"}

    return write


def source(name: str, content: bytes) -> Callable[[Path, Arrays], Changes]:
    def write(folder: Path, _: Arrays) -> Changes:
        (folder / name).write_bytes(content)
        return {"source": name}

    return write


def declare(name: str, kind: int, shape: list[Any] | None) -> Callable[[onnx.ModelProto], object]:
    """Give the model's input another type or shape."""
    value = helper.make_tensor_value_info(name, kind, shape)
    return lambda made: made.graph.input[0].CopyFrom(value)


def outside(made: onnx.ModelProto) -> None:
    """Weights in a file that lies elsewhere."""
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../../../etc/passwd")


def missing_weights(made: onnx.ModelProto) -> None:
    outside(made)
    made.graph.initializer[0].external_data[0].value = "weights.bin"


def cycle(made: onnx.ModelProto) -> None:
    made.graph.node[0].input[0] = "hidden"


def text(content: str | bytes) -> Callable[[Path, Arrays], Changes]:
    """A job file of this text, in which `{}` is the good one."""
    return lambda folder, arrays: {"": content}


def job(**changes: Any) -> Callable[[Path, Arrays], Changes]:
    return lambda folder, arrays: changes


def loop(folder: Path, _: Arrays) -> Changes:
    place = folder / "evaluation"
    place.mkdir()
    (place / "again").symlink_to(place)
    return evaluation(place)


def unreadable(folder: Path, arrays: Arrays) -> Changes:
    """A file that is a pipe, which would wait for a writer for ever."""
    os.mkfifo(folder / "evaluation.npz")
    return evaluation(folder / "evaluation.npz")


GOOD = tiny_samples(ROWS, 12)
YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)
)

HOSTILE: tuple[Hostile, ...] = (
    # Types and shapes of arrays.
    Hostile("double precision", npz(put("x", lambda x: x.astype(np.float64))), "x is float64"),
    Hostile("whole numbers", npz(put("x", lambda x: (x * 100).astype(np.uint8))), "x is uint8"),
    Hostile("complex numbers", npz(put("x", lambda x: x.astype(np.complex64))), "x is complex64"),
    Hostile("big-endian numbers of another size", npz(put("x", lambda x: x.astype(">f8"))), "x is "),
    Hostile("records", npz(put("x", lambda x: x.view([(f"f{i}", "<f4") for i in range(FEATURES)]))), "x is "),
    Hostile("text in place of numbers", npz(put("x", lambda x: x.astype(str))), "x is "),
    Hostile("Python objects", npz(put("x", lambda x: x.astype(object))), "array 'x' holds Python objects"),
    Hostile("dates", npz(put("x", lambda x: x.astype("datetime64[s]"))), "x is datetime64[s]"),
    Hostile("one column less", npz(put("x", lambda x: x[:, :-1])), f"x has shape ({ROWS}, 63)"),
    Hostile("samples on the last axis", npz(put("x", lambda x: x.T.copy())), "x has shape (64, 40)"),
    Hostile("one axis more", npz(put("x", lambda x: x[:, None])), f"x has shape ({ROWS}, 1, 64)"),
    Hostile("flat", npz(put("x", lambda x: x.reshape(-1))), "x has shape"),
    Hostile("a single number", npz(put("x", lambda x: x[0, 0])), "x has "),
    Hostile("no sample", npz(lambda a: a.update({k: v[:0] for k, v in a.items()})), "has no samples"),
    Hostile("one sample", npz(lambda a: a.update({k: v[:1] for k, v in a.items()})), "1 "),
    Hostile("NaN", npz(put("x", lambda x: np.where(x > 3, np.nan, x).astype(np.float32))), "NaN or Inf in input 'x'"),
    Hostile("infinity", npz(put("x", lambda x: np.where(x > 3, np.inf, x).astype(np.float32))), "NaN or Inf in input"),
    # Names.
    Hostile("another name", npz(rename("x", "pixels")), "missing ['x']"),
    Hostile("another case", npz(rename("x", "X")), "missing ['x']"),
    Hostile("no label", npz(rename("label", "target")), "label"),
    Hostile("a name with a line break", npz(rename("x", "x\nlabel: y")), "missing ['x']"),
    # Labels.
    Hostile("fewer labels", npz(put("label", lambda y: y[:-3])), "'label': 37"),
    Hostile("a class too many", npz(put("label", lambda y: np.where(y == 3, 4, y))), "class indices from 0 to 3"),
    Hostile("classes from 1 to 4", npz(put("label", lambda y: y + 1)), "class indices from 0 to 3"),
    Hostile("negative classes", npz(put("label", lambda y: y - 1)), "class indices from 0 to 3"),
    Hostile("halves of classes", npz(put("label", lambda y: y + 0.5)), "label"),
    Hostile("labels that are not there", npz(put("label", lambda y: np.where(y == 2, np.nan, y))), "label"),
    Hostile("names of classes", npz(put("label", lambda y: np.array(["cat", "dog", "fox", "owl"])[y])), "label"),
    Hostile("labels on two axes", npz(put("label", lambda y: np.stack([y, y], 1))), "label"),
    # Damaged and dangerous npz files.
    Hostile("an empty file", raw("evaluation.npz", b""), "evaluation.npz is an empty file"),
    Hostile("text named npz", raw("evaluation.npz", b"x,label\n1,2\n"), "is a text file, not an npz archive"),
    Hostile("half a file", raw("evaluation.npz", zipped(x=npy(GOOD["x"]))[:-200]), "truncated"),
    Hostile(
        "a damaged member", raw("evaluation.npz", zipped(x=npy(GOOD["x"])[:-60], label=npy(GOOD["label"]))), "read"
    ),
    Hostile("a pickle", raw("evaluation.npz", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94."), "npz"),
    Hostile("no arrays", raw("evaluation.npz", zipped()), "missing"),
    Hostile("a header of terabytes", raw("evaluation.npz", zipped(x=npy_header("(4000000000, 64)"))), "evaluation.npz"),
    Hostile(
        "a member that is not an array", raw("evaluation.npz", zipped(x=b"hello", label=b"hello")), "evaluation.npz"
    ),
    Hostile("an archive bomb", lambda f, a: raw("evaluation.npz", bomb(f, a))(f, a), "evaluation.npz"),
    Hostile("names of paths", npz(lambda a: a.update({"../../x": a.pop("x")})), "missing ['x']"),
    Hostile("another suffix", raw("evaluation.json", b"[1, 2]"), "suffix '.json'"),
    Hostile("a pipe", unreadable, "evaluation.npz"),
    # Tables.
    Hostile("nulls", parquet(lambda a: table(a).set_column(1, "label", pa.array([None] * ROWS, pa.int64()))), "nulls"),
    Hostile("two columns of one name", parquet(lambda a: table(a).append_column("x", table(a)["x"])), "named 'x'"),
    Hostile(
        "lists of unequal lengths", parquet(lambda a: pa.table({"x": [[1.0] * (1 + i % 3) for i in range(ROWS)]})), "x"
    ),
    Hostile("a column of records", parquet(lambda a: pa.table({"x": [{"a": 1.0}] * ROWS})), "struct"),
    Hostile("a column of pictures", parquet(lambda a: pa.table({"x": [b"\x89PNG"] * ROWS})), "binary"),
    Hostile("half a table", raw("evaluation.parquet", b"PAR1" + b"\0" * 100), "truncated"),
    Hostile("a table of no rows", parquet(lambda a: table(a)[:0]), "has no samples"),
    Hostile("semicolons", csv_file(lambda lines: csv_text(lines, delimiter=";")), "missing ['x']"),
    Hostile("no header", csv_file(lambda lines: csv_text(lines[1:])), "evaluation.csv"),
    Hostile("a word among numbers", csv_file(cell(7, 3, "unknown")), "x"),
    Hostile("an empty cell", csv_file(cell(7, 3, "")), "nulls"),
    Hostile("a row that is too long", csv_file(lambda lines: csv_text([*lines, [1] * 99])), "evaluation.csv"),
    Hostile("Latin-1", csv_file(lambda lines: "x,läbel\n1,ü\n".encode("latin-1")), "evaluation.csv"),
    Hostile("an open quote", csv_file(lambda lines: csv_text(lines) + '"1,2\n'), "evaluation.csv"),
    Hostile("a header alone", csv_file(lambda lines: csv_text(lines[:1])), "no rows"),
    Hostile("a row of 30 MB", csv_file(lambda lines: "x,label\n" + "1" * 30_000_000 + ",1\n"), "evaluation.csv"),
    Hostile("zero bytes", raw("evaluation.csv", b"x,label\n\0\0\0,1\n"), "evaluation.csv"),
    Hostile("text named arrow", raw("evaluation.arrow", b"hello"), "not an Arrow file"),
    Hostile("half an arrow file", raw("evaluation.arrow", b"ARROW1\0\0" + b"\xff\xff\xff\xff" + b"\0" * 40), "arrow"),
    # Folders.
    Hostile("an empty folder", folder_of(), "a folder without data files"),
    Hostile("a folder in itself", loop, "a folder without data files"),
    Hostile(
        "shards of other columns",
        folder_of(a__npz=dict, b__npz=lambda a: {"x": a["x"], "labels": a["label"]}),
        "missing in one of a.npz and b.npz",
    ),
    Hostile(
        "shards of other types",
        folder_of(a__npz=dict, b__npz=lambda a: a | {"x": (a["x"] * 9).astype(np.int32)}),
        "'x' is float32",
    ),
    Hostile("a damaged shard", folder_of(a__npz=dict, b__npz=lambda a: b"PK\x03\x04 torn"), "b.npz"),
    Hostile(
        "arrays of other lengths",
        folder_of(x__npy=lambda a: npy(a["x"]), label__npy=lambda a: npy(a["label"][:9])),
        "9",
    ),
    Hostile(
        "half an array", folder_of(x__npy=lambda a: npy(a["x"])[:-9], label__npy=lambda a: npy(a["label"])), "x.npy"
    ),
    Hostile("an array of terabytes", folder_of(x__npy=lambda a: npy_header("(4000000000, 64)")), "x.npy"),
    Hostile("a pickled array", folder_of(x__npy=lambda a: npy_header("(40,)", "|O")), "x.npy"),
    # Folders of pictures.
    Hostile("a torn picture", pictures(lambda p: (p / "2.png").write_bytes((p / "2.png").read_bytes()[:40])), "2.png"),
    Hostile("a picture of text", pictures(lambda p: (p / "1.png").write_text("hello")), "1.png"),
    Hostile("a picture that is not there", pictures(lambda p: (p / "3.png").unlink()), "3.png"),
    Hostile("a picture of 3.6 gigapixels", pictures(picture_bomb), "2.png"),
    Hostile(
        "a picture elsewhere",
        pictures(lambda p: (p / "metadata.csv").write_text("file_name,label\n../../../etc/passwd,1\n")),
        "/etc/passwd",
    ),
    Hostile(
        "no column of files", pictures(lambda p: (p / "metadata.csv").write_text("name,label\n0.png,1\n")), "file_name"
    ),
    Hostile("a reader that ends the process", pictures(function="quit"), "reading:quit"),
    Hostile("a reader of unequal arrays", pictures(function="uneven"), "reading:uneven"),
    Hostile("a reader of objects", pictures(function="objects"), "reading:objects"),
    Hostile("a reader of nothing", pictures(function="nothing"), "reading:nothing"),
    Hostile("a reader that is not there", pictures(function="reed"), "reed"),
    # Models.
    Hostile("an empty model", source("model.onnx", b""), "model.onnx"),
    Hostile("text named onnx", source("model.onnx", b"hello, this is a model\n"), "model.onnx"),
    Hostile("a pickled model", source("model.pkl", b"\x80\x04."), "model.pkl"),
    Hostile("no axes known", model(declare("x", TensorProto.FLOAT, None)), "x"),
    Hostile("an input of another type", model(declare("x", TensorProto.DOUBLE, ["batch", FEATURES])), "model.onnx"),
    Hostile("weights elsewhere", model(outside), "etc/passwd"),
    Hostile("weights that are not there", model(missing_weights), "weights.bin"),
    Hostile("a graph in a circle", model(cycle), "model.onnx"),
    Hostile("no output", model(lambda made: made.graph.ClearField("output")), "output"),
    # Job files.
    Hostile("a YAML bomb", text(YAML_BOMB), "job.yaml"),
    Hostile("Python in YAML", text("{}\nname: !!python/object/apply:os.system ['true']\n"), "job.yaml"),
    Hostile("a key twice", text("{}\nmetric: accuracy\nmetric: top5\n"), "metric"),
    Hostile("bytes that are no text", text(b"\xff\xfe\x00source"), "job.yaml"),
    Hostile("an unknown key", job(metrics="accuracy"), "metrics"),
    Hostile("a number as the metric", job(metric=3), "metric"),
    Hostile("a negative tolerance", job(gates={"max_drop": -0.1}), "max_drop"),
    Hostile("a tolerance that is no number", job(gates={"max_drop": float("nan")}), "max_drop"),
    Hostile("a batch of a million", job(measurement={"batch_sizes": [10**12]}), "batch_sizes"),
    Hostile("a list as the data", job(data=["calibration.npz"]), "data"),
)

"""The table of hostile inputs: files over a good job folder, the exit code of the command, and words of its error."""

from __future__ import annotations

import datetime
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
from hostile_files import (
    FEATURES,
    Arrays,
    Plant,
    archive,
    both,
    csv,
    csv_text,
    cut,
    external,
    huge_parquet,
    in_folder,
    job,
    link,
    model,
    npy,
    npy_header,
    npz,
    pipe,
    raw,
    shard,
    steps,
    table,
    yaml_after,
    zip_bomb,
)
from PIL import Image

BAD, REFUSED, FINE = 2, 4, 0
READER = """
import numpy as np
from PIL import Image


def picture(path):
    with Image.open(path) as image:
        return {"x": np.float32(image).reshape(-1, *np.shape(image)[2:]) / 255}
"""


@dataclass(frozen=True)
class Hostile:
    """An input that a command has to survive: words of what it finds, and of its advice."""

    name: str
    plant: Plant
    code: int
    found: str
    fix: str = ""
    command: str = "validate"


def floats(array: np.ndarray) -> np.ndarray:
    """Labels of which one is 1.5."""
    made = array.astype(np.float64)
    made[3] = 1.5
    return made


def poisoned(value: float, dtype: str = "float32") -> Callable[[np.ndarray], np.ndarray]:
    """An array with one other value."""

    def change(array: np.ndarray) -> np.ndarray:
        made = array.astype(dtype)
        made.flat[5] = value
        return made

    return change


def to(dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.astype(dtype)


def objects(array: np.ndarray) -> np.ndarray:
    return array.astype(object)


def pictures(change: Callable[[Path], object]) -> Plant:
    """Calibration data as a folder of 12 grey pictures with a table of labels, changed."""

    def plant(folder: Path) -> None:
        place = folder / "pictures"
        place.mkdir()
        for number in range(12):
            Image.new("L", (8, 8), number * 20).save(place / f"{number}.png")
        (place / "metadata.csv").write_text("file_name,label\n" + "".join(f"{n}.png,{n % 4}\n" for n in range(12)))
        (folder / "reader.py").write_text(READER)
        job(data={"calibration": "pictures", "read": "reader:picture"})(folder)
        change(place)

    return plant


def picture_header(width: int, height: int) -> bytes:
    """The begin of a picture that declares a size."""
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "png")
    whole = bytearray(stream.getvalue())
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    import zlib

    whole[29:33] = zlib.crc32(bytes(whole[12:29])).to_bytes(4, "big")
    return bytes(whole)


def quoted_breaks(folder: Path) -> None:
    """A column of two megabytes of quoted text with line breaks, as captions have them."""

    def noted(text: str) -> str:
        head, *rows = text.splitlines()
        return "\n".join([f"note,{head}", *('"' + "a\n" * 8000 + f'",{row}' for row in rows)]) + "\n"

    csv(noted)(folder)
    job(data={"ignore": ["note"]})(folder)


def indexed(text: str, name: str) -> str:
    """A table with the numbers of its rows before them, as pandas writes its index."""
    head, *rows = text.splitlines()
    return "\n".join([f"{name},{head}", *(f"{number},{row}" for number, row in enumerate(rows))]) + "\n"


def x_of(array: np.ndarray) -> Callable[[Arrays], bytes]:
    return lambda _: npy(array)


X, LABEL = (lambda found: npy(found["x"])), (lambda found: npy(found["label"]))
FIRST, REST = slice(0, 64), slice(64, None)
STRUCTURE = np.dtype([("a", "f4"), ("b", "i4")])
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
ROWS = "".join(f"{n}," for n in range(10_000_000))[:50_000_000]

ARCHIVES = [
    Hostile("float64 in place of float32", npz("calibration", x=to("float64")), BAD, "x is float64"),
    Hostile("float16 in place of float32", npz("calibration", x=to("float16")), BAD, "x is float16"),
    Hostile("bytes in place of floats", npz("calibration", x=lambda x: (x * 9).astype("uint8")), BAD, "x is uint8"),
    Hostile("complex numbers", npz("calibration", x=to("complex64")), BAD, "x is complex64"),
    Hostile("a structured type", npz("calibration", x=np.zeros((128, FEATURES), STRUCTURE)), BAD, "x is [('a'"),
    Hostile("dates", npz("calibration", x=lambda x: x.astype("i8").astype("M8[s]")), BAD, "x is datetime64"),
    Hostile("big-endian numbers", npz("calibration", x=to(">f4")), BAD, "x is >f4"),
    Hostile("text in place of numbers", npz("calibration", x=to("U8")), BAD, "x is <U8"),
    Hostile("bytes strings", npz("calibration", x=to("S8")), BAD, "x is |S8"),
    Hostile("Fortran order", both(x=np.asfortranarray), FINE, "accepted"),
    Hostile("objects in an archive", npz("calibration", x=objects), BAD, "'x' holds Python objects"),
    Hostile("a single number", npz("calibration", x=np.float32(3)), BAD, "x has shape ()"),
    Hostile("a label that is a single number", npz("evaluation", label=np.int64(3)), BAD, "'label' is a single value"),
    Hostile("too few features", npz("evaluation", x=lambda x: x[:, :60]), BAD, "x has shape (400, 60)"),
    Hostile("axes swapped", npz("evaluation", x=lambda x: x.T.copy(), label=None), BAD, "x has shape (64, 400)"),
    Hostile("one axis more", npz("evaluation", x=lambda x: x[:, None]), BAD, "x has shape (400, 1, 64)", "squeeze(1)"),
    Hostile("no samples", npz("calibration", x=lambda x: x[:0], label=lambda y: y[:0]), BAD, "has no samples"),
    Hostile("one calibration sample", npz("calibration", x=lambda x: x[:1], label=lambda y: y[:1]), REFUSED, "1 "),
    Hostile("one evaluation sample", npz("evaluation", x=lambda x: x[:1], label=lambda y: y[:1]), BAD, "1 "),
    Hostile("NaN in calibration data", npz("calibration", x=poisoned(np.nan)), REFUSED, "finite"),
    Hostile("infinity in evaluation data", npz("evaluation", x=poisoned(np.inf)), BAD, "NaN or Inf in input 'x'"),
    Hostile(
        "values at the end of float32",
        steps(npz("calibration", x=poisoned(3e38)), job(calibration={})),
        FINE,
        "accepted",
    ),
    Hostile("another name", npz("calibration", x=None, X=np.zeros((128, FEATURES), "f4")), BAD, "missing ['x']", "'X'"),
    Hostile("a name from a folder above", npz("calibration", **{"../../x": np.zeros(128)}), BAD, "../../x"),
    Hostile(
        "two members of one name",
        archive([("x.npy", npy(np.zeros((128, 64), "f4")))] * 2),
        BAD,
        "several arrays named 'x'",
    ),
    Hostile("a member that is no array", archive([("x.npy", npy(np.zeros(3))), ("a.txt", b"hi")]), BAD, "a.txt"),
    Hostile("an archive in an archive", archive([("x.npz", b"PK\5\6" + bytes(18))]), BAD, "x.npz"),
    Hostile("a member that is cut", archive([("x.npy", npy(np.zeros((128, 64), "f4"))[:9000])]), BAD, "x"),
    Hostile("a header of 10^12 rows", archive([("x.npy", npy_header(f"({10**12}, 64)"))]), BAD, "'x'"),
    Hostile("a header of 10^30 rows", archive([("x.npy", npy_header(f"({10**30}, 64)"))]), BAD, "'x'"),
    Hostile("a header that is code", archive([("x.npy", npy_header("__import__('os').abort()"))]), BAD, "'x'"),
    Hostile("an archive of no members", archive([]), BAD, "the archive is empty"),
    Hostile("an archive bomb", zip_bomb, BAD, "GB when unpacked"),
    Hostile("a truncated archive", cut("calibration.npz", 0.6), BAD, "calibration.npz is a truncated npz archive"),
    Hostile("an empty file", raw("calibration.npz", b""), BAD, "calibration.npz is an empty file"),
    Hostile("a pickle called npz", raw("calibration.npz", pickle.dumps({"x": 1})), BAD, "is a pickle"),
    Hostile("an array called npz", raw("calibration.npz", npy(np.zeros(3))), BAD, "one array as numpy.save writes it"),
    Hostile("text called npz", raw("calibration.npz", "x,label\n1,2\n"), BAD, "calibration.npz is a text file"),
    Hostile("a pipe", pipe("calibration.npz"), BAD, "calibration.npz"),
    Hostile("a link to itself", link("calibration.npz", "calibration.npz"), BAD, "calibration.npz"),
    Hostile("a device", link("calibration.npz", "/dev/zero"), BAD, "calibration.npz"),
    Hostile("the same data twice", job(data={"calibration": "evaluation.npz"}), REFUSED, "evaluation"),
]
LABELS = [
    Hostile("labels that are fractions", npz("evaluation", label=floats), BAD, "1.5"),
    Hostile("labels that are NaN", npz("evaluation", label=poisoned(np.nan, "f8")), BAD, "NaN"),
    Hostile("labels that are infinite", npz("evaluation", label=poisoned(np.inf, "f8")), BAD, "inf"),
    Hostile("whole labels as floats", npz("evaluation", label=to("f8")), BAD, "float64", "astype('int64')"),
    Hostile("labels from 1", npz("evaluation", label=lambda y: y + 1), BAD, "such as 4", "1 to 4"),
    Hostile("labels of -1", npz("evaluation", label=poisoned(-1, "i8")), BAD, "such as -1", "negative labels"),
    Hostile("labels far outside", npz("evaluation", label=poisoned(2**40, "i8")), BAD, "such as 1099511627776"),
    Hostile("one-hot labels", npz("evaluation", label=lambda y: np.eye(4)[y]), BAD, "(400, 4)", "argmax"),
    Hostile("labels in a column", npz("evaluation", label=lambda y: y[:, None]), BAD, "(400, 1)", "label[:, 0]"),
    Hostile("labels as text", npz("evaluation", label=to("U3")), BAD, "<U3"),
    Hostile("labels as booleans", npz("evaluation", label=lambda y: y > 1), BAD, "bool"),
    Hostile("fewer labels than samples", npz("evaluation", label=lambda y: y[:-3]), BAD, "'label': 397"),
    Hostile("no labels", npz("evaluation", label=None), BAD, "has no array 'label'"),
    Hostile(
        "labels of another name",
        npz("evaluation", label=None, labels=np.zeros(400, "i8")),
        BAD,
        "labels",
        "`label: labels`",
    ),
    Hostile("text labels in calibration data alone", npz("calibration", label=to("U3")), BAD, "<U3"),
    Hostile("NaN labels in calibration data", npz("calibration", label=poisoned(np.nan, "f8")), BAD, "NaN"),
    Hostile("a table of labels in calibration data", npz("calibration", label=lambda y: np.eye(4)[y]), BAD, "(128, 4)"),
    Hostile("object labels", npz("calibration", label=objects), BAD, "'label' holds Python objects"),
]
FOLDERS = [
    Hostile("objects in a folder", in_folder({"x.npy": lambda a: npy(a["x"].astype(object))}), BAD, "Python objects"),
    Hostile("an archive called npy", in_folder({"x.npy": shard(FIRST)}), BAD, "x.npy"),
    Hostile("an array file of 10^12 rows", in_folder({"x.npy": lambda _: npy_header(f"({10**12}, 64)")}), BAD, "x.npy"),
    Hostile("an array file cut", in_folder({"x.npy": lambda a: npy(a["x"])[:9000]}), BAD, "x.npy"),
    Hostile("an empty array file", in_folder({"x.npy": lambda _: b""}), BAD, "x.npy"),
    Hostile("a pipe in a folder", steps(in_folder({"label.npy": LABEL}), pipe("folder/x.npy")), BAD, "x.npy"),
    Hostile(
        "a link to itself in a folder",
        steps(in_folder({"label.npy": LABEL}), link("folder/x.npy", "x.npy")),
        BAD,
        "x.npy",
    ),
    Hostile("arrays of two lengths", in_folder({"x.npy": X, "label.npy": x_of(np.zeros(9, "i8"))}), BAD, "'label': 9"),
    Hostile("arrays beside an archive", in_folder({"x.npy": X, "more.npz": shard(FIRST)}), BAD, "more.npz"),
    Hostile("a folder of nothing", in_folder({}), BAD, "a folder without data files"),
    Hostile(
        "a folder of splits",
        steps(in_folder({}), lambda f: (f / "folder/train").mkdir(), raw("folder/train/a.arrow", "")),
        BAD,
        "['train']",
    ),
    Hostile(
        "a shard without labels", in_folder({"a.npz": shard(FIRST), "b.npz": shard(REST, label=None)}), BAD, "'label'"
    ),
    Hostile("shards of two types", in_folder({"a.npz": shard(FIRST), "b.npz": shard(REST, x=to("i4"))}), BAD, "'x'"),
    Hostile(
        "shards of two precisions",
        in_folder({"a.npz": shard(FIRST), "b.npz": shard(REST, x=to("f8"))}),
        BAD,
        "x is float64",
    ),
    Hostile(
        "shards of two widths",
        in_folder({"a.npz": shard(FIRST), "b.npz": shard(REST, x=lambda x: x[:, 1:])}),
        BAD,
        "'x'",
    ),
    Hostile(
        "shards of single numbers",
        in_folder({"a.npz": shard(FIRST, n=np.array(1)), "b.npz": shard(REST, n=np.array(1))}),
        BAD,
        "'n'",
    ),
    Hostile(
        "an empty shard", in_folder({"a.npz": shard(FIRST), "b.npz": lambda _: b""}), BAD, "b.npz is an empty file"
    ),
    Hostile("a text shard", in_folder({"a.npz": shard(FIRST), "b.csv": lambda _: b"hello\nworld\n"}), BAD, "hello"),
    Hostile("a folder that holds itself", steps(in_folder({}), link("folder/a.npz", ".")), BAD, "a.npz"),
    Hostile(
        "a CSV shard among archives",
        in_folder({"a.npz": shard(FIRST), "b.csv": lambda a: csv_text(a).encode()}),
        BAD,
        "x is float64",
    ),
    Hostile("shards of CSV", in_folder({"a.csv": lambda a: csv_text(a).encode()}), FINE, "accepted"),
]
TABLES = [
    Hostile("CSV with a byte order mark", csv(lambda text: "\ufeff" + text), FINE, "accepted"),
    Hostile("CSV with quoted line breaks", quoted_breaks, FINE, "accepted"),
    Hostile("CSV with semicolons", csv(lambda text: text.replace(",", ";")), BAD, "';'"),
    Hostile("CSV with tabs", csv(lambda text: text.replace(",", "\t")), BAD, "'\\t'"),
    Hostile(
        "CSV in Latin-1",
        csv(lambda text: text.replace("label", "größe").encode("latin-1")),
        BAD,
        "calibration.csv",
        "UTF-8",
    ),
    Hostile(
        "CSV in Latin-1 far in", csv(lambda text: text.encode() + b"\xfc" + b",1" * 64 + b"\n"), BAD, "calibration.csv"
    ),
    Hostile("CSV in UTF-16", csv(lambda text: text.encode("utf-16")), BAD, "UTF-16", "UTF-8"),
    Hostile(
        "CSV with a word among numbers",
        csv(lambda text: text.replace("\n", "\noops,", 1).replace(",", "", 0)),
        BAD,
        "calibration.csv",
    ),
    Hostile("CSV with text in one column", csv(lambda text: text + "n/e" + ",1" * 64 + "\n"), BAD, "'x.0'"),
    Hostile("CSV with an empty cell", csv(lambda text: text + ",1" * 64 + "\n"), BAD, "'x.0'"),
    Hostile("CSV with two columns of one name", csv(lambda text: text.replace("x.1,", "x.0,", 1)), BAD, "'x.0'"),
    Hostile("CSV without one column", csv(lambda text: text.replace("x.7,", "y,", 1)), BAD, "missing ['x']", "'x.7'"),
    Hostile(
        "CSV with columns from 1",
        csv(lambda text: ",".join(f"x.{n}" for n in range(1, 65)) + ",label\n" + text.partition("\n")[2]),
        BAD,
        "missing ['x']",
        "from 0",
    ),
    Hostile(
        "CSV with the index of pandas",
        csv(lambda text: indexed(text, "")),
        BAD,
        "not inputs of the model: ['']",
        "`ignore: ['']`",
    ),
    Hostile(
        "CSV with the index of pandas, twice",
        csv(lambda text: indexed(indexed(text, "Unnamed: 0"), "")),
        BAD,
        "['', 'Unnamed: 0']",
        "`ignore: ['', 'Unnamed: 0']`",
    ),
    Hostile(
        "CSV with columns of other names",
        csv(lambda text: text.replace("x.", "pixel")),
        BAD,
        "missing ['x']",
        "add `columns: x` to `data`",
    ),
    Hostile(
        "CSV with columns of other names and an index",
        csv(lambda text: indexed(text.replace("x.", "pixel"), "")),
        BAD,
        "missing ['x']",
        "add `columns: x` and `ignore: ['']` to `data`",
    ),
    Hostile(
        "CSV with a number beyond float32",
        csv(lambda text: text + "-1e300" + ",1" * 64 + "\n"),
        BAD,
        "-1e+300 in column 'x.0' of row 129 is beyond float32",
    ),
    Hostile("CSV without a header", csv(lambda text: text.partition("\n")[2]), BAD, "calibration.csv"),
    Hostile("CSV of a header", csv(lambda text: text.partition("\n")[0] + "\n"), BAD, "a header and no rows"),
    Hostile("CSV that is cut", csv(lambda text: text[:-40]), BAD, "calibration.csv"),
    Hostile("CSV with an open quote", csv(lambda text: text + '"1' + ",1" * 64 + "\n"), BAD, "calibration.csv"),
    Hostile("CSV of one line of 50 MB", csv(lambda _: ROWS), BAD, "calibration.csv"),
    Hostile(
        "CSV with fractions for labels",
        csv(lambda text: text.replace("\n", ".5\n").replace("label.5", "label"), "evaluation"),
        BAD,
        ".5",
    ),
    Hostile(
        "Parquet called CSV",
        steps(
            table(lambda c: c),
            lambda f: (f / "calibration.parquet").rename(f / "c.csv"),
            job(data={"calibration": "c.csv"}),
        ),
        BAD,
        "c.csv is a Parquet file",
    ),
    Hostile("JSON called CSV", csv(lambda _: '{"x": [1]}'), BAD, "calibration.csv"),
    Hostile("Parquet with nulls", table(lambda c: c | {"label": pa.array([None, *[1] * 127])}), BAD, "'label'"),
    Hostile("Parquet of nulls", table(lambda c: c | {"label": pa.nulls(128)}), BAD, "'label'"),
    Hostile(
        "Parquet with lists of two lengths",
        table(lambda c: c | {"x": pa.array([*c["x"].to_pylist()[:-1], [1.0]], pa.list_(pa.float32()))}),
        BAD,
        "x",
    ),
    Hostile(
        "Parquet with dictionaries",
        table(lambda c: c | {"x": pa.array(["a", "b"] * 64).dictionary_encode()}),
        BAD,
        "x is",
    ),
    Hostile(
        "Parquet with records", table(lambda c: c | {"x": pa.array([{"bytes": b"1", "path": "a"}] * 128)}), BAD, "'x'"
    ),
    Hostile("Parquet with decimals", table(lambda c: c | {"x": pa.array([1] * 128, pa.decimal128(9, 2))}), BAD, "x"),
    Hostile("Parquet with dates", table(lambda c: c | {"x": pa.array([datetime.date(2024, 1, 1)] * 128)}), BAD, "x"),
    Hostile(
        "Parquet with double precision",
        table(lambda c: c | {"x": c["x"].cast(pa.list_(pa.float64()))}),
        BAD,
        "x is float64",
    ),
    Hostile("Parquet of 10^12 rows", huge_parquet, BAD, "calibration.parquet"),
    Hostile(
        "Parquet that is cut", steps(table(lambda c: c), cut("calibration.parquet", 0.7)), BAD, "truncated Parquet file"
    ),
    Hostile(
        "Parquet with a broken page",
        steps(table(lambda c: c), lambda f: broken(f / "calibration.parquet")),
        REFUSED,
        "NaN or Inf",
    ),
    Hostile(
        "an Arrow stream that is cut",
        steps(table(lambda c: c, ".arrow"), cut("calibration.arrow", 0.7)),
        BAD,
        "calibration.arrow",
    ),
    Hostile(
        "Arrow with a broken schema",
        steps(table(lambda c: c, ".arrow"), lambda f: broken(f / "calibration.arrow", 40)),
        BAD,
        "calibration.arrow",
    ),
    Hostile(
        "a spreadsheet",
        steps(raw("calibration.xlsx", b"PK\3\4"), job(data={"calibration": "calibration.xlsx"})),
        BAD,
        "'.xlsx'",
    ),
    Hostile("HDF5", steps(raw("c.h5", b"\x89HDF"), job(data={"calibration": "c.h5"})), BAD, "an HDF5 file"),
]
PICTURES = [
    Hostile("a truncated picture", pictures(lambda p: cut("3.png", 0.6)(p)), BAD, "3.png"),
    Hostile("a picture bomb", pictures(lambda p: raw("3.png", picture_header(30_000, 30_000))(p)), BAD, "3.png"),
    Hostile("text called png", pictures(lambda p: raw("3.png", "hello")(p)), BAD, "3.png"),
    Hostile("a CMYK picture", pictures(lambda p: Image.new("CMYK", (8, 8)).save(p / "3.png", "TIFF")), BAD, "3.png"),
    Hostile("a larger picture", pictures(lambda p: Image.new("L", (9, 8)).save(p / "3.png")), BAD, "3.png"),
    Hostile("a missing picture", pictures(lambda p: (p / "3.png").unlink()), BAD, "1 missing files, such as 3.png"),
    Hostile(
        "a picture above the folder",
        pictures(lambda p: raw("metadata.csv", "file_name,label\n../job.yaml,1\n")(p)),
        BAD,
        "../job.yaml",
    ),
    Hostile(
        "an absolute path of a picture",
        pictures(lambda p: raw("metadata.csv", "file_name,label\n/etc/hostname,1\n")(p)),
        BAD,
        "missing files, such as /etc/hostname",
    ),
    Hostile(
        "a table without names",
        pictures(lambda p: raw("metadata.csv", "filename,label\n1.png,1\n")(p)),
        BAD,
        "'filename'",
        "file_name",
    ),
    Hostile(
        "a picture named twice",
        pictures(lambda p: raw("metadata.csv", "file_name,label\n1.png,1\n1.png,2\n")(p)),
        BAD,
        "1.png",
    ),
    Hostile(
        "pictures without labels",
        pictures(lambda p: raw("metadata.csv", "file_name,label\n1.png,1\n2.png,2\n")(p)),
        REFUSED,
        "does not name 10 files of pictures",
    ),
    Hostile(
        "a folder of no pictures",
        pictures(lambda p: [file.unlink() for file in p.iterdir()]),
        BAD,
        "a folder without files",
    ),
    Hostile("a pipe among pictures", pictures(lambda p: pipe("3.png")(p)), BAD, "3.png"),
]


def broken(path: Path, at: int = 300) -> None:
    """Ones over some bytes."""
    content = bytearray(path.read_bytes())
    content[at : at + 200] = b"\xff" * 200
    path.write_bytes(content)


def no_shape(made: onnx.ModelProto) -> None:
    made.graph.input[0].type.tensor_type.ClearField("shape")


def huge_weight(made: onnx.ModelProto) -> None:
    made.graph.initializer[0].dims[0] = 2**50


def cycle(made: onnx.ModelProto) -> None:
    made.graph.node[0].input[0] = "hidden"


def line_break(made: onnx.ModelProto) -> None:
    made.graph.input[0].name = made.graph.node[0].input[0] = "x\nsource: /etc/passwd\x1b[2J\u202e"


def twice(command: str, *rows: tuple[str, Plant, str]) -> list[Hostile]:
    return [Hostile(f"{name} ({command})", plant, BAD, found, command=command) for name, plant, found in rows]


_MODELS = [
    ("a truncated model", cut("model.onnx", 0.5), "model.onnx"),
    ("an empty model", raw("model.onnx", b""), "model.onnx"),
    ("text called onnx", raw("model.onnx", "not a model"), "model.onnx"),
    ("a pickle called onnx", raw("model.onnx", pickle.dumps([1, 2])), "model.onnx"),
    ("a web page called onnx", raw("model.onnx", "<!DOCTYPE html><html>404</html>"), "model.onnx"),
    ("an input of any rank", model(no_shape), "its number of axes is dynamic"),
    ("weights in a missing file", external("none.bin"), "is missing"),
    ("weights above the folder", external("../weights.bin"), "../weights.bin"),
    ("weights in a short file", steps(raw("w.bin", b"1234"), external("w.bin", 32768)), "w.bin"),
    ("weights of 2^50 rows", model(huge_weight), "first"),
    ("a graph that is a circle", model(cycle), "model.onnx"),
    (
        "a folder called onnx",
        steps(lambda f: (f / "model.onnx").unlink(), lambda f: (f / "model.onnx").mkdir()),
        "model.onnx",
    ),
    ("a pipe called onnx", pipe("model.onnx"), "model.onnx"),
]
MODELS = [
    *twice("validate", *_MODELS[:1], *_MODELS[6:8]),
    *twice("init", *_MODELS),
    Hostile("a name with a line break", model(line_break), FINE, "wrote", command="init"),
    Hostile("a name with a line break (validate)", model(line_break), BAD, "x"),
]
JOBS = [
    Hostile("a bomb of aliases", yaml_after(BOMB), BAD, "aliases expanded"),
    Hostile("an alias of itself", yaml_after("extra: &a [*a]\n"), BAD, "inf values"),
    Hostile("deep nesting", yaml_after(f"extra: {'[' * 5000}\n"), BAD, "job.yaml"),
    Hostile("a long list", yaml_after(f"extra: [{'[],' * 250_000}]\n"), BAD, "more than 20000 values"),
    Hostile("many keys", yaml_after("".join(f"k{n}: 1\n" for n in range(9_000))), BAD, "unknown key `k0`"),
    Hostile("a file of 2 MB", yaml_after("#" * 2_000_000), BAD, "characters"),
    Hostile("a tag that runs code", yaml_after("extra: !!python/object/apply:os.abort []\n"), BAD, "python/object"),
    Hostile("a key that occurs twice", yaml_after("source: other.onnx\n"), BAD, "key 'source' occurs twice"),
    Hostile("an unknown key", job(metrc="accuracy"), BAD, "unknown key `metrc`", "metrc"),
    Hostile("an unknown key of the data", job(data={"labels": "y"}), BAD, "did you mean 'label'"),
    Hostile("an unknown metric", job(metric="acuracy"), BAD, "did you mean 'accuracy'"),
    Hostile("text for a mapping", job(data="calibration.npz"), BAD, "`data`"),
    Hostile("nothing for a mapping", job(data=None), BAD, "`data`"),
    Hostile("a number for a path", job(source=5), BAD, "`source`"),
    Hostile("a number that is none", job(gates={"max_drop": float("nan")}), BAD, "max_drop"),
    Hostile("a batch of nothing", job(measurement={"batch_sizes": [0]}), BAD, "batch_sizes"),
    Hostile("no candidates", job(candidates=[]), BAD, "candidates"),
    Hostile("a number for a key", yaml_after("1: 2\n"), BAD, "1"),
    Hostile("two documents", yaml_after("---\nsource: other.onnx\n"), BAD, "job.yaml"),
    Hostile("tabs", yaml_after("extra:\n\t- 1\n"), BAD, "job.yaml"),
    Hostile("an empty job", raw("job.yaml", ""), BAD, "job.yaml"),
    Hostile("an archive as a job", raw("job.yaml", b"PK\3\4\xff\0"), BAD, "not UTF-8 text"),
    Hostile("a null character", job(data={"calibration": "a\0b.npz"}), BAD, "calibration"),
    Hostile("a name that is too long", job(data={"calibration": "a" * 5000 + ".npz"}), BAD, "calibration"),
    Hostile("a model's name that is too long", job(source="a" * 5000 + ".onnx"), BAD, "File name too long"),
    Hostile("a folder as data", job(data={"calibration": "."}), REFUSED, "no_leakage"),
    Hostile("data below a file", job(data={"calibration": "model.onnx/a.npz"}), BAD, "no such file"),
]
HOSTILE = [*ARCHIVES, *LABELS, *FOLDERS, *TABLES, *PICTURES, *MODELS, *JOBS]

"""Data files: what does not fit the model is refused with its name, what fits is the same from either format."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from validators.digests import digest_file
from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples import array_files as module
from validators.samples.datasets import Samples, TensorSpec, check_evaluation, load_samples
from validators.samples.labels import LabelSpec
from validators.samples.readers import read_arrays

Arrays = dict[str, NDArray[Any]]
SPECS = (TensorSpec("x", "float32", ("batch", 4)), TensorSpec("ids", "int64", ("batch", "sequence")))
ROWS = 6


def arrays() -> Arrays:
    """Samples that fit `SPECS`."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(ROWS, 4)).astype(np.float32),
        "ids": rng.integers(0, 9, (ROWS, 5)),
        "label": np.arange(ROWS) % 3,
    }


def load(path: Path) -> Samples:
    return load_samples(path, SPECS, label="label", role="evaluation")


def npz(**changes: Any) -> bytes:
    """The bytes of a data file with some arrays changed; None leaves one out."""
    stream = io.BytesIO()
    changed = {name: array for name, array in (arrays() | changes).items() if array is not None}
    np.savez(stream, **changed)
    return stream.getvalue()


def npy() -> bytes:
    """The bytes of a file with one array."""
    stream = io.BytesIO()
    np.save(stream, arrays()["x"])
    return stream.getvalue()


BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "wrong suffix": ("data.tsv", b"x\ty\n1\t2\n", "has the suffix '.tsv'"),
    "npy under no suffix": ("data", npz(), "has the suffix ''"),
    "npy": ("data.npy", npy(), "has the suffix '.npy': one array as numpy.save writes it"),
    "json": ("data.json", b'{"x": [1]}', "has the suffix '.json': a JSON file"),
    "empty file": ("data.npz", b"", "data.npz is an empty file, not an npz archive"),
    "text": ("data.npz", b"hello", "data.npz is a text file, not an npz archive"),
    "json under npz": ("data.npz", b"[1, 2]", "data.npz is a JSON file, not an npz archive"),
    "npy under npz": ("data.npz", npy(), "data.npz is one array as numpy.save writes it (.npy), not an npz archive"),
    "pickle under npz": ("data.npz", pickle.dumps([1]), "data.npz is a pickle, not an npz archive"),
    "noise under npz": ("data.npz", b"\x00\xff\x00\x01", "data.npz is a file of an unknown kind, not an npz archive"),
    "truncated npz": ("data.npz", npz()[:-40], "is a truncated npz archive"),
    "parquet that is npz": ("data.parquet", npz(), "data.parquet is a zip archive, not a Parquet file"),
    "parquet that is text": ("data.parquet", b"x,y\n1,2\n", "data.parquet is a text file, not a Parquet file"),
    "empty parquet": ("data.parquet", b"", "data.parquet is an empty file, not a Parquet file"),
    "truncated parquet": ("data.parquet", b"PAR1" + bytes(50), "is a truncated Parquet file"),
    "damaged parquet": ("data.parquet", b"PAR1" + bytes(50) + b"PAR1", "cannot be read as parquet"),
    "wrong names": (
        "data.npz",
        npz(x=None, pixels=arrays()["x"]),
        "missing ['x'], not inputs of the model: ['pixels']",
    ),
    "missing array": ("data.npz", npz(ids=None), "missing ['ids']"),
    "extra array": ("data.npz", npz(mask=np.ones((ROWS, 5))), "not inputs of the model: ['mask']"),
    "wrong dtype": ("data.npz", npz(x=arrays()["x"].astype(np.float64)), "x is float64"),
    "wrong integer dtype": ("data.npz", npz(ids=arrays()["ids"].astype(np.int32)), "ids is int32"),
    "wrong rank": ("data.npz", npz(x=arrays()["x"][:, :, None]), "x has shape (6, 4, 1)"),
    "no rank": ("data.npz", npz(x=np.float32(1)), "x has shape ()"),
    "wrong shape": ("data.npz", npz(x=arrays()["x"][:, :3]), "x has shape (6, 3)"),
    "length mismatch": ("data.npz", npz(ids=arrays()["ids"][:4]), "lengths {'x': 6, 'ids': 4, 'label': 6}"),
    "labels of another length": ("data.npz", npz(label=np.arange(5)), "lengths {'x': 6, 'ids': 6, 'label': 5}"),
    "no rows": ("data.npz", npz(**{name: array[:0] for name, array in arrays().items()}), "has no samples"),
    "pickled objects": ("data.npz", npz(x=np.array([None] * ROWS, dtype=object)), "array 'x' holds Python objects"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path: Path, fault: str) -> None:
    """Each planted fault is named; found, expected and fix are there, and the role and the file."""
    name, content, words = BAD_FILES[fault]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(path)
    error = caught.value
    assert words in error.found
    assert "evaluation data" in error.found and name in error.found
    assert error.expected and error.fix and error.exit_code == 2


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The path is named."""
    for path, words in ((tmp_path / "none.npz", "no such file"), (tmp_path, "a folder")):
        with pytest.raises(DataError, match=words) as caught:
            load(path)
        assert str(path) in caught.value.found


def test_an_extra_array_may_be_ignored(tmp_path: Path) -> None:
    """The refusal names the key; with it, the rest of the file is as without the array."""
    path = tmp_path / "data.npz"
    path.write_bytes(npz(row_id=np.arange(ROWS)))
    with pytest.raises(DataError) as caught:
        load(path)
    assert "add `ignore: [row_id]` to `data`" in caught.value.fix
    samples = load_samples(path, SPECS, label="label", role="evaluation", ignore=("row_id", "not there"))
    assert set(samples.inputs) == {"x", "ids"} and samples.labels is not None


@pytest.mark.parametrize(
    ("spec", "array", "words"),
    [
        (("batch", 3, 8, 9), np.zeros((2, 8, 9, 3), np.float32), ".transpose(0, 3, 1, 2); a reshape would scramble"),
        (("batch", 3, "h", "w"), np.zeros((2, 8, 9, 3), np.float32), ".transpose(0, 3, 1, 2)"),
        (("batch", 8, 9, 3), np.zeros((2, 3, 8, 9), np.float32), ".transpose(0, 2, 3, 1)"),
        (("batch", 8), np.zeros((2, 1, 8), np.float32), ".squeeze(1)"),
        (("batch", 1, 8), np.zeros((2, 8), np.float32), "numpy.expand_dims(array, 1)"),
        (("batch", 8), np.zeros((2, 9), np.float32), "or export the model with dynamic axes"),
        (("batch", 8), np.zeros((2, 8), np.uint8), "x / 255"),
        (("batch", 8), np.zeros((2, 8)), "convert the array with .astype('float32')"),
        (("batch", 8), np.full((2, 8), "de"), "encode the text"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_with_advice(
    tmp_path: Path, spec: tuple[int | str, ...], array: NDArray[Any], words: str
) -> None:
    np.savez(tmp_path / "data.npz", x=array)
    with pytest.raises(DataError) as caught:
        load_samples(tmp_path / "data.npz", (TensorSpec("x", "float32", spec),), label="label", role="evaluation")
    assert words in caught.value.fix
    assert "reshape the array" not in caught.value.fix


def test_the_transposed_array_of_the_advice_fits(tmp_path: Path) -> None:
    array = np.zeros((2, 8, 9, 3), np.float32).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "data.npz", x=array)
    spec = (TensorSpec("x", "float32", ("batch", 3, 8, 9)),)
    assert len(load_samples(tmp_path / "data.npz", spec, label="label", role="evaluation")) == 2


def test_a_good_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Arrays, labels, digest and length; and the batches are its rows in order."""
    path = tmp_path / "data.npz"
    path.write_bytes(npz())
    samples = load(path)
    assert len(samples) == ROWS
    assert samples.file == DataFile(path, digest_file(path), ROWS)
    assert set(samples.inputs) == {"x", "ids"}
    for name, array in arrays().items():
        read = samples.labels if name == "label" else samples.inputs[name]
        assert read is not None
        np.testing.assert_array_equal(read, array, strict=True)
    batches = list(samples.batches(4))
    assert [len(batch["x"]) for batch in batches] == [4, 2]
    np.testing.assert_array_equal(np.concatenate([batch["ids"] for batch in batches]), arrays()["ids"])


def test_labels_are_optional_in_a_file_and_may_have_another_name(tmp_path: Path) -> None:
    """A file without labels loads with none; a label of the name that the job gives is found."""
    path = tmp_path / "data.npz"
    path.write_bytes(npz(label=None))
    assert load(path).labels is None
    path.write_bytes(npz(label=None, target=np.arange(ROWS)))
    samples = load_samples(path, SPECS, label="target", role="calibration")
    np.testing.assert_array_equal(samples.labels, np.arange(ROWS))


def samples(labels: NDArray[Any] | None, **inputs: NDArray[Any]) -> Samples:
    """Samples in memory."""
    given = {"x": arrays()["x"]} | inputs
    return Samples(DataFile(Path("evaluation.npz"), "0" * 64, ROWS), given, labels)


def poisoned(value: float) -> NDArray[np.float32]:
    x = arrays()["x"]
    x[4, 2] = value
    return x


CLASSES = np.arange(ROWS) % 3
OF_CLASSES, OF_NUMBERS = LabelSpec("classes", classes=3), LabelSpec("numbers")
OF_TEXT, OF_IDS = LabelSpec("text"), LabelSpec("text", classes=4)
ANY = LabelSpec("any", required=False)
PAIRS = LabelSpec("numbers", distinct=2, in_pairs=True)
WORDS = np.array(list("abcabc"))
BAD_EVALUATION: dict[str, tuple[Callable[[], Samples], LabelSpec, str]] = {
    "NaN": (lambda: samples(CLASSES, x=poisoned(np.nan)), OF_CLASSES, "NaN or Inf in input 'x' of 1 samples"),
    "Inf": (lambda: samples(None, x=poisoned(np.inf)), ANY, "NaN or Inf in input 'x' of 1 samples"),
    "no labels": (lambda: samples(None), OF_CLASSES, "has no array 'label'"),
    "no targets": (lambda: samples(None), OF_NUMBERS, "has no array 'label'"),
    "float labels": (lambda: samples(CLASSES.astype(np.float32)), OF_CLASSES, "'label' is float32 of shape (6,)"),
    "one-hot labels": (lambda: samples(np.eye(3, dtype=int)[CLASSES]), OF_CLASSES, "int64 of shape (6, 3)"),
    "label too large": (lambda: samples(CLASSES + 1), OF_CLASSES, "2 labels outside the outputs, such as 3"),
    "negative label": (lambda: samples(CLASSES - 1), OF_CLASSES, "2 labels outside the outputs, such as -1"),
    "text labels": (lambda: samples(WORDS), OF_CLASSES, "'label' is <U1"),
    "text targets": (lambda: samples(WORDS), OF_NUMBERS, "'label' is <U1"),
    "NaN targets": (lambda: samples(np.full(ROWS, np.nan)), OF_NUMBERS, "not all finite numbers"),
    "two targets": (lambda: samples(np.ones((ROWS, 2))), OF_NUMBERS, "has shape (6, 2)"),
    "one target": (lambda: samples(np.ones(ROWS)), LabelSpec("numbers", size=4), "has shape (6,)"),
    "one class": (lambda: samples(CLASSES * 0), LabelSpec("classes", classes=3, distinct=2), "is 0 for every sample"),
    "no pairs": (lambda: samples(np.arange(ROWS)), PAIRS, "not equal in pairs"),
    "numbers for text": (lambda: samples(np.ones(ROWS)), OF_TEXT, "'label' is float64 of shape (6,)"),
    "texts in a table": (lambda: samples(WORDS[:, None]), OF_TEXT, "'label' is <U1 of shape (6, 1)"),
    "a token too many": (lambda: samples(np.full((ROWS, 2), 4)), OF_IDS, "12 token ids outside the vocabulary"),
    "a negative token": (lambda: samples(np.full((ROWS, 2), -1)), OF_TEXT, "12 token ids outside the vocabulary"),
}


SLICES: dict[str, NDArray[Any]] = {
    "numbers": np.arange(ROWS) % 2,
    "flags": np.arange(ROWS) > 2,
    "text": np.array(["here", "there"])[np.arange(ROWS) % 2],
}


@pytest.mark.parametrize("kind", SLICES)
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_slices_are_groups_and_no_inputs(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    columns = {"x": arrays()["x"], "ids": arrays()["ids"], "place": SLICES[kind]}
    if suffix == "npz":
        path.write_bytes(npz(place=SLICES[kind]))
    else:
        table = {name: list(array) if array.ndim > 1 else array for name, array in columns.items()}
        pyarrow.parquet.write_table(pa.table(table), path)
    found = load_samples(path, SPECS, label="label", role="evaluation", slices=("place", "not there"))
    assert list(found.slices) == ["place"] and found.slices["place"].tolist() == SLICES[kind].tolist()
    assert list(found.inputs) == ["x", "ids"]


def test_groups_are_read_beside_the_inputs(tmp_path: Path) -> None:
    """Keys of clusters are no input and no slice; their length counts, and a file without them has none."""
    patients = np.arange(ROWS) // 2
    (tmp_path / "data.npz").write_bytes(npz(patient=patients))
    found = load_samples(tmp_path / "data.npz", SPECS, label="label", role="evaluation", groups="patient")
    assert found.clusters is not None and found.clusters.tolist() == patients.tolist() and found.slices == {}
    assert load_samples(tmp_path / "data.npz", SPECS, label="label", role="x", slices=("patient",)).clusters is None
    (tmp_path / "data.npz").write_bytes(npz(patient=patients[1:]))
    with pytest.raises(DataError, match="has arrays of lengths"):
        load_samples(tmp_path / "data.npz", SPECS, label="label", role="evaluation", groups="patient")


@pytest.mark.parametrize("groups", [np.linspace(0, 1, ROWS), np.zeros((ROWS, 2), int)])
def test_slices_that_sort_nothing_are_refused(tmp_path: Path, groups: NDArray[Any]) -> None:
    (tmp_path / "data.npz").write_bytes(npz(place=groups))
    with pytest.raises(DataError, match="'place' is"):
        load_samples(tmp_path / "data.npz", SPECS, label="label", role="evaluation", slices=("place",))


@pytest.mark.parametrize("fault", BAD_EVALUATION)
def test_evaluation_data_that_cannot_be_scored_is_refused(fault: str) -> None:
    """Each planted fault is named before anything is measured."""
    make, spec, words = BAD_EVALUATION[fault]
    with pytest.raises(DataError) as caught:
        check_evaluation(make(), spec, metric="metric", label="label")
    assert words in caught.value.found
    assert caught.value.expected and caught.value.fix


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        (CLASSES, OF_CLASSES),
        (CLASSES.astype(np.uint8), OF_CLASSES),
        (None, ANY),
        (None, LabelSpec("numbers", size=3, required=False)),
        (np.array([9, -9, 0, 0, 0, 0]), ANY),
        (np.linspace(-2, 2, ROWS), OF_NUMBERS),
        (np.arange(ROWS)[:, None], OF_NUMBERS),
        (np.ones((ROWS, 3), np.float32), LabelSpec("numbers", size=3)),
        (np.array([1, 1, 2, 2, 1, 1]), PAIRS),
        (WORDS, OF_TEXT),
        (WORDS, OF_IDS),
        (np.array([[3, 0, -100]] * ROWS), OF_IDS),
        (np.array([[99, -100]] * ROWS, np.int32), OF_TEXT),
    ],
)
def test_evaluation_data_that_can_be_scored_is_let_through(labels: NDArray[Any] | None, spec: LabelSpec) -> None:
    """The twins of the faults pass."""
    ids = np.zeros((ROWS, 2), np.int64)
    check_evaluation(samples(labels, ids=ids), spec, metric="metric", label="label")


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_labels_of_text_are_text(tmp_path: Path, suffix: str) -> None:
    """From either kind of file; Parquet gives Python objects, which no check of labels takes."""
    path, texts = tmp_path / f"data.{suffix}", np.array(["a b", "", "c"] * 2)
    if suffix == "npz":
        path.write_bytes(npz(label=texts))
    else:
        columns = {name: list(array) for name, array in arrays().items()} | {"label": texts.tolist()}
        pyarrow.parquet.write_table(pa.table(columns), path)
    labels = load(path).labels
    assert labels is not None and labels.dtype.kind == "U" and labels.tolist() == texts.tolist()
    check_evaluation(samples(labels), OF_TEXT, metric="wer", label="label")


def test_a_spec_reads_as_a_declaration() -> None:
    """What errors print: dynamic axes by name, those without one as a question mark."""
    assert str(TensorSpec("x", "float32", ("batch", None, 4))) == "x: float32[batch, ?, 4]"


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    """A file cut anywhere does not load as fewer samples, and is not left open."""
    whole = npz()
    path = tmp_path / "data.npz"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="is a truncated npz archive"):
        load(path)


def damaged_compressed() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32))
    whole = bytearray(stream.getvalue())
    whole[200:260] = b"\xff" * 60
    return bytes(whole)


def text_member() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x", "hello")
    return stream.getvalue()


def flipped(position: int) -> bytes:
    whole = bytearray(npz())
    whole[position] ^= 0xFF
    return bytes(whole)


@pytest.mark.parametrize("make", [damaged_compressed, text_member, lambda: flipped(29)])
def test_a_damaged_file_is_refused(tmp_path: Path, make: Callable[[], bytes]) -> None:
    """Damage that zlib, zipfile or numpy report in their own ways, and files of another make under the suffix."""
    path = tmp_path / "data.npz"
    path.write_bytes(make())
    with pytest.raises(DataError, match="cannot be read as npz"):
        load(path)


def test_a_file_with_any_byte_changed_loads_or_is_refused(tmp_path: Path) -> None:
    """Nothing but a DataError comes of damage, wherever it is."""
    path = tmp_path / "data.npz"
    size = len(npz())
    for position in range(0, size, 3):
        path.write_bytes(flipped(position))
        try:
            load(path)
        except DataError:
            continue


def test_a_label_that_is_one_number_is_refused(tmp_path: Path) -> None:
    """A label of no axis belongs to no sample."""
    path = tmp_path / "data.npz"
    path.write_bytes(npz(label=np.array(3)))
    with pytest.raises(DataError, match="'label' is a single value"):
        load(path)


@pytest.mark.parametrize("kind", ["list", "fixed-size list"])
def test_parquet_gives_what_npz_gives(tmp_path: Path, kind: str) -> None:
    """The same samples from either format are equal, dtypes included, in several row groups too."""
    given = arrays()

    def column(array: NDArray[Any]) -> pa.Array:
        if array.ndim == 1:
            return pa.array(array)
        if kind == "list":
            return pa.array(array.tolist(), pa.list_(pa.from_numpy_dtype(array.dtype)))
        return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])

    table = pa.table({name: column(array) for name, array in given.items()})
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet", row_group_size=2)
    (tmp_path / "data.npz").write_bytes(npz())
    parquet, other = load(tmp_path / "data.parquet"), load(tmp_path / "data.npz")
    assert set(parquet.inputs) == set(other.inputs) and len(parquet) == len(other)
    for name, array in other.inputs.items():
        np.testing.assert_array_equal(parquet.inputs[name], array, strict=True)
    assert parquet.labels is not None and other.labels is not None
    np.testing.assert_array_equal(parquet.labels, other.labels, strict=True)


def test_parquet_keeps_every_dtype_and_rank(tmp_path: Path) -> None:
    """Scalars of several widths, and lists of lists."""
    columns = {
        "f": pa.array([1.5, 2.5], pa.float32()),
        "i": pa.array([1, 2], pa.int32()),
        "u": pa.array([1, 2], pa.uint8()),
        "b": pa.array([True, False]),
        "n": pa.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]], pa.list_(pa.list_(pa.float32()))),
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "data.parquet")
    specs = tuple(
        TensorSpec(name, dtype, ("batch", *shape))
        for name, dtype, shape in (
            ("f", "float32", ()),
            ("i", "int32", ()),
            ("u", "uint8", ()),
            ("b", "bool", ()),
            ("n", "float32", (2, 2)),
        )
    )
    samples = load_samples(tmp_path / "data.parquet", specs, label="label", role="evaluation")
    assert samples.inputs["n"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert samples.inputs["b"].tolist() == [True, False] and samples.inputs["f"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("values", "words"),
    [([[1.0, None, 2.0, 3.0]], "1 missing values"), ([None], "1 missing values")],
)
def test_nulls_are_refused(tmp_path: Path, values: list[Any], words: str) -> None:
    """They are no array."""
    pyarrow.parquet.write_table(pa.table({"x": pa.array(values, pa.list_(pa.float32()))}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=words):
        load(tmp_path / "data.parquet")


def test_a_file_that_unpacks_to_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    """By what it declares: a member of an archive, and a column of one repeated value; before anything is unpacked."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 46,)})
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(1000))
    whole = (tmp_path / "bomb.npz").read_bytes()
    # The array's own header lies, and then the archive's directory too.
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_arrays(tmp_path / "bomb.npz", "evaluation")
    size = len(header.getvalue()) + 1000
    place = whole.rindex(b"PK\x01\x02") + 24
    assert int.from_bytes(whole[place : place + 4], "little") == size
    lying = whole[:place] + (0xFFFFFFF0).to_bytes(4, "little") + whole[place + 4 :]
    (tmp_path / "lying.npz").write_bytes(lying)
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_arrays(tmp_path / "lying.npz", "evaluation")


def test_what_is_declared_is_held_against_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with 10 kB, a megabyte of zeros that packs to less is too much, in either format."""

    np.savez_compressed(tmp_path / "data.npz", x=np.zeros(1_000_000, np.uint8))
    pyarrow.parquet.write_table(pa.table({"x": np.zeros(1_000_000, np.uint8)}), tmp_path / "data.parquet")
    for name in ("data.npz", "data.parquet"):
        assert (tmp_path / name).stat().st_size < 10_000
        assert len(read_arrays(tmp_path / name, "evaluation")["x"]) == 1_000_000
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    for name in ("data.npz", "data.parquet"):
        with pytest.raises(DataError, match="when unpacked, and this machine has"):
            read_arrays(tmp_path / name, "evaluation")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_large_arrays_are_mapped_and_survive_their_file(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is written anew while a run lasts changes nothing of what was read."""
    monkeypatch.setattr(module, "MAPPED_BYTES", 400)
    rng = np.random.default_rng(3)
    arrays = {
        "floats": rng.normal(size=(50, 3, 4)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(50, 6))),
        "text": np.array(["yes", "no"] * 25),
        "small": np.arange(3),
    }
    path = tmp_path / "data.npz"
    write(path, **arrays)
    found = read_arrays(path, "evaluation")
    path.write_bytes(b"written anew")
    assert isinstance(found["floats"].base, np.memmap) and not isinstance(found["small"].base, np.memmap)
    for name, array in arrays.items():
        assert type(found[name]) is np.ndarray and found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_large_array_that_is_cut_short_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAPPED_BYTES", 400)
    whole = io.BytesIO()
    np.save(whole, np.zeros((50, 4)))
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", whole.getvalue()[:-8])
    with pytest.raises(DataError, match="needs 1600 bytes and the file has 1592"):
        read_arrays(tmp_path / "data.npz", "evaluation")

"""Data files other than `.npz` and plain `.parquet`: CSV, lists of differing length, folders of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from advice import settings_of

from validators.errors import DataError, JobError
from validators.job.read_job import parse_job
from validators.samples.copy_rows import copy_rows
from validators.samples.datasets import Samples, TensorSpec, load_samples
from validators.samples.readers import digest_data, read_arrays

IDS = TensorSpec("input_ids", "int64", ("batch", "length"))
MASK = TensorSpec("attention_mask", "int32", ("batch", "length"))
X = TensorSpec("x", "float32", ("batch", 3))
AGE = TensorSpec("age", "int8", ("batch",))
DATA = {"calibration": "data.csv", "evaluation": "data.csv"}
CODE = TensorSpec("code", "str", ("batch",))


def test_columns_of_a_csv_file_become_typed_arrays(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x.0,x.1,x.2,age,code,label\n1,2.5,3,40,de,1\n4,5,6e-1,41,fr,0\n")
    samples = load_samples(path, (X, AGE, CODE), label="label", role="evaluation")
    np.testing.assert_array_equal(samples.inputs["x"], np.float32([[1, 2.5, 3], [4, 5, 0.6]]))
    assert (samples.inputs["x"].dtype, samples.inputs["age"].dtype) == (np.float32, np.int8)
    assert samples.inputs["code"].tolist() == ["de", "fr"] and samples.labels is not None
    assert samples.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age\n300\n", "age is int64"),
        ("age\n1.5\n", "age is float64"),
        ("age\nold\n", "age is"),
        ("age\n1\n\n,\n", "cannot be read as csv"),
        ("age,age\n1,2\n", "two columns are named 'age'"),
        ("age\n", "no rows"),
        ("years\n1\n", "missing ['age']"),
        ("", "an empty file"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load_samples(tmp_path / "data.csv", (AGE,), label="label", role="evaluation")
    assert words in caught.value.found


@pytest.mark.parametrize("content", [b"age\n\xff\xfe1\n", b"PAR1 and more", b"\x00\x01\x02"])
def test_a_csv_file_of_other_content_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(DataError):
        load_samples(tmp_path / "data.csv", (CODE,), label="label", role="evaluation")


def test_lists_of_differing_length_are_padded_and_masked(tmp_path: Path) -> None:
    table = pd.DataFrame({"input_ids": [[5, 6, 7], [8], [9, 4]], "label": [[1, 2, 3], [1], [0, 2]]})
    table.to_parquet(tmp_path / "data.parquet")
    samples = load_samples(tmp_path / "data.parquet", (IDS, MASK), label="label", role="evaluation")
    assert samples.inputs["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0], [9, 4, 0]]
    assert samples.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert samples.inputs["attention_mask"].dtype == np.int32
    assert samples.labels is not None and samples.labels.tolist() == [[1, 2, 3], [1, -100, -100], [0, 2, -100]]
    assert not any(isinstance(array, np.ma.MaskedArray) for array in (*samples.inputs.values(), samples.labels))


def test_lists_of_lists_are_padded_as_labels_of_boxes(tmp_path: Path) -> None:
    boxes = [[[0.0, 0.0, 1.0, 1.0, 2.0]], [[1.0, 1.0, 2.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0, 1.0]], []]
    pd.DataFrame({"x": [[1.0, 2.0, 3.0]] * 3, "label": boxes}).to_parquet(tmp_path / "data.parquet")
    found = read_arrays(tmp_path / "data.parquet", "evaluation")["label"]
    assert isinstance(found, np.ma.MaskedArray) and found.shape == (3, 2, 5)
    assert np.ma.getmaskarray(found).all(axis=2).tolist() == [[False, True], [False, False], [True, True]]
    assert found[1, 1].tolist() == [0.0, 1.0, 2.0, 3.0, 1.0]


def test_lists_of_text_of_differing_length_are_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": [["a", "b"], ["c"]]}).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(DataError, match="lists of text"):
        read_arrays(tmp_path / "data.parquet", "evaluation")


def test_a_given_mask_is_kept(tmp_path: Path) -> None:
    table = pd.DataFrame({"input_ids": [[5, 6], [8]], "attention_mask": [[1, 0], [1]]})
    table.astype({"attention_mask": object}).to_parquet(tmp_path / "data.parquet")
    spec = TensorSpec("attention_mask", "int64", ("batch", "length"))
    samples = load_samples(tmp_path / "data.parquet", (IDS, spec), label="label", role="traffic")
    assert samples.inputs["attention_mask"].tolist() == [[1, 0], [1, 0]]


def shards(folder: Path) -> Path:
    """Two files of three and two samples, and files that are none of them."""
    folder.mkdir()
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.savez(folder / "part-0.npz", x=x[:3], label=np.array([0, 1, 2]))
    pd.DataFrame({"x": list(x[3:]), "label": [3, 4]}).to_parquet(folder / "part-1.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-2.npz").write_text("hidden while it is written")
    (folder / "README.md").write_text("about")
    return folder


def test_the_files_of_a_folder_are_one_data_set(tmp_path: Path) -> None:
    samples = load_samples(shards(tmp_path / "data"), (X,), label="label", role="evaluation")
    assert samples.inputs["x"][:, 0].tolist() == [0, 3, 6, 9, 12]
    assert samples.labels is not None and samples.labels.tolist() == [0, 1, 2, 3, 4]
    assert samples.file.digest == digest_data(tmp_path / "data")
    (tmp_path / "data/part-1.parquet").rename(tmp_path / "data/part-3.parquet")
    assert samples.file.digest != digest_data(tmp_path / "data")


def test_large_files_of_a_folder_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from validators.samples import array_files

    whole = read_arrays(shards(tmp_path / "data"), "evaluation")["x"]
    monkeypatch.setattr(array_files, "MAPPED_BYTES", 16)
    mapped = read_arrays(tmp_path / "data", "evaluation")["x"]
    assert isinstance(mapped.base, np.memmap) and not isinstance(whole.base, np.memmap)
    np.testing.assert_array_equal(mapped, whole)


def test_lists_in_several_files_get_one_length(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number, rows in enumerate(([[1], [2, 3]], [[4, 5, 6], [7]])):
        pd.DataFrame({"input_ids": rows}).to_parquet(tmp_path / f"data/{number}.parquet")
    samples = load_samples(tmp_path / "data", (IDS, MASK), label="label", role="traffic")
    assert samples.inputs["input_ids"].tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6], [7, 0, 0]]
    assert samples.inputs["attention_mask"].sum(axis=1).tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"x": np.zeros((2, 4), np.float32), "label": np.zeros(2)}, "array 'label' is int64"),
        ({"x": np.zeros((2, 4), np.float32), "label": np.zeros(2, np.int64)}, "float32 of shape (2, 4)"),
        ({"x": np.zeros((2, 3), np.float32)}, "array 'label' is int64 of shape (3,), and missing"),
    ],
)
def test_files_of_a_folder_that_differ_are_refused(other: dict[str, Any], words: str, tmp_path: Path) -> None:
    np.savez(shards(tmp_path / "data") / "part-1.npz", **other)
    with pytest.raises(DataError) as caught:
        read_arrays(tmp_path / "data", "evaluation")
    assert words in caught.value.found and "alike" in caught.value.fix


def test_a_folder_without_data_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder without data files"):
        read_arrays(tmp_path, "evaluation")


@pytest.mark.parametrize("kind", ["csv", "folder"])
def test_rows_are_copied_in_the_same_format(kind: str, tmp_path: Path) -> None:
    path = shards(tmp_path / "data")
    if kind == "csv":
        path = tmp_path / "data.csv"
        path.write_text("x,label\n" + "".join(f"{row}.5,{row}\n" for row in range(5)))
    (tmp_path / "copy").mkdir()
    copied = copy_rows(path, np.array([True, False, False, True, True]), tmp_path / "copy")
    assert copied.name == path.name
    assert read_arrays(copied, "evaluation")["label"].tolist() == [0, 3, 4]


def test_data_sets_as_hugging_face_saves_them(tmp_path: Path) -> None:
    """Streams in several files, lists padded to one length; several splits are not mixed."""
    import pyarrow as pa

    folder = tmp_path / "reviews" / "train"
    folder.mkdir(parents=True)
    for number, rows in enumerate(([[1, 2, 3]], [[4], [5, 6]])):
        table = pa.table({"input_ids": rows, "label": [number] * len(rows)})
        with pa.ipc.new_stream(folder / f"data-0000{number}-of-00002.arrow", table.schema) as stream:
            stream.write_table(table)
    (folder / "state.json").write_text("{}")
    samples = load_samples(folder, (IDS, MASK), label="label", role="evaluation")
    assert samples.inputs["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert samples.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    copied = copy_rows(folder, np.array([False, True, True]), tmp_path)
    assert read_arrays(copied, "the")["label"].tolist() == [1, 1]
    with pytest.raises(DataError) as caught:
        read_arrays(tmp_path / "reviews", "the")
    assert "splits ['train']" in caught.value.found and str(folder) in caught.value.fix


def test_pictures_in_a_table_are_refused_by_their_column_name(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"image": [{"bytes": b"\x89PNG", "path": "a.png"}]})
    with pa.ipc.new_stream(tmp_path / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(DataError, match="decoded as the model gets them"):
        read_arrays(tmp_path / "data.arrow", "the")


def test_a_folder_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones are mapped; writing to them does not change the file; objects are never unpickled."""
    monkeypatch.setattr("validators.samples.array_files.MAPPED_BYTES", 100)
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    np.save(folder / "label.npy", np.arange(10, dtype=np.int8))
    digest = digest_data(folder)
    samples = load_samples(folder, (X,), label="label", role="evaluation")
    assert isinstance(samples.inputs["x"].base, np.memmap) and samples.labels is not None
    samples.inputs["x"][0] = 7
    assert digest_data(folder) == digest == samples.file.digest
    (tmp_path / "copies").mkdir()
    copied = read_arrays(copy_rows(folder, np.arange(10) > 7, tmp_path / "copies"), "the")
    assert copied["x"].tolist() == [[24, 25, 26], [27, 28, 29]] and copied["label"].tolist() == [8, 9]
    np.save(folder / "label.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"label\.npy cannot be read"):
        read_arrays(folder, "the")
    (folder / "label.npy").write_bytes((folder / "x.npy").read_bytes()[:140])
    with pytest.raises(DataError, match=r"label\.npy cannot be read"):
        read_arrays(folder, "the")


def frame(*names: str) -> pd.DataFrame:
    """A table of whole numbers and fractions by turns, and labels."""
    columns = {name: np.arange(4) * (1 if place % 2 else 0.5) + place for place, name in enumerate(names)}
    return pd.DataFrame(columns | {"label": np.arange(4) % 2})


def as_advised(path: Path, specs: tuple[TensorSpec, ...]) -> tuple[Samples, dict[str, Any]]:
    """The samples after the advice of the refusal is applied, read as a job's settings, and these."""
    with pytest.raises(DataError) as caught:
        load_samples(path, specs, label="label", role="evaluation")
    told = settings_of(caught.value.fix)["data"]
    job = parse_job({"source": "m.onnx", "target": "ort-cpu", "data": DATA | told}, base=path.parent)
    return load_samples(
        path, specs, label="label", role="evaluation", ignore=job.data.ignore, columns=job.data.columns
    ), told


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "no", "1", "a: b", "[x", "# c", "it's", 'say "a"'])
def test_advice_ignores_a_column_of_any_name(name: str, tmp_path: Path) -> None:
    """Such as the index of pandas, which has no name, or "Unnamed: 0"."""
    table = frame("x.0", "x.1", "x.2")
    table.insert(1, name, np.arange(4))
    table.to_csv(tmp_path / "data.csv", index=False)
    samples, told = as_advised(tmp_path / "data.csv", (X,))
    assert told == {"ignore": [name]} and set(samples.inputs) == {"x"}


@pytest.mark.parametrize(("suffix", "index"), [(".csv", [""]), (".parquet", ["__index_level_0__"])])
def test_columns_make_the_input_that_the_job_names(suffix: str, index: list[str], tmp_path: Path) -> None:
    """In the order of the table, and in the type of the input; the index of pandas is left out by name."""
    table = frame("weight", "age", "dose")
    table.index = pd.Index([7, 5, 4, 9])
    path = tmp_path / f"data{suffix}"
    (table.to_csv if suffix == ".csv" else table.to_parquet)(path)
    samples, told = as_advised(path, (X,))
    assert told == {"columns": "x", "ignore": index}
    np.testing.assert_array_equal(samples.inputs["x"], table[["weight", "age", "dose"]].to_numpy(np.float32))
    assert samples.inputs["x"].dtype == np.float32 and samples.labels is not None
    # Other columns in the same file are other samples.
    other = load_samples(path, (X,), label="age", role="evaluation", ignore=tuple(index), columns="x")
    assert other.file.digest != samples.file.digest


def test_columns_of_another_number_are_named(tmp_path: Path) -> None:
    frame("weight", "age", "dose", "ward").to_csv(tmp_path / "data.csv", index=False)
    for columns in (None, "x"):
        with pytest.raises(DataError) as caught:
            load_samples(tmp_path / "data.csv", (X,), label="label", role="evaluation", columns=columns)
        assert "'ward'" in caught.value.found and "name there the other 1" in caught.value.fix
    with pytest.raises(JobError, match=r"`data\.columns: y`"):
        load_samples(tmp_path / "data.csv", (X,), label="label", role="evaluation", columns="y")


def test_name_of_an_input_of_columns_is_told(tmp_path: Path) -> None:
    frame("weight", "age", "dose").to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError) as caught:
        load_samples(tmp_path / "data.csv", (X,), label="label", role="evaluation")
    assert "'x.0', 'x.1', ... are the input 'x'" in caught.value.expected and "in this order" in caught.value.fix


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_column_is_an_input_of_one_number(suffix: str, tmp_path: Path) -> None:
    """As skl2onnx makes one of each column."""
    specs = (TensorSpec("weight", "float32", (None, 1)), TensorSpec("ward", "str", (None, 1)))
    table = frame("weight").assign(ward=list("abca")).astype({"weight": "float32"})
    path = tmp_path / f"data{suffix}"
    (table.to_csv if suffix == ".csv" else table.to_parquet)(path, index=False)
    samples = load_samples(path, specs, label="label", role="evaluation")
    assert {name: array.shape for name, array in samples.inputs.items()} == {"weight": (4, 1), "ward": (4, 1)}


@pytest.mark.parametrize("columns", [None, "x"])
def test_number_beyond_the_type_is_named(columns: str | None, tmp_path: Path) -> None:
    """It would become infinite, and the file then be blamed for values that are not in it."""
    names = ("x.0", "x.1", "x.2") if columns is None else ("weight", "age", "dose")
    table = frame(*names).astype(float)
    table.iloc[2, 1] = -1e300
    table.to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError) as caught:
        load_samples(tmp_path / "data.csv", (X,), label="label", role="evaluation", columns=columns)
    assert f"-1e+300 in column {names[1]!r} of row 3 is beyond float32" in caught.value.found

"""Folders of pictures and sounds, read by a function of the job: what it makes, once, and what is refused with its reason."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tasks.evidence.fetch_data import load_place, local_data
from tasks.run.context import Run, start_run
from validators.errors import DataError, JobError, StorageFull
from validators.job.read_job import parse_job
from validators.samples.datasets import TensorSpec

SPECS = (TensorSpec("pixels", "float32", ("batch", 3, 4, 6)),)
CODE = """
import wave
from pathlib import Path

import numpy as np
from PIL import Image

calls = Path(__file__).with_name("calls.txt")


def picture(path):
    with calls.open("a") as file:
        file.write(path.name + "\\n")
    with Image.open(path) as image:
        return {"pixels": np.float32(image).transpose(2, 0, 1) / 255}


def sound(path):
    with wave.open(str(path)) as file:
        found = np.frombuffer(file.readframes(8), np.int16)
    return {"signal": np.float32(np.pad(found, (0, 8 - len(found)))), "label": path.parent.name, "length": len(found)}


def raw(path):
    return np.zeros(3)


def objects(path):
    return {"pixels": np.array([None])}


def nothing(path):
    return {}


def climbing(path):
    return {"../x": np.zeros(3)}


def huge(path):
    return {"pixels": np.lib.stride_tricks.as_strided(np.zeros(1), (2**30, 2**10), (0, 0))}


def growing(path):
    return {"pixels": np.zeros(len(calls.read_text()))} if calls.write_text(calls.read_text() + "x") else None


def drifting(path):
    return {"pixels": np.zeros(3), "text": "a"} if path.name < "1" else {"pixels": np.zeros(3)}
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of 5 pictures of 6 x 4 pixels, each of one colour, with labels in a table in another order."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for number in range(5):
        Image.new("RGB", (6, 4), (number, 10, 51 * number)).save(
            folder / ("more" if number > 2 else ".") / f"{number}.png"
        )
    (folder / "metadata.csv").write_text(
        "file_name,label,city\nmore/4.png,4,Bonn\n0.png,0,Ulm\n1.png,1,Ulm\n2.png,2,Bonn\nmore/3.png,3,Ulm\n"
    )
    return folder


def run_of(tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch, **data: Any) -> Run:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "calls.txt").touch()
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"mine:*@{tmp_path}")
    told = {"calibration": "pictures", "evaluation": "pictures", "read": f"mine:{read}"} | data
    return start_run(parse_job({"source": "model.onnx", "target": "ort-cpu", "data": told}, base=tmp_path))


def test_pictures_become_arrays_in_the_order_of_the_table(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, "picture", monkeypatch, slices=["city"])
    samples = load_place(run, pictures, SPECS, "evaluation")
    assert samples.labels is not None and samples.labels.tolist() == [4, 0, 1, 2, 3]
    assert samples.slices["city"].tolist() == ["Bonn", "Ulm", "Ulm", "Bonn", "Ulm"]
    for row, value in enumerate((4, 0, 1, 2, 3)):
        red, green, blue = samples.inputs["pixels"][row]
        assert {red.min(), red.max()} == {np.float32(value) / 255} and {green.min(), green.max()} == {
            np.float32(10) / 255
        }
        assert {blue.min(), blue.max()} == {np.float32(51 * value) / 255}
    assert (tmp_path / "calls.txt").read_text().split() == ["4.png", "0.png", "1.png", "2.png", "3.png"]


def test_files_are_read_again_only_when_they_or_function_change(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, "picture", monkeypatch)
    first = local_data(run, pictures, "evaluation")
    assert local_data(run, pictures, "calibration") == first
    assert len((tmp_path / "calls.txt").read_text().split()) == 5
    Image.new("RGB", (6, 4), (200, 0, 0)).save(pictures / "1.png")
    second = local_data(run, pictures, "evaluation")
    assert second.digest != first.digest and len((tmp_path / "calls.txt").read_text().split()) == 10
    assert np.load(second.path / "pixels.npy")[2].max() == np.float32(200) / 255
    table = pictures / "metadata.csv"
    table.write_text(table.read_text().replace("Bonn", "Köln"))
    assert local_data(run, pictures, "evaluation").digest not in (first.digest, second.digest)


def test_sounds_without_a_table_are_read_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of any length and numbers from the function; hidden files are left out."""
    for name in ("no/a.wav", "maybe/b.wav"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True)
        with wave.open(str(tmp_path / "pictures" / name), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.arange(5 if name == "no/a.wav" else 8, dtype=np.int16).tobytes())
    (tmp_path / "pictures" / ".DS_Store").touch()
    run = run_of(tmp_path, "sound", monkeypatch, ignore=["length"])
    samples = load_place(run, tmp_path / "pictures", (TensorSpec("signal", "float32", ("batch", 8)),), "evaluation")
    assert samples.labels is not None and samples.labels.tolist() == ["maybe", "no"]
    np.testing.assert_array_equal(samples.inputs["signal"], np.float32([range(8), [0, 1, 2, 3, 4, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("read", "words", "advice"),
    [
        ("raw", "returns ndarray for 4.png", "return {'input': array}"),
        ("objects", "of the type object for 4.png", "return {'input': array}"),
        ("nothing", "returns dict for 4.png", "return {'input': array}"),
        ("climbing", "returns ['../x']", "rename the model's inputs"),
        ("sound", "raises Error on 4.png", "call it on 4.png"),
        ("growing", "returns {'pixels': 'float64[2]'} for 0.png", "bring all files to one shape"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(
    read: str, words: str, advice: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError) as caught:
        local_data(run_of(tmp_path, read, monkeypatch), pictures, "evaluation")
    assert words in caught.value.found and advice in caught.value.fix
    # Nothing half-made is taken for whole later.
    assert not list((tmp_path / "state" / "data").rglob("*.npy"))


def test_an_array_that_is_missing_for_a_later_file_is_refused(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pictures / "metadata.csv").unlink()
    with pytest.raises(DataError, match=r"returns \{'pixels': 'float64\[3\]'\} for 1.png"):
        local_data(run_of(tmp_path, "drifting", monkeypatch), pictures, "evaluation")


def test_arrays_larger_than_the_disk_are_refused_before_writing(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageFull, match="GB of arrays from 5 evaluation files"):
        local_data(run_of(tmp_path, "huge", monkeypatch), pictures, "evaluation")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("file_name,label\n9.png,1\n", "names 1 missing files, such as 9.png"),
        ("file_name,label\n../mine.py,1\n", "names 1 missing files, such as ../mine.py"),
        ("name,label\n0.png,1\n", "has the columns ['label', 'name']"),
        ("file_name,pixels\n0.png,1\n", "returns ['pixels'], which are columns"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    table: str, words: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pictures / "metadata.csv").write_text(table)
    with pytest.raises(DataError) as caught:
        local_data(run_of(tmp_path, "picture", monkeypatch), pictures, "evaluation")
    assert words in caught.value.found


def test_empty_folder_and_missing_function_are_refused(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="a folder without files"):
        local_data(run_of(tmp_path, "picture", monkeypatch), tmp_path / "none", "evaluation")
    with pytest.raises(JobError, match="has no function 'photo'"):
        local_data(run_of(tmp_path, "photo", monkeypatch), pictures, "evaluation")

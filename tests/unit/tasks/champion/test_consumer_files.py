"""What a consumer checks before it opens anything: the files of the version, against the manifest, by both of its readers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.engines.tensorrt.shipped import files as engine_files
from validators.digests import digest_file

Files = dict[str, str]
Check = Callable[[Path, Files], None]


@pytest.fixture(scope="module", params=["onnxruntime", "tensorrt"])
def check(request: pytest.FixtureRequest) -> Check:
    """Of the consumer that is one file, and of the package that goes with engines."""
    if request.param == "tensorrt":
        return engine_files.check_files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow's, about its own type hints
        module = importlib.import_module("tasks.champion.consumer.consumer")
    found: Check = module._check_files
    return found


@pytest.fixture
def version(tmp_path: Path) -> tuple[Path, Files]:
    """Two files and their digests; a third lies outside."""
    folder = tmp_path / "variant"
    folder.mkdir()
    for name, content in (("model.onnx", b"graph"), ("model.onnx.data", b"weights")):
        (folder / name).write_bytes(content)
    (tmp_path / "outside").write_bytes(b"graph")
    return folder, {path.name: digest_file(path) for path in folder.iterdir()}


def test_whole_files_pass(check: Check, version: tuple[Path, Files]) -> None:
    check(*version)


def one_byte(folder: Path, files: Files) -> None:
    (folder / "model.onnx.data").write_bytes(b"weightz")


def missing(folder: Path, files: Files) -> None:
    (folder / "model.onnx.data").unlink()


def swapped(folder: Path, files: Files) -> None:
    (folder / "model.onnx").rename(folder / "kept")
    (folder / "model.onnx.data").rename(folder / "model.onnx")
    (folder / "kept").rename(folder / "model.onnx.data")


def extra(folder: Path, files: Files) -> None:
    (folder / "libevil.so").write_bytes(b"code")


def extra_folder(folder: Path, files: Files) -> None:
    (folder / "more").mkdir()


def unnamed(folder: Path, files: Files) -> None:
    del files["model.onnx"]


def a_link_in_its_place(folder: Path, files: Files) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(folder.parent / "outside")


def a_folder_in_its_place(folder: Path, files: Files) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (one_byte, "found model.onnx.data with sha256"),
        (missing, "found no file model.onnx.data"),
        (swapped, "with sha256"),
        (extra, "found 'libevil.so', which the manifest does not name"),
        (extra_folder, "found 'more', which"),
        (unnamed, "found 'model.onnx', which"),
        (a_link_in_its_place, "found no file model.onnx"),
        (a_folder_in_its_place, "found no file model.onnx"),
    ],
)
def test_any_other_files_are_refused(
    check: Check, version: tuple[Path, Files], change: Callable[[Path, Files], None], found: str
) -> None:
    folder, files = version
    change(folder, files)
    with pytest.raises(RuntimeError, match=found):
        check(folder, files)


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "sub/model.onnx", "model.onnx/", "/etc/hostname"])
def test_a_manifest_cannot_lead_out_of_the_folder(check: Check, version: tuple[Path, Files], name: str) -> None:
    """Nothing outside is even read."""
    folder, files = version
    with pytest.raises(RuntimeError, match="in the manifest; expected names of files beside the model"):
        check(folder, files | {name: digest_file(folder.parent / "outside")})


def test_a_library_without_a_digest_is_not_loaded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tasks.champion.consumer.consumer")
    with pytest.raises(RuntimeError, match=r"found library '\.\./ours\.so' without a digest"):
        module._find_library({"file": "../ours.so"}, Path(), {"model.onnx": ""})
    assert module._find_library({"file": "ours.so"}, Path("variant"), {"ours.so": ""}) == "variant/ours.so"

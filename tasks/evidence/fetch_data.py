"""The job's data on this machine: downloaded from S3 once per version, with verification, and read by the job's function."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.evidence.read_files import read_folder
from tasks.run.context import Run, log
from tasks.storage.s3 import S3, S3Object
from tasks.storage.s3_download import download, verified_by
from validators.digests import digest_file, digest_values
from validators.errors import DataError, InfrastructureError, ObjectMissing, StorageRefused
from validators.samples.datasets import Samples, TensorSpec, load_samples
from validators.samples.feeds import Feeds
from validators.untrusted.s3_uris import S3Uri, parse_s3_uri

# File systems allow 255 bytes in a name.
_NAME_BYTES = 120
_FOLDER = "data"


@dataclass(frozen=True)
class LocalData:
    """Data on this machine: a file, or a folder.

    `digest` is that of the files from which a folder of arrays was made. `uri` and `version` are those of data from S3: the
    server's version of an object, its ETag, or a digest of all ETags below a prefix.
    """

    path: Path
    digest: str | None = None
    uri: str | None = None
    version: str | None = None


def local_data(run: Run, place: Path | S3Uri, role: str) -> LocalData:
    """Return the data at a place that the job names; `role` names them in errors.

    Raises:
        DataError: the place does not exist or cannot be read, or `data.read` fails on one of its files.
        InfrastructureError: the S3 server does not answer, or the disk is full.
    """
    found = fetch_data(run.state, place, role) if isinstance(place, S3Uri) else LocalData(place)
    if run.job.data.read is None or not found.path.is_dir():
        return found
    path, digest = read_folder(run, found.path, role)
    return replace(found, path=path, digest=digest)


def load_place(run: Run, place: Path | S3Uri, inputs: tuple[TensorSpec, ...] | Feeds, role: str) -> Samples:
    """Load the samples at a place that the job names, checked against the model's inputs.

    Raises:
        DataError, InfrastructureError: as `local_data`; DataError also if the arrays do not fit the model.
        JobError: `data.columns` is no input.
    """
    data, found = run.job.data, local_data(run, place, role)
    samples = load_samples(
        found.path,
        inputs,
        label=data.label,
        role=role,
        slices=data.slices,
        groups=data.groups,
        ignore=data.ignore,
        columns=data.columns,
        digest=found.digest,
    )
    return replace(samples, file=replace(samples.file, uri=found.uri, version=found.version))


def fetch_data(state: Path, uri: S3Uri, role: str) -> LocalData:
    """Return a local copy of the object, or a folder of all objects below the prefix, downloaded unless this version is here.

    Raises:
        DataError: the server refuses access, or there is neither such an object nor one below it.
        InfrastructureError: the download failed, was corrupt or took too long.
        StorageFull: the disk has no room for the object.
    """
    s3 = S3()
    try:
        try:
            found = s3.head(uri)
        except ObjectMissing:
            fetched = _fetch_below(s3, uri, state)
            if fetched is None:
                raise
            return fetched
        if not _is_whole(_place(state, found)):
            found = _download(s3, uri, state)
    except StorageRefused as error:
        raise DataError(found=f"{role} data: {error.found}", expected=error.expected, fix=error.fix) from error
    # A bucket without versioning reports the version "null".
    version = found.version if found.version not in (None, "null") else found.etag.strip('"')
    return LocalData(_place(state, found), uri=str(uri), version=version)


def _fetch_below(s3: S3, prefix: S3Uri, state: Path) -> LocalData | None:
    """Return a folder with the objects below a prefix, by the rest of their keys; None if there are none."""
    names = {}
    for found in s3.list(prefix):
        name = found.uri.key.removeprefix(f"{prefix.key}/")
        # Consoles make an empty object for each "folder".
        if name and not name.endswith("/"):
            names[name] = found
    if not names:
        return None
    version = digest_values([[name, found.etag, found.size_bytes] for name, found in sorted(names.items())])
    place = state / _FOLDER / digest_values(str(prefix), version) / prefix.name
    if not _is_whole(place):
        (state / _FOLDER).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=state / _FOLDER, prefix=".fetching-") as made:
            folder = Path(made, "data")
            for name, found in names.items():
                # Parsing refuses keys that are unsafe as paths.
                uri = parse_s3_uri(str(found.uri))
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if download(s3, uri, folder / name).etag != found.etag:
                    raise _changed(prefix, name)
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            _beside(place).write_text(_digest_of(folder), encoding="ascii")
            folder.replace(place)
        log.info("downloaded %d objects below %s", len(names), prefix)
    return LocalData(place, uri=str(prefix), version=version)


def _changed(prefix: S3Uri, name: str) -> InfrastructureError:
    return InfrastructureError(
        found=f"{prefix}/{name} changed while the objects below {prefix} were downloaded",
        expected="data that stay as they are during the download",
        fix="run again, or write new data under another prefix",
    )


def _place(state: Path, found: S3Object) -> Path:
    name = found.uri.name.encode()[-_NAME_BYTES:].decode(errors="ignore")
    return state / _FOLDER / digest_values(str(found.uri), found.etag, found.version, found.size_bytes) / name


def _download(s3: S3, uri: S3Uri, state: Path) -> S3Object:
    """Download the object to its path; return the version that was downloaded, which may be newer than the one looked up."""
    (state / _FOLDER).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state / _FOLDER, prefix=".fetching-") as folder:
        loaded = Path(folder, "data")
        found = download(s3, uri, loaded)
        place = _place(state, found)
        place.parent.mkdir(exist_ok=True)
        _beside(place).write_text(digest_file(loaded), encoding="ascii")
        loaded.replace(place)
    log.info("downloaded %s, %d bytes, verified by its %s", uri, found.size_bytes, verified_by(found))
    return found


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_whole(path: Path) -> bool:
    """Return True if the file still has the digest that it had when downloaded; it may be old."""
    beside = _beside(path)
    return path.exists() and beside.exists() and beside.read_text(encoding="ascii") == _digest_of(path)


def _digest_of(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files in a folder."""
    if not path.is_dir():
        return digest_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return digest_values([[str(file.relative_to(path)), digest_file(file)] for file in files])

"""Sample of the newest traffic: the files written since the last look, and their usable samples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG

import numpy as np

from tasks.evidence.load_data import load_file
from tasks.run.context import Run, log
from tasks.storage.s3 import S3
from validators.calibration.model_view import draw_rows, usable_rows
from validators.digests import digest_values
from validators.errors import DataError, JobError, StorageRefused
from validators.job.job_watch import Watch
from validators.records.run import DataFile, Source
from validators.samples.datasets import Samples
from validators.samples.feeds import Feeds
from validators.samples.readers import READERS, TYPES
from validators.untrusted.s3_uris import S3Uri, parse_s3_uri

SUFFIXES = tuple(READERS)
# Limits of one look on the newest traffic: bytes per file, and number of files.
MAX_FILE_BYTES, MAX_FILES = 1_000_000_000, 200


@dataclass(frozen=True)
class TrafficFile:
    """A file of traffic, local or on S3, with its time of writing (seconds since 1970) and its size."""

    place: Path | S3Uri
    written: float
    size_bytes: int

    @property
    def name(self) -> str:
        """Last segment of its path or key."""
        return self.place.name


@dataclass(frozen=True)
class TrafficMark:
    """The traffic seen so far: the newest time of writing, and the files written at that time, or later by a wrong clock."""

    newest: float = 0.0
    places: tuple[str, ...] = ()

    def has(self, file: TrafficFile) -> bool:
        """Return True if an earlier look covered the file."""
        return file.written < self.newest or self._name(file) in self.places

    def after(self, files: Sequence[TrafficFile], now: float) -> TrafficMark:
        """Return the mark after a look at `now` (seconds since 1970), at which these files, new or not, were listed.

        A file from the future, by a clock that is wrong, does not move the newest time: it would hide all that is written until
        then. It is remembered by its name and time.

        >>> TrafficMark(5.0, ("a",)).after([TrafficFile(Path("b"), 5.0, 1)], 9.0)
        TrafficMark(newest=5.0, places=('a', 'b'))
        >>> TrafficMark().after([TrafficFile(Path("a"), 5.0, 1), TrafficFile(Path("b"), 99.0, 1)], 9.0)
        TrafficMark(newest=5.0, places=('a', 'b at 99.0'))
        """
        newest = max([self.newest, *(file.written for file in files if file.written <= now)])
        mark = TrafficMark(newest)
        kept = self.places if newest == self.newest else ()
        names = (mark._name(file) for file in files if file.written >= newest)
        return replace(mark, places=tuple(dict.fromkeys((*kept, *names))))

    def _name(self, file: TrafficFile) -> str:
        return f"{file.place}" if file.written == self.newest else f"{file.place} at {file.written}"


@dataclass(frozen=True)
class Traffic:
    """The traffic of one look: the new files, newest first, and the reasons why some were skipped.

    `found` counts distinct finite samples; if a look needs more, `samples` is None. `seen` is the mark after the look.
    """

    files: tuple[TrafficFile, ...]
    seen: TrafficMark
    samples: Samples | None
    found: int
    skipped: tuple[str, ...]


def gather_traffic(
    run: Run,
    watch: Watch,
    seen: TrafficMark,
    feeds: Feeds,
    source: Source,
    batch_axis: int | None,
    *,
    draw: int,
) -> Traffic:
    """Gather the newest unseen samples, at most `max_samples`, drawn with the seed `draw` from the files that were read.

    Files that cannot be read, or do not fit the model, are skipped and reported.

    Raises:
        DataError: the folder or prefix of the traffic is missing.
    """
    listed, now = newest_files(watch.traffic, watch.newest_hours), time.time()
    if seen.newest > now:
        log.warning("watch: a clock was wrong, the last look came after this one: it saw nothing, as far as is known")
        seen = TrafficMark()
    files = [file for file in listed if not seen.has(file)][:MAX_FILES]
    read: list[Samples] = []
    skipped: list[str] = []
    for file in files:
        try:
            samples = _read(run, file, feeds, source)
        except DataError as error:
            skipped.append(error.found)
            continue
        if read and any(array.shape[1:] != read[0].inputs[name].shape[1:] for name, array in samples.inputs.items()):
            skipped.append(f"{file.name}: sizes differ from those of the newer {read[0].file.path.name}")
            continue
        read.append(samples)
        if sum(len(one) for one in read) >= watch.max_samples:
            break
    drawn, found = _draw(read, watch.max_samples, batch_axis, draw) if read else (None, 0)
    after = seen.after(listed, now)
    return Traffic(tuple(files), after, drawn if found >= watch.min_samples else None, found, tuple(skipped))


def newest_files(place: Path | S3Uri, hours: float) -> list[TrafficFile]:
    """Return the data files below a folder or prefix that were written in the last `hours`, newest first.

    Files that a writer hides until they are complete (`.name`, `_name`) are skipped.

    Raises:
        DataError: the folder is missing, or the S3 server refuses the request.
        InfrastructureError: the S3 server does not answer.
    """
    least = time.time() - hours * 3600
    files = _files_on_s3(place) if isinstance(place, S3Uri) else _files_of_folder(place)
    shown = [
        file
        for file in files
        if file.written >= least and file.name.endswith(SUFFIXES) and not file.name.startswith((".", "_"))
    ]
    return sorted(shown, key=lambda file: (file.written, str(file.place)), reverse=True)


def _files_of_folder(place: Path) -> list[TrafficFile]:
    """Return the files of a folder and its subfolders, or the one file."""
    if not place.exists():
        raise DataError(
            found=f"traffic {place}: no such file or folder",
            expected=f"a folder of {TYPES} files, or one such file",
            fix="correct `watch.traffic`, or write requests there",
        )
    found = []
    for path in [place] if place.is_file() else place.rglob("*"):
        # Writers may rename or delete files meanwhile.
        with suppress(FileNotFoundError):
            told = path.stat()
            if S_ISREG(told.st_mode):
                found.append(TrafficFile(path, told.st_mtime, told.st_size))
    return found


def _files_on_s3(place: S3Uri) -> list[TrafficFile]:
    """Return the objects below a prefix, or the one object; skip keys that are not safe URIs."""
    parent = place.key.rpartition("/")[0]
    listed = S3Uri(place.bucket, parent) if place.name.endswith(SUFFIXES) and parent else place
    found = []
    try:
        for told in S3().list(listed):
            with suppress(JobError):
                file = TrafficFile(parse_s3_uri(str(told.uri)), told.modified or 0.0, told.size_bytes)
                if place in (listed, file.place):
                    found.append(file)
    except StorageRefused as error:
        raise DataError(found=f"traffic: {error.found}", expected=error.expected, fix=error.fix) from error
    return found


def _read(run: Run, file: TrafficFile, feeds: Feeds, source: Source) -> Samples:
    if file.size_bytes > MAX_FILE_BYTES:
        raise DataError(
            found=f"traffic {file.name} has {file.size_bytes / 1e6:.0f} MB",
            expected=f"files of at most {MAX_FILE_BYTES / 1e6:.0f} MB",
            fix="write traffic in smaller files",
        )
    return load_file(run, "traffic", file.place, feeds, source)


def _draw(read: list[Samples], most: int, batch_axis: int | None, seed: int) -> tuple[Samples | None, int]:
    """Draw distinct finite samples of several files as one set; return them with their number before the draw.

    A request that is repeated a hundred times counts once. With a fixed batch size, whole batches are drawn.
    """
    arrays = {name: np.concatenate([one.inputs[name] for one in read]) for name in read[0].inputs}
    usable = usable_rows(arrays)
    rows = draw_rows(usable, most, batch_axis or 1, seed)
    if not len(rows):
        return None, int(usable.sum())
    file = DataFile(read[0].file.path, digest_values([one.file.digest for one in read], rows.tolist()), len(rows))
    drawn = {name: array[rows] for name, array in arrays.items()}
    return Samples(file, drawn, None, feeds=read[0].feeds), int(usable.sum())

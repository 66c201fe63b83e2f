"""Folders of pictures, sounds or other files as arrays, made once by the job's `data.read` function and kept on disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.user_code import UserFunction, load_function
from tasks.run.context import Run, log
from validators.digests import digest_file, digest_values
from validators.errors import DataError, StorageFull
from validators.samples.readers import Arrays, read_arrays
from validators.untrusted.paths import is_file

# The table of a folder, by the convention of Hugging Face's image and audio folders, and its column with the file's name.
TABLES, FILE_NAME = ("metadata.csv", "metadata.parquet"), "file_name"
LOG_SECONDS = 10.0
TEXT = "text"


def read_folder(run: Run, folder: Path, role: str) -> tuple[Path, str]:
    """Return a folder of one `.npy` file for each array that `data.read` makes of a folder, or column of its table.

    The second value is the digest of the files and the function that they were made from.

    The function is called with the path of one file at a time, in the order of the table or, without one, of the names, and
    returns a dictionary of arrays or values, all of which have the same names, shapes and dtypes for every file. Arrays are
    written as they come, so memory does not grow with the number of files.

    Raises:
        DataError: there are no files, one is missing, or the function fails on one or returns something else.
        JobError: the function cannot be loaded.
        StorageFull: the disk has no room for the arrays.
    """
    assert run.job.data.read is not None  # the caller asks for it
    function = load_function(run.job.data.read, run.job.code, key="data.read")
    files, columns, table = _list_files(folder, role)
    digest = digest_values(
        function.name,
        function.digest,
        None if table is None else digest_file(table),
        [[name, digest_file(folder / name)] for name in files],
    )
    kept = run.state / "data" / digest / folder.name
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".reading-") as made:
            _write(Path(made), function, files, columns, folder, role)
            Path(made, "whole").mkdir()
            for file in Path(made).glob("*.npy"):
                file.rename(Path(made, "whole", file.name))
            # Another process may have been faster.
            if not kept.is_dir():
                Path(made, "whole").rename(kept)
    return kept, digest


def _list_files(folder: Path, role: str) -> tuple[list[str], Arrays, Path | None]:
    """Return the names of a folder's files in their order, the other columns of its table, and the table if there is one."""
    table = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table is None:
        files = sorted(_shown(folder))
        if not files:
            raise DataError(
                found=f"{role} data {folder}: a folder without files",
                expected="the files that `data.read` reads",
                fix="correct the path in `data`, or write the files there",
            )
        return files, {}, None
    columns = read_arrays(table, role)
    if FILE_NAME not in columns:
        raise DataError(
            found=f"{role} data {folder.name}: {table.name} has the columns {sorted(columns)}",
            expected=f"a column {FILE_NAME!r} with the path of each file, relative to the folder",
            fix=f"rename that column to {FILE_NAME}",
        )
    names = [str(name) for name in columns.pop(FILE_NAME).tolist()]
    wrong = [name for name in names if _is_outside(name) or not is_file(folder / name)]
    if wrong:
        raise DataError(
            found=f"{role} data {folder.name}: {table.name} names {len(wrong)} missing files, such as {wrong[0]}",
            expected="files in the folder or below it, by relative paths",
            fix="copy the files into the folder, and correct their names in the table",
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            found=f"{role} data {folder.name}: {table.name} names {len(twice)} files several times, such as {twice[0]}",
            expected="one row for each file",
            fix=f"correct {table.name}: the rows of one file may contradict each other",
        )
    left = len(_shown(folder) - {*names, table.name})
    if left:
        log.warning("%s data: %s does not name %d files of %s, which are not read", role, table.name, left, folder.name)
    return names, columns, table


def _shown(folder: Path) -> set[str]:
    """Return the names of all files that are not hidden; they take a tenth of the memory of paths."""
    found = (file for file in folder.rglob("*") if file.is_file())
    return {str(name) for file in found if not _is_hidden(name := file.relative_to(folder))}


def _is_outside(name: str) -> bool:
    return ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute()


def _is_hidden(path: Path) -> bool:
    return any(part[0] in "._" for part in path.parts)


def _write(target: Path, function: UserFunction, files: list[str], columns: Arrays, folder: Path, role: str) -> None:
    """Write an array for each name that the function returns, and for each column of the table."""
    log.info("%s data: %s reads %d files of %s", role, function.name, len(files), folder.name)
    arrays: Arrays = {}
    texts: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for row, (file, made) in enumerate(_called(function, folder, files, role)):
        kinds = {name: _kind(array) for name, array in made.items()}
        if row == 0:
            _check_names(made, columns, function, role)
            _check_room(target, made, len(files), role)
            first = kinds
            texts = {name: [] for name, kind in kinds.items() if kind == TEXT}
            arrays = {
                name: np.lib.format.open_memmap(target / f"{name}.npy", "w+", array.dtype, (len(files), *array.shape))
                for name, array in made.items()
                if name not in texts
            }
        # Numbers of another type would be converted without a word.
        if kinds != first:
            raise DataError(
                found=f"{role} data: {function.name} returns {kinds} for {file.name}",
                expected=f"the same as for {PurePosixPath(files[0]).name}: {first}",
                fix="bring all files to one shape and dtype in the function, as production does",
            )
        for name, told in texts.items():
            told.append(str(made[name]))
        for name, array in arrays.items():
            array[row] = made[name]
    # The width of text arrays is that of the longest.
    for name, told in texts.items():
        np.save(target / f"{name}.npy", np.array(told))
    for name, column in columns.items():
        np.save(target / f"{name}.npy", column.astype(str) if column.dtype.kind == "O" else np.asarray(column))


def _kind(array: NDArray[Any]) -> str:
    """Return the dtype and shape of what was made of a file."""
    return TEXT if array.dtype.kind == "U" and not array.ndim else f"{array.dtype}{list(array.shape)}"


def _called(function: UserFunction, folder: Path, files: list[str], role: str) -> Iterator[tuple[Path, Arrays]]:
    """Yield each file with what the function returns for it, as arrays by name."""
    told = time.monotonic()
    for row, name in enumerate(files):
        file = folder / name
        try:
            made = function.function(file)
        except Exception as error:
            raise DataError(
                found=f"{role} data: {function.name} raises {type(error).__name__} on {file.name}: {str(error)[:300]}",
                expected="a function that reads every file of the folder",
                fix=f"call it on {file.name}, and correct the function or the file",
            ) from error
        if not isinstance(made, Mapping) or not made or not all(isinstance(key, str) for key in made):
            raise _wrong_answer(function, role, f"{type(made).__name__} for {file.name}")
        arrays = {key: np.asarray(value) for key, value in made.items()}
        objects = [key for key, array in arrays.items() if array.dtype.kind not in "biufU"]
        if objects:
            raise _wrong_answer(function, role, f"{objects} of the type {arrays[objects[0]].dtype} for {file.name}")
        yield file, arrays
        if time.monotonic() - told > LOG_SECONDS:
            told = time.monotonic()
            log.info("%s data: %d of %d files are read", role, row + 1, len(files))


def _wrong_answer(function: UserFunction, role: str, found: str) -> DataError:
    return DataError(
        found=f"{role} data: {function.name} returns {found}",
        expected="a dictionary with an array for each input of the model, by name, without the axis of samples",
        fix="return {'input': array}, and 'label' too if it is not in the folder's table",
    )


def _check_names(made: Arrays, columns: Arrays, function: UserFunction, role: str) -> None:
    both = sorted(made.keys() & columns.keys())
    if both:
        raise DataError(
            found=f"{role} data: {function.name} returns {both}, which are columns of the folder's table too",
            expected="each array from one of the two",
            fix="remove the columns from the table, or leave these names out of what the function returns",
        )
    bad = sorted(name for name in made if "/" in name or name.startswith("."))
    if bad:
        raise DataError(
            found=f"{role} data: {function.name} returns {bad}",
            expected="names without a slash, since each becomes a file",
            fix="rename the model's inputs",
        )


def _check_room(target: Path, made: Arrays, count: int, role: str) -> None:
    needed = count * sum(array.nbytes for array in made.values())
    free = shutil.disk_usage(target).free
    if needed > free:
        raise StorageFull(
            found=f"{needed / 1e9:.1f} GB of arrays from {count} {role} files, and {free / 1e9:.1f} GB free in {target.parent}",
            expected="room for the inputs of all samples in the state folder",
            fix="free space, use fewer samples, or move the state folder with QUANTGATE_STATE",
        )

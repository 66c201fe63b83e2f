"""Data files as arrays by name: `.npz`, `.parquet`, `.csv` and `.arrow` files, and folders of them or of `.npy` files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from validators.digests import digest_file, digest_values
from validators.errors import DataError
from validators.samples.array_files import Arrays as Arrays
from validators.samples.array_files import concatenate, map_array, read_npz
from validators.samples.data_advice import is_cut, kind_of_file
from validators.samples.tables import read_arrow, read_csv, read_parquet
from validators.untrusted.paths import why_no_file

TYPES = ".npz, .parquet, .csv or .arrow"
READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".arrow": read_arrow,
}
# Name of each type, the end of what `kind_of_file` says of such a file, and a writer of it.
MAGIC_OF: dict[str, tuple[str, str | tuple[str, ...], str]] = {
    ".npz": ("npz archive", "zip archive", "numpy.savez"),
    ".parquet": ("Parquet file", "Parquet file", "pandas' to_parquet"),
    ".csv": ("CSV file", "text file", "pandas' to_csv"),
    ".arrow": ("Arrow file", ("Arrow file", "Arrow stream"), "pyarrow.ipc.new_file"),
}


def read_arrays(path: Path, role: str) -> Arrays:
    """Read all arrays (or columns) of a data file, or of all files of a folder, by name; `role` names the file in errors.

    Lists of differing length become masked arrays, padded at the end; the mask is True for the padding.

    Raises:
        DataError: a file is missing or unreadable, or the files of a folder do not fit together.
    """
    if path.is_dir() and (arrays := arrays_of(path)):
        _check_alone(path, arrays, role)
        return {file.stem: map_array(file, role) for file in arrays}
    if path.is_dir():
        return _join([(file.name, read_arrays(file, role)) for file in shards_of(path, role)], path, role)
    check_exists(path, role)
    if path.suffix not in READERS:
        raise DataError(
            found=f"{role} data {path.name} has the suffix {path.suffix!r}: {kind_of_file(path)}",
            expected=TYPES,
            fix="write the arrays with numpy.savez('data.npz', x=..., label=...), or a table with pandas' to_parquet",
        )
    _check_kind(path, role)
    try:
        return READERS[path.suffix](path)
    except Exception as error:  # numpy, zipfile, zlib and pyarrow raise a dozen unrelated classes for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            found=f"{role} data {path.name} cannot be read as {path.suffix[1:]}: {reason}",
            expected="an intact file of the type that its suffix states",
            fix=getattr(error, "fix", f"write the file again with {MAGIC_OF[path.suffix][2]}"),
        ) from error


def check_exists(path: Path, role: str) -> None:
    """Raise DataError if there is no such file or folder."""
    if not (path.is_file() or path.is_dir()):
        raise DataError(
            found=f"{role} data {path}: {why_no_file(path)}",
            expected=f"a file of the type {TYPES}, or a folder of them",
            fix="correct the path in `data`",
        )


def holds_text_alone(path: Path) -> bool:
    """Return True for CSV, or a folder of it, whose numbers have no dtype of their own."""
    if path.is_dir():
        return not arrays_of(path) and all(holds_text_alone(file) for file in _data_files(path))
    return path.suffix == ".csv"


def _check_kind(path: Path, role: str) -> None:
    """Refuse a file that does not match its suffix: the libraries' own errors speak of pickles and footers."""
    name, magic, _ = MAGIC_OF[path.suffix]
    kind = kind_of_file(path)
    if not kind.endswith(magic):
        expected = f"an {name}" if name[0] == "n" else f"a {name}"
        raise DataError(
            found=f"{role} data {path.name} is {kind}, not {expected}",
            expected=f"{expected}, as its suffix states",
            fix="save the text again as UTF-8"
            if "UTF-" in kind
            else "write the file again in the format of its suffix, or correct the suffix",
        )
    if is_cut(path):
        raise DataError(
            found=f"{role} data {path.name} is a truncated {name}: its end is missing",
            expected="a complete file",
            fix="copy or write the file again",
        )


def arrays_of(folder: Path) -> list[Path]:
    """Return the `.npy` files of a folder that holds one for each array, in the order of their names."""
    return sorted(path for path in folder.glob("*.npy") if path.name[0] not in "._")


def _check_alone(folder: Path, arrays: list[Path], role: str) -> None:
    """Refuse a folder of `.npy` files with data files of other types, which would be ignored."""
    others = _data_files(folder)
    if others:
        raise DataError(
            found=f"{role} data {folder.name} has {arrays[0].name} and {others[0].name}",
            expected="one .npy file for each array, or files of other types alone",
            fix="move the files of each kind to a folder of their own",
        )


def _data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in READERS and path.name[0] not in "._")


def shards_of(folder: Path, role: str) -> list[Path]:
    """Return the data files of a folder in the order of their names; hidden ones (`.name`, `_name`) are left out.

    Raises:
        DataError: there is none, or one is a link to a folder that holds it.
    """
    files = _data_files(folder)
    if not files:
        # Hugging Face's data sets of several splits have a folder for each.
        splits = sorted({path.parent.name for path in folder.glob("*/*.arrow")})
        raise DataError(
            found=f"{role} data {folder}: a folder without data files"
            + (f", with the splits {splits}" if splits else ""),
            expected=f"files of the type {TYPES}, or one .npy file for each array",
            fix=f"name a split, such as {folder / splits[0]}"
            if splits
            else "correct the path in `data`, or name a function in `data.read` that reads the files there",
        )
    circle = next((file for file in files if file.is_dir() and folder.resolve().is_relative_to(file.resolve())), None)
    if circle is not None:
        raise DataError(
            found=f"{role} data {folder}: {circle.name} is a link to a folder that holds it",
            expected="files, or folders of them",
            fix="correct the link",
        )
    return files


def digest_data(path: Path) -> str:
    """Return the digest of a data file, or of the names and contents of a folder's data files."""
    if not path.is_dir():
        return digest_file(path)
    return digest_values([[file.name, digest_data(file)] for file in arrays_of(path) or shards_of(path, "the")])


def _join(parts: list[tuple[str, Arrays]], folder: Path, role: str) -> Arrays:
    """Return the arrays of several files as one, in order; padded lists get the length of the longest."""
    first_name, first = parts[0]
    for name, arrays in parts[1:]:
        for key in sorted(set(first) | set(arrays)):
            sides = [side[key] for side in (first, arrays) if key in side]
            alike = len(sides) == 2 and sides[0].dtype.kind == sides[1].dtype.kind and sides[0].ndim == sides[1].ndim
            if alike and not any(isinstance(side, np.ma.MaskedArray) for side in sides):
                alike = sides[0].shape[1:] == sides[1].shape[1:]
            if alike and not sides[0].ndim:
                raise DataError(
                    found=f"{role} data {folder.name}: array {key!r} is a single value in {first_name}",
                    expected="one value per sample, along axis 0, in every file of a folder",
                    fix=f"write {key!r} with one value per sample",
                )
            if not alike:
                shapes = [f"{side.dtype} of shape {side.shape}" for side in sides]
                raise DataError(
                    found=f"{role} data {folder.name}: array {key!r} is {' in one file, in another '.join(shapes)}"
                    + (f", and missing in one of {first_name} and {name}" if len(sides) == 1 else ""),
                    expected="the same arrays in all files, of the same types and shapes",
                    fix=f"write {first_name} and {name} alike",
                )
    return {key: concatenate([arrays[key] for _, arrays in parts]) for key in first}

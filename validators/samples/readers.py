"""Data files as arrays by name: `.npz`, `.parquet`, `.csv` and `.arrow` files, and folders of them or of `.npy` files."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.digests import digest_file, digest_values
from validators.errors import DataError
from validators.samples.data_advice import is_cut, kind_of_file

Arrays = dict[str, NDArray[Any]]
TYPES = ".npz, .parquet, .csv or .arrow"
# Smallest size of one value of a column.
LEAST_BYTES = 1
# Arrays of at least this size are memory-mapped from a temporary file.
MAPPED_BYTES = 64 * 2**20
COPIED_BYTES = 2**20


def read_arrays(path: Path, role: str) -> Arrays:
    """Read all arrays (or columns) of a data file, or of all files of a folder, by name; `role` names the file in errors.

    Lists of differing length become masked arrays, padded at the end; the mask is True for the padding.

    Raises:
        DataError: a file is missing or unreadable, or the files of a folder do not fit together.
    """
    if path.is_dir() and (arrays := arrays_of(path)):
        return {file.stem: _map_array(file, role) for file in arrays}
    if path.is_dir():
        return _join([(file.name, read_arrays(file, role)) for file in shards_of(path, role)], path, role)
    if not path.is_file():
        raise DataError(
            found=f"{role} data {path}: no such file",
            expected=f"a file of the type {TYPES}, or a folder of them",
            fix="correct the path in `data`",
        )
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
            expected="an intact file of the type that its suffix states, without object arrays",
            fix="write the file again with numpy.savez or a Parquet writer",
        ) from error


def _check_kind(path: Path, role: str) -> None:
    """Refuse a file that does not match its suffix: the libraries' own errors speak of pickles and footers."""
    name, magic = MAGIC_OF[path.suffix]
    kind = kind_of_file(path)
    if not kind.endswith(magic):
        expected = f"an {name}" if name[0] in "nA" else f"a {name}"
        raise DataError(
            found=f"{role} data {path.name} is {kind}, not {expected}",
            expected=f"{expected}, as its suffix states",
            fix="write the file again in the format of its suffix, or correct the suffix",
        )
    if is_cut(path):
        raise DataError(
            found=f"{role} data {path.name} is a truncated {name}: its end is missing",
            expected="a complete file",
            fix="copy or write the file again",
        )


def _read_npz(path: Path) -> Arrays:
    # Open the file here: if the archive is damaged, numpy does not close a file that it opened itself.
    with path.open("rb") as stream:
        # Pickled object arrays can run code when read; numpy refuses them with allow_pickle=False.
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array, not an archive of named arrays")
        assert archive.zip is not None  # it is open
        _check_fits(sum(member.file_size for member in archive.zip.infolist()))
        arrays = {name: _read_member(archive, name) for name in archive.files}
    # numpy returns a member that is not an array as bytes.
    foreign = sorted(name for name, array in arrays.items() if not isinstance(array, np.ndarray))
    if foreign:
        raise ValueError(f"it has members that are not arrays: {foreign}")
    return arrays


def _member(archive: Any, name: str) -> Any:
    """Read one array of an archive; refuse an array of Python objects, because unpickling can run code."""
    try:
        return archive[name]
    except ValueError as error:
        if "Object arrays cannot be loaded" not in str(error):
            raise
        raise ValueError(
            f"array {name!r} holds Python objects, which are pickled: store text with .astype(str), numbers with a dtype"
        ) from error


def _read_member(archive: np.lib.npyio.NpzFile, name: str) -> NDArray[Any]:
    """Read an array; unpack a large one into an unnamed temporary file and memory-map it, so that its pages can be dropped.

    The user's own file is not mapped: rewriting it during the run would change the samples or crash the process.
    """
    assert archive.zip is not None  # it is open
    member = f"{name}.npy"
    size = archive.zip.getinfo(member).file_size if member in archive.zip.namelist() else 0
    if size < MAPPED_BYTES or shutil.disk_usage(tempfile.gettempdir()).free < size:
        array: NDArray[Any] = _member(archive, name)
        return array
    with archive.zip.open(member) as stream, tempfile.TemporaryFile() as file:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            return np.asarray(_member(archive, name))
        shape, is_fortran, dtype = readers[version](stream)
        if dtype.hasobject or is_fortran:
            return np.asarray(_member(archive, name))
        shutil.copyfileobj(stream, file, COPIED_BYTES)
        if file.tell() != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name!r} has {file.tell()} bytes for {dtype} of shape {shape}")
        return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)


def _read_parquet(path: Path) -> Arrays:
    import pyarrow.parquet  # 0.3 s to import; most jobs use .npz

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        # Parquet stores repeated values once, but reading expands them.
        _check_fits(sum(max(column.total_uncompressed_size, column.num_values * LEAST_BYTES) for column in columns))
        return _of_table(file.read())


def _check_fits(declared: int) -> None:
    """Raise if the declared size in bytes exceeds this machine's memory: a few bytes may unpack to any size."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if declared > memory:
        raise ValueError(f"{declared / 1e9:.3g} GB when unpacked, and this machine has {memory / 1e9:.3g} GB of memory")


def _read_csv(path: Path) -> Arrays:
    from pyarrow import csv

    # A number takes two characters or more, and 8 bytes when it is read.
    _check_fits(4 * path.stat().st_size)
    table = csv.read_csv(path)
    # Without rows, the columns have no type that could be checked.
    if not table.num_rows:
        raise ValueError("it has a header and no rows")
    return _of_table(table)


def _read_arrow(path: Path) -> Arrays:
    return _of_table(arrow_table(path))


def arrow_table(path: Path) -> Any:
    """Return the `pyarrow.Table` of a file as Hugging Face's data sets are saved (a stream), or as feather files are."""
    import pyarrow

    with pyarrow.OSFile(str(path)) as file:
        is_stream = kind_of_file(path).endswith("stream")
        return (pyarrow.ipc.open_stream if is_stream else pyarrow.ipc.open_file)(file).read_all()


def _of_table(table: Any) -> Arrays:
    """Return the columns of a table by name; columns `x.0` to `x.9` become one array `x` of shape `(n, 10)`."""
    duplicate = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if duplicate is not None:
        raise ValueError(f"two columns are named {duplicate!r}")
    columns = {name: _column(table.column(name).combine_chunks()) for name in table.column_names}
    parts: dict[str, int] = Counter(name.rpartition(".")[0] for name in columns if name.rpartition(".")[2].isdecimal())
    for name, count in parts.items():
        names = [f"{name}.{number}" for number in range(count)]
        if name and name not in columns and all(one in columns for one in names):
            columns[name] = np.stack([columns.pop(one) for one in names], axis=1)
    return columns


def _column(array: Any) -> NDArray[Any]:
    """Convert an Arrow array to numpy with its own dtype; lists become further axes, padded and masked if lengths differ."""
    from pyarrow import compute, types

    if array.null_count:
        raise ValueError(f"{array.null_count} nulls")
    kind = array.type
    if types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        raise ValueError(f"a column of {str(kind)[:60]}: write arrays of numbers, decoded as the model gets them")
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    inner = _column(array.flatten())
    lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
    if len(set(lengths.tolist())) <= 1:
        return inner.reshape(len(array), *(lengths[:1] if len(array) else [0]), *inner.shape[1:])
    longest = int(lengths.max())
    _check_fits(len(array) * longest * int(np.prod(inner.shape[1:], dtype=np.int64)) * inner.itemsize)
    held = np.arange(longest) < lengths[:, None]
    if inner.dtype.kind == "O":
        raise ValueError(f"lists of text of lengths {sorted(set(lengths.tolist()))[:5]}")
    padded = np.zeros((*held.shape, *inner.shape[1:]), inner.dtype)
    padded[held] = np.ma.filled(inner, 0)
    mask = np.ones(padded.shape, np.bool_)
    mask[held] = np.ma.getmaskarray(inner)
    return np.ma.MaskedArray(padded, mask)


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".arrow": _read_arrow,
}
# Name of each type, and the end of what `kind_of_file` says of such a file.
MAGIC_OF: dict[str, tuple[str, str | tuple[str, ...]]] = {
    ".npz": ("npz archive", "zip archive"),
    ".parquet": ("Parquet file", "Parquet file"),
    ".csv": ("CSV file", "text file"),
    ".arrow": ("Arrow file", ("Arrow file", "Arrow stream")),
}


def arrays_of(folder: Path) -> list[Path]:
    """Return the `.npy` files of a folder that holds one for each array, in the order of their names."""
    return sorted(path for path in folder.glob("*.npy") if path.name[0] not in "._")


def _map_array(path: Path, role: str) -> NDArray[Any]:
    """Map an array into memory; pages that are written stay private, and the file must not change meanwhile."""
    try:
        if path.stat().st_size < MAPPED_BYTES:
            small: NDArray[Any] = np.load(path, allow_pickle=False)
            return small
        mapped: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
        return mapped.view(np.ndarray)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise DataError(
            found=f"{role} data {path.parent.name}: {path.name} cannot be read: {str(error).splitlines()[0]}",
            expected="an array of numbers or text as numpy.save writes it",
            fix="write the file again with numpy.save",
        ) from error


def shards_of(folder: Path, role: str) -> list[Path]:
    """Return the data files of a folder in the order of their names; hidden ones (`.name`, `_name`) are left out.

    Raises:
        DataError: there is none.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in READERS and path.name[0] not in "._")
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
    return files


def digest_data(path: Path) -> str:
    """Return the digest of a data file, or of the names and contents of a folder's data files."""
    if not path.is_dir():
        return digest_file(path)
    return digest_values([[file.name, digest_file(file)] for file in arrays_of(path) or shards_of(path, "the")])


def _join(parts: list[tuple[str, Arrays]], folder: Path, role: str) -> Arrays:
    """Return the arrays of several files as one, in order; padded lists get the length of the longest."""
    first_name, first = parts[0]
    for name, arrays in parts[1:]:
        for key in sorted(set(first) | set(arrays)):
            sides = [side[key] for side in (first, arrays) if key in side]
            alike = len(sides) == 2 and sides[0].dtype.kind == sides[1].dtype.kind and sides[0].ndim == sides[1].ndim
            if alike and not any(isinstance(side, np.ma.MaskedArray) for side in sides):
                alike = sides[0].shape[1:] == sides[1].shape[1:]
            if not alike:
                shapes = [f"{side.dtype} of shape {side.shape}" for side in sides]
                raise DataError(
                    found=f"{role} data {folder.name}: array {key!r} is {' in one file, in another '.join(shapes)}"
                    + (f", and missing in one of {first_name} and {name}" if len(sides) == 1 else ""),
                    expected="the same arrays in all files, of the same types and shapes",
                    fix=f"write {first_name} and {name} alike",
                )
    return {key: _concatenate([arrays[key] for _, arrays in parts]) for key in first}


def _concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays along axis 0, in a temporary file if they are large; those with masks are padded to one length."""
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        longest = max(array.shape[1] for array in arrays)
        rests = [[(0, 0), (0, longest - array.shape[1]), *[(0, 0)] * (array.ndim - 2)] for array in arrays]
        values = [np.pad(np.ma.getdata(array), rest) for array, rest in zip(arrays, rests, strict=True)]
        masks = [
            np.pad(np.ma.getmaskarray(array), rest, constant_values=True)
            for array, rest in zip(arrays, rests, strict=True)
        ]
        return np.ma.MaskedArray(np.concatenate(values), np.concatenate(masks))
    size = sum(array.nbytes for array in arrays)
    if size < MAPPED_BYTES or arrays[0].dtype.kind in "UO" or shutil.disk_usage(tempfile.gettempdir()).free < size:
        return np.concatenate(arrays)
    with tempfile.TemporaryFile() as file:
        shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
        joined = np.memmap(file, np.result_type(*arrays), "w+", shape=shape).view(np.ndarray)
    return np.concatenate(arrays, out=joined)

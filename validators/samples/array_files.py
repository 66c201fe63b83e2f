"""Array files of numpy: `.npz` archives and `.npy` files, large arrays memory-mapped; nothing is ever unpickled."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.samples.data_advice import kind_of_file

Arrays = dict[str, NDArray[Any]]
# Arrays of at least this size are memory-mapped from a temporary file.
MAPPED_BYTES = 64 * 2**20
COPIED_BYTES = 2**20


class Unreadable(ValueError):
    """A data file that cannot be read, with the fix for its reason."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def read_npz(path: Path) -> Arrays:
    """Read all arrays of an archive; those of at least `MAPPED_BYTES` are unpacked into temporary files and mapped.

    Raises:
        Unreadable, ValueError: the archive has no arrays, two of one name, a member that is no array, or a damaged one.
    """
    # Open the file here: if the archive is damaged, numpy does not close a file that it opened itself.
    with path.open("rb") as stream:
        # Pickled object arrays can run code when read; numpy refuses them with allow_pickle=False.
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array, not an archive of named arrays")
        assert archive.zip is not None  # it is open
        members = archive.zip.infolist()
        check_fits(sum(member.file_size for member in members))
        if not members:
            raise Unreadable("the archive is empty", "write the arrays with numpy.savez('data.npz', x=..., label=...)")
        # numpy silently returns the last of several.
        names = Counter(member.filename.removesuffix(".npy") for member in members)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise Unreadable(f"it has several arrays named {twice[0]!r}", "write each array under a name of its own")
        for member in members:
            with archive.zip.open(member) as content:
                check_header(content, member.file_size, member.filename)
        return {name: _read_member(archive, name) for name in archive.files}


def _read_member(archive: np.lib.npyio.NpzFile, name: str) -> NDArray[Any]:
    """Read an array; unpack a large one into an unnamed temporary file and memory-map it, so that its pages can be dropped.

    The user's own file is not mapped: rewriting it during the run would change the samples or crash the process.
    """
    assert archive.zip is not None  # it is open
    member = f"{name}.npy"
    size = archive.zip.getinfo(member).file_size if member in archive.zip.namelist() else 0
    if size < MAPPED_BYTES or shutil.disk_usage(tempfile.gettempdir()).free < size:
        return np.asarray(archive[name])
    with archive.zip.open(member) as stream, tempfile.TemporaryFile() as file:
        shape, is_fortran, dtype = check_header(stream, size, member)
        if is_fortran:
            return np.asarray(archive[name])
        shutil.copyfileobj(stream, file, COPIED_BYTES)
        return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)


def check_header(stream: IO[bytes], size: int, file: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array file of `size` bytes; return its shape, whether it is in Fortran order, and its dtype.

    numpy allocates the declared array before it reads, so a damaged header could exhaust the memory.

    Raises:
        Unreadable: the file is no array, its array holds Python objects, or its size is not that of the declared array.
    """
    name = file.removesuffix(".npy")
    again = "copy or write the file again: it is truncated or damaged"
    try:
        version = np.lib.format.read_magic(stream)
    except ValueError:
        raise Unreadable(f"{file!r} is not an array", "write arrays alone, with numpy.savez or numpy.save") from None
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise Unreadable(f"array {name!r} has named fields", "write each field as an array of its own")
    try:
        shape, is_fortran, dtype = readers[version](stream)
    except Exception as error:  # a header is Python source that numpy parses
        raise Unreadable(f"array {name!r} has a damaged header", again) from error
    if dtype.hasobject:
        raise Unreadable(
            f"array {name!r} holds Python objects, which are pickled and could run code",
            "write numbers with a dtype of numpy, text with .astype(str)",
        )
    declared, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    # Of values without bytes, an empty file can hold any number.
    if declared != held or any(axis < 0 for axis in shape) or (dtype.itemsize == 0 and all(shape)):
        raise Unreadable(
            f"array {name!r}, {dtype} of shape {shape}, needs {declared} bytes and the file has {held}", again
        )
    return shape, is_fortran, dtype


def check_fits(declared: int) -> None:
    """Raise if the declared size in bytes exceeds this machine's memory: a few bytes may unpack to any size."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if declared > memory:
        raise Unreadable(
            f"{declared / 1e9:.3g} GB when unpacked, and this machine has {memory / 1e9:.3g} GB of memory",
            "check where the file comes from; if it is right, use fewer samples or a machine with more memory",
        )


def map_array(path: Path, role: str) -> NDArray[Any]:
    """Map an array into memory; pages that are written stay private, and the file must not change meanwhile.

    Raises:
        DataError: it is not a file, or not an array.
    """
    try:
        # Opening a pipe would wait for a writer.
        if not path.is_file():
            raise Unreadable("it is not a regular file", "write the file with numpy.save, or correct the link")
        with path.open("rb") as stream:
            if not kind_of_file(path).endswith("(.npy)"):
                raise Unreadable(f"it is {kind_of_file(path)}", "write the file with numpy.save, or correct the suffix")
            check_header(stream, path.stat().st_size, path.name)
        if path.stat().st_size < MAPPED_BYTES:
            small: NDArray[Any] = np.load(path, allow_pickle=False)
            return small
        mapped: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
        return mapped.view(np.ndarray)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            found=f"{role} data {path.parent.name}: {path.name} cannot be read: {str(error).splitlines()[0]}",
            expected="an array of numbers or text as numpy.save writes it",
            fix=getattr(error, "fix", "write the file again with numpy.save"),
        ) from error


def concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
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

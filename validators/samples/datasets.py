"""Data files checked against a model's inputs: names, dtypes, shapes, lengths, labels. Other checks judge their content."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.digests import digest_file, digest_values
from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.data_advice import dtype_advice, is_cut, kind_of_file, shape_advice
from validators.samples.labels import LabelSpec, check_labels

if TYPE_CHECKING:
    from validators.samples.feeds import Feeds

Arrays = dict[str, NDArray[Any]]


class Feed(Arrays):
    """Inputs of a model by name for `rows` samples, along the axis that `axes` has of each input; None for a constant."""

    def __init__(self, arrays: Arrays, *, rows: int, axes: Mapping[str, int | None]) -> None:
        super().__init__(arrays)
        self.rows = rows
        self.axes = axes


# Smallest size of one value of a column.
LEAST_BYTES = 1
# Arrays of at least this size are memory-mapped from a temporary file.
MAPPED_BYTES = 64 * 2**20
COPIED_BYTES = 2**20


@dataclass(frozen=True)
class TensorSpec:
    """A model's input or output: name, numpy dtype, and shape; a dynamic axis is given by its name, or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join('?' if axis is None else str(axis) for axis in self.shape)}]"


@dataclass(frozen=True)
class Samples:
    """Samples that fit a model: `inputs[name]` has shape `(n, ...)`, `labels` has shape `(n, ...)` or is None.

    `slices[name]` (integers, booleans or text of shape `(n,)`) holds each sample's group. `clusters` (same types and shape)
    holds each sample's cluster key, such as a patient; None if the job names no `data.groups`. `feeds` makes the model's inputs
    from `inputs`; None if they are the same. `steps` samples in a row are the calls of one sequence; None without sequences.
    """

    file: DataFile
    inputs: Arrays
    labels: NDArray[Any] | None
    slices: Arrays = field(default_factory=dict)
    clusters: NDArray[Any] | None = None
    feeds: Feeds | None = None
    steps: int | None = None

    def __len__(self) -> int:
        return self.file.rows

    def batches(self, size: int, order: Iterable[int] | None = None) -> Iterator[Feed]:
        """Yield the model's inputs for at most `size` samples, in order, or in the `order` of their numbers from 0."""
        for number in range(-(-len(self) // size)) if order is None else order:
            start = number * size
            yield self.feed({name: array[start : start + size] for name, array in self.inputs.items()})

    def feed(self, rows: Arrays) -> Feed:
        """Return the model's inputs for rows of samples, each array of shape `(rows, ...)`."""
        return self.feeds.feed(rows) if self.feeds else plain_feed(rows)


def rows_of(batch: Arrays) -> int:
    """Return the number of samples in a model's inputs, which lie along axis 0 unless it is a `Feed`."""
    return batch.rows if isinstance(batch, Feed) else len(next(iter(batch.values())))


def part_of(batch: Arrays, start: int, stop: int) -> Arrays:
    """Return a model's inputs for the samples of a batch from `start` to `stop`."""
    if not isinstance(batch, Feed):
        return {name: array[start:stop] for name, array in batch.items()}
    parts = {
        name: array if (axis := batch.axes[name]) is None else array[(slice(None),) * axis + (slice(start, stop),)]
        for name, array in batch.items()
    }
    return Feed(parts, rows=min(stop, batch.rows) - start, axes=batch.axes)


def plain_feed(arrays: Arrays) -> Feed:
    """Return inputs that all have the samples along axis 0."""
    return Feed(arrays, rows=len(next(iter(arrays.values()))), axes=dict.fromkeys(arrays, 0))


def load_samples(
    path: Path,
    model_inputs: tuple[TensorSpec, ...] | Feeds,
    *,
    label: str,
    role: str,
    slices: tuple[str, ...] = (),
    groups: str | None = None,
    ignore: tuple[str, ...] = (),
) -> Samples:
    """Read a data file and check that its arrays fit the model's inputs.

    `role` (calibration, evaluation, traffic) names the file in errors. Label, slices and groups are optional here. Arrays
    named in `ignore` are dropped.

    Raises:
        DataError: the file is missing, unreadable or empty, or a name, dtype, shape or length does not fit.
    """
    feeds = None if isinstance(model_inputs, tuple) or model_inputs.is_plain else model_inputs
    inputs = model_inputs if isinstance(model_inputs, tuple) else model_inputs.in_files
    arrays = {name: array for name, array in read_arrays(path, role).items() if name not in ignore}
    labels = _as_text(arrays.pop(label)) if label in arrays else None
    sorted_by = {name: _as_groups(arrays.pop(name), name, path, role) for name in slices if name in arrays}
    clusters = _as_groups(arrays.pop(groups), groups, path, role) if groups in arrays else None
    expected = "; ".join(str(spec) for spec in inputs)
    missing = [spec.name for spec in inputs if spec.name not in arrays]
    extra = sorted(set(arrays) - {spec.name for spec in inputs})
    if missing or extra:
        raise DataError(
            found=f"{role} data {path.name} has arrays {sorted(arrays)}"
            + (f", missing {missing}" if missing else "")
            + (f", not inputs of the model: {extra}" if extra else ""),
            expected=f"one array for each input ({expected}) and {label!r}",
            fix="name the arrays like the model's inputs"
            if missing
            else f"add `ignore: [{', '.join(extra)}]` to `data`, name labels in `data.label` and groups in `data.slices` or "
            "`data.groups`, or remove them from the file",
        )
    for spec in inputs:
        if spec.dtype == "str":
            arrays[spec.name] = _as_text(arrays[spec.name])
        _check_array(arrays[spec.name], spec, path, role)
    if labels is not None and labels.ndim == 0:
        raise DataError(
            found=f"{role} data {path.name}: {label!r} is a single value",
            expected="one label per sample, along axis 0",
            fix="write the labels as an array",
        )
    others = sorted_by | ({label: labels} if labels is not None else {})
    if groups is not None and clusters is not None:
        others[groups] = clusters
    lengths = {name: len(array) for name, array in (arrays | others).items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            found=f"{role} data {path.name} has arrays of lengths {lengths}",
            expected="the same number of samples in every array",
            fix="write all arrays from the same samples",
        )
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise DataError(
            found=f"{role} data {path.name} has no samples",
            expected="at least one sample",
            fix="write samples into the file",
        )
    # Results depend on what the model is fed, so every key that has the file's digest must depend on it too.
    digest = digest_values(digest_file(path), feeds.key) if feeds else digest_file(path)
    return Samples(DataFile(path, digest, rows), arrays, labels, sorted_by, clusters, feeds)


def check_evaluation(samples: Samples, spec: LabelSpec, *, metric: str, label: str) -> None:
    """Check that no input value is NaN or Inf, and that the labels exist and suit the metric.

    Raises:
        DataError: an input is not finite, or labels are missing, of the wrong kind or out of bounds.
    """
    name = samples.file.path.name
    for key, array in samples.inputs.items():
        if bad := _count_not_finite(array):
            raise DataError(
                found=f"evaluation data {name}: NaN or Inf in input {key!r} of {bad} samples",
                expected="finite values",
                fix="drop or repair those samples",
            )
    if samples.labels is not None:
        check_labels(samples.labels, spec, data=name, label=label, metric=metric)
    elif spec.required:
        raise DataError(
            found=f"evaluation data {name} has no array {label!r}",
            expected=f"labels, which the metric {metric!r} needs",
            fix="add the labels, set `data.label`, or use the metric `agreement` or `sqnr`, which need no labels",
        )


def _count_not_finite(array: NDArray[Any]) -> int:
    """Count the samples with NaN or Inf, one at a time, because a mask of a large array is large too."""
    return sum(not np.isfinite(sample).all() for sample in array) if array.dtype.kind == "f" else 0


def read_arrays(path: Path, role: str) -> Arrays:
    """Read all arrays (or columns) of a data file by name; `role` names the file in errors.

    Raises:
        DataError: the file is missing or unreadable.
    """
    if not path.is_file():
        raise DataError(
            found=f"{role} data {path}: {'a folder' if path.is_dir() else 'no such file'}",
            expected="an .npz or .parquet file",
            fix="correct the path in `data`",
        )
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DataError(
            found=f"{role} data {path.name} has the suffix {path.suffix!r}: {kind_of_file(path)}",
            expected=".npz or .parquet",
            fix="write the arrays with numpy.savez('data.npz', x=..., label=...), or a table with pandas' to_parquet",
        )
    _check_kind(path, role)
    try:
        return readers[path.suffix](path)
    except Exception as error:  # numpy, zipfile, zlib and pyarrow raise a dozen unrelated classes for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            found=f"{role} data {path.name} cannot be read as {path.suffix[1:]}: {reason}",
            expected="an intact file of the type that its suffix states, without object arrays",
            fix="write the file again with numpy.savez or a Parquet writer",
        ) from error


def _check_kind(path: Path, role: str) -> None:
    """Refuse a file that does not match its suffix: the libraries' own errors speak of pickles and footers."""
    name, magic = {".npz": ("npz archive", "zip archive"), ".parquet": ("Parquet file", "Parquet file")}[path.suffix]
    kind = kind_of_file(path)
    if not kind.endswith(magic):
        expected = f"a {name}" if name[0] == "P" else f"an {name}"
        raise DataError(
            found=f"{role} data {path.name} is {kind}, not {expected}",
            expected=f"{expected}, as its suffix states",
            fix="write the file again with numpy.savez or a Parquet writer, or correct its suffix",
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
    table = pyarrow.parquet.read_table(path)
    return {name: _column(table.column(name).combine_chunks()) for name in table.column_names}


def _check_fits(declared: int) -> None:
    """Raise if the declared size in bytes exceeds this machine's memory: a few bytes may unpack to any size."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if declared > memory:
        raise ValueError(f"{declared / 1e9:.3g} GB when unpacked, and this machine has {memory / 1e9:.3g} GB of memory")


def _column(array: Any) -> NDArray[Any]:
    """Convert an Arrow array to numpy with its own dtype; lists of equal length become further axes."""
    from pyarrow import compute, types

    if array.null_count:
        raise ValueError(f"{array.null_count} nulls")
    kind = array.type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    lengths = compute.list_value_length(array).unique().to_pylist()
    if len(lengths) > 1:
        raise ValueError(f"lists of lengths {sorted(lengths)[:5]}")
    inner = _column(array.flatten())
    return inner.reshape(len(array), *(lengths or [0]), *inner.shape[1:])


def _as_text(array: NDArray[Any]) -> NDArray[Any]:
    """Convert Python strings, which Parquet returns, to a numpy text array; return other arrays unchanged."""
    is_text = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    return array.astype(str) if is_text else array


def _as_groups(array: NDArray[Any], name: str, path: Path, role: str) -> NDArray[Any]:
    """Return a slice, or the groups, as integers, booleans or text of shape `(n,)`; raise `DataError` for anything else."""
    array = _as_text(array)
    if array.ndim != 1 or array.dtype.kind not in "iubU":
        raise DataError(
            found=f"{role} data {path.name}: {name!r} is {array.dtype} of shape {array.shape}",
            expected="one integer, boolean or text per sample",
            fix="write the groups as a one-dimensional array, or remove the name from `data.slices` or `data.groups`",
        )
    return array


def _check_array(array: NDArray[Any], spec: TensorSpec, path: Path, role: str) -> None:
    if array.dtype.kind != "U" if spec.dtype == "str" else array.dtype != np.dtype(spec.dtype):
        raise DataError(
            found=f"{role} data {path.name}: {spec.name} is {array.dtype}",
            expected=f"{spec}",
            fix=dtype_advice(array, spec.dtype),
        )
    fits = array.ndim == len(spec.shape) and all(
        not isinstance(axis, int) or axis == size for axis, size in zip(spec.shape[1:], array.shape[1:], strict=True)
    )
    if not fits:
        raise DataError(
            found=f"{role} data {path.name}: {spec.name} has shape {array.shape}",
            expected=f"{spec}, with samples along axis 0",
            fix=shape_advice(array.shape, spec.shape),
        )

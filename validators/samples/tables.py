"""Table files: `.parquet`, `.csv` and `.arrow`, their columns as arrays by name, and inputs that are made of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError, JobError
from validators.samples.array_files import Arrays, Unreadable, check_fits
from validators.samples.data_advice import columns_advice, dtype_advice, kind_of_file, listed

if TYPE_CHECKING:
    from validators.samples.datasets import TensorSpec

# Smallest size of one value of a column.
LEAST_BYTES = 1
# Length of a header that is searched for its separator.
HEAD_CHARACTERS = 65536
SEPARATORS = (";", "\t", "|")
# Advice for values that are missing: any value in their place would be invented.
MISSING = "find out why values are missing, and write the samples again as the model gets them in production"


def read_parquet(path: Path) -> Arrays:
    """Read the columns of a Parquet file."""
    import pyarrow.parquet  # 0.3 s to import; most jobs use .npz

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        # Parquet stores repeated values once, but reading expands them.
        check_fits(sum(max(column.total_uncompressed_size, column.num_values * LEAST_BYTES) for column in columns))
    return _of_table(pyarrow.parquet.read_table(path))


def read_csv(path: Path) -> Arrays:
    """Read the columns of a CSV file in UTF-8, separated by commas, with their names in the first line."""
    # A number takes two characters or more, and 8 bytes when it is read.
    check_fits(4 * path.stat().st_size)
    _check_separator(path)
    table = csv_table(path)
    if all(_is_number(name) for name in table.column_names):
        raise Unreadable(
            "its first line has numbers in place of names", "add a first line with the names of the columns"
        )
    # Without rows, the columns have no type that could be checked.
    if not table.num_rows:
        raise ValueError("it has a header and no rows")
    return _of_table(table)


def csv_table(path: Path) -> Any:
    """Return the `pyarrow.Table` of a CSV file."""
    from pyarrow import csv

    # Without this option, a quoted line break at the border of two blocks ends a row.
    return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))


def _check_separator(path: Path) -> None:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline(HEAD_CHARACTERS)
    other = next((mark for mark in SEPARATORS if mark in head and "," not in head), None)
    if other is not None:
        raise Unreadable(
            f"its columns are separated by {other!r}",
            "write the table again separated by commas, such as with pandas' to_csv; mind numbers with decimal commas",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_arrow(path: Path) -> Arrays:
    """Read the columns of an Arrow file or stream."""
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
        raise Unreadable(f"two columns are named {duplicate!r}", "write each column under a name of its own")
    columns = {name: _named_column(table, name) for name in table.column_names}
    parts: dict[str, int] = Counter(name.rpartition(".")[0] for name in columns if name.rpartition(".")[2].isdecimal())
    for name, count in parts.items():
        names = [f"{name}.{number}" for number in range(count)]
        if name and name not in columns and all(one in columns for one in names):
            columns[name] = _stacked(names, [columns.pop(one) for one in names])
    return columns


def _stacked(names: list[str], parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return columns of numbers, or of text, side by side."""
    other = next((index for index, part in enumerate(parts) if part.dtype.kind == "O"), None)
    if other is not None and not all(part.dtype.kind == "O" for part in parts):
        text = next((value for value in parts[other] if not (isinstance(value, str) and _is_number(value))), "")
        raise Unreadable(
            f"column {names[other]!r} has text such as {str(text)[:40]!r} among columns of numbers",
            MISSING,
        )
    return np.stack(parts, axis=1)


def _named_column(table: Any, name: str) -> NDArray[Any]:
    """Convert a column, and name it in errors."""
    try:
        return _column(table.column(name).combine_chunks())
    except ValueError as error:
        raise Unreadable(
            f"column {name!r}: {error}", getattr(error, "fix", f"write the column {name!r} again")
        ) from error


def _column(array: Any) -> NDArray[Any]:
    """Convert an Arrow array to numpy with its own dtype; lists become further axes, padded and masked if lengths differ."""
    from pyarrow import compute, types

    if array.null_count:
        raise Unreadable(f"{array.null_count} missing values", MISSING)
    kind = array.type
    if types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        raise Unreadable(f"a column of {str(kind)[:60]}", "write arrays of numbers, decoded as the model gets them")
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    inner = _column(array.flatten())
    lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
    if len(set(lengths.tolist())) <= 1:
        return inner.reshape(len(array), *(lengths[:1] if len(array) else [0]), *inner.shape[1:])
    longest = int(lengths.max())
    check_fits(len(array) * longest * int(np.prod(inner.shape[1:], dtype=np.int64)) * inner.itemsize)
    held = np.arange(longest) < lengths[:, None]
    if inner.dtype.kind == "O":
        raise ValueError(f"lists of text of lengths {sorted(set(lengths.tolist()))[:5]}")
    padded = np.zeros((*held.shape, *inner.shape[1:]), inner.dtype)
    padded[held] = np.ma.filled(inner, 0)
    mask = np.ones(padded.shape, np.bool_)
    mask[held] = np.ma.getmaskarray(inner)
    return np.ma.MaskedArray(padded, mask)


def is_numbers(array: NDArray[Any]) -> bool:
    """Return True for a single column of numbers."""
    return array.ndim == 1 and array.dtype.kind in "biuf"


def take_columns(
    arrays: Arrays, columns: str | None, inputs: tuple[TensorSpec, ...], path: Path, role: str
) -> list[str]:
    """Replace the columns of numbers that are no inputs by the input `columns`, if that is missing; return their names.

    Raises:
        JobError: there is no such input of two axes.
        DataError: there are more or fewer columns than it has numbers.
    """
    if columns is None or columns in arrays:
        return []
    spec = next((spec for spec in inputs if spec.name == columns), None)
    if spec is None or len(spec.shape) != 2:
        raise JobError(
            found=f"`data.columns: {columns}` for a model with the inputs {'; '.join(map(str, inputs))}",
            expected="the name of an input with two axes: samples and numbers",
            fix="correct the name",
        )
    own = {one.name for one in inputs}
    names = [name for name, array in arrays.items() if name not in own and is_numbers(array)]
    if isinstance(spec.shape[1], int) and len(names) != spec.shape[1]:
        raise DataError(
            found=f"{role} data {path.name} has {len(names)} columns of numbers for {columns!r}: {listed(names)}",
            expected=f"{spec.shape[1]} columns, which make the input {spec}",
            fix=columns_advice(columns, spec.shape[1], names)
            or "write the missing columns too, in the order of the model",
        )
    if names:
        arrays[columns] = np.stack([arrays.pop(name) for name in names], axis=1)
    return names


def typed_columns(array: NDArray[Any], spec: TensorSpec, columns: Sequence[str], path: Path, role: str) -> NDArray[Any]:
    """Return numbers of a text file with the input's dtype, if it represents them; others as they are.

    Raises:
        DataError: a number is beyond a float type, where it would become infinite.
    """
    wanted = np.dtype(spec.dtype)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and wanted.kind in "iub"):
        return array
    with np.errstate(over="ignore"):
        typed = array.astype(wanted)
    if wanted.kind != "f":
        return typed if np.array_equal(typed, array) else array
    beyond = np.argwhere(np.isinf(typed) & np.isfinite(array))
    if len(beyond):
        row, *places = beyond[0].tolist()
        column = columns[places[0]] if columns else ".".join([spec.name, *map(str, places)])
        raise DataError(
            found=f"{role} data {path.name}: {array[tuple(beyond[0])]:.6g} in column {column!r} of row {row + 1} is beyond "
            f"{spec.dtype}",
            expected=f"{spec}, at most {float(np.finfo(wanted).max):.3g} (the row below the header is row 1)",
            fix=dtype_advice(array, spec.dtype),
        )
    return typed

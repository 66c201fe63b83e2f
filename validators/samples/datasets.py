"""Data files checked against a model's inputs: names, dtypes, shapes, lengths, labels. Other checks judge their content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.digests import digest_values
from validators.errors import DataError
from validators.records.run import DataFile
from validators.samples.data_advice import columns_advice, dtype_advice, fits_axes, listed, name_advice, shape_advice
from validators.samples.labels import LabelSpec, check_class_type, check_labels
from validators.samples.readers import Arrays as Arrays
from validators.samples.readers import digest_data, holds_text_alone, read_arrays
from validators.samples.tables import is_numbers, take_columns, typed_columns

if TYPE_CHECKING:
    from validators.samples.feeds import Feeds


class Feed(Arrays):
    """Inputs of a model by name for `rows` samples, along the axis that `axes` has of each input; None for a constant."""

    def __init__(self, arrays: Arrays, *, rows: int, axes: Mapping[str, int | None]) -> None:
        super().__init__(arrays)
        self.rows = rows
        self.axes = axes


# Fill of the padding in labels of differing length, and the input that tells padding apart.
PADDED_LABEL = -100
MASK = "attention_mask"


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

    @property
    def own_inputs(self) -> Arrays:
        """Inputs without states, whose values are the source's."""
        return {name: array for name, array in self.inputs.items() if not self.feeds or name not in self.feeds.states}

    def batches(self, size: int, rows: NDArray[np.intp] | None = None) -> Iterator[Feed]:
        """Yield the model's inputs for at most `size` samples, of all in order, or of `rows`, numbered from 0."""
        for start in range(0, len(self) if rows is None else len(rows), size):
            chosen = slice(start, start + size) if rows is None else rows[start : start + size]
            yield self.feed({name: array[chosen] for name, array in self.inputs.items()})

    def feed(self, rows: Arrays) -> Feed:
        """Return the model's inputs for rows of samples, each array of shape `(rows, ...)`."""
        if self.feeds:
            return self.feeds.feed(rows)
        return Feed(rows, rows=rows_of(rows), axes=dict.fromkeys(rows, 0))


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


def load_samples(
    path: Path,
    model_inputs: tuple[TensorSpec, ...] | Feeds,
    *,
    label: str,
    role: str,
    slices: tuple[str, ...] = (),
    groups: str | None = None,
    ignore: tuple[str, ...] = (),
    columns: str | None = None,
    digest: str | None = None,
) -> Samples:
    """Read a data file and check that its arrays fit the model's inputs.

    `digest` is that of the files which it was made from; None for its own.
    `role` (calibration, evaluation, traffic) names the file in errors. Label, slices and groups are optional here. Arrays
    named in `ignore` are dropped. Other columns of numbers make the input `columns`, unless the file has it.

    Raises:
        DataError: the file is missing, unreadable or empty, or a name, dtype, shape or length does not fit.
        JobError: there is no input `columns`.
    """
    feeds = None if isinstance(model_inputs, tuple) or model_inputs.is_plain else model_inputs
    inputs = model_inputs if isinstance(model_inputs, tuple) else model_inputs.in_files
    arrays = {name: array for name, array in read_arrays(path, role).items() if name not in ignore}
    labels = _filled_label(_as_text(arrays.pop(label))) if label in arrays else None
    _check_lengths(arrays, inputs, path, role)
    _add_mask(arrays, inputs)
    sorted_by = {name: _as_groups(arrays.pop(name), name, path, role) for name in slices if name in arrays}
    clusters = _as_groups(arrays.pop(groups), groups, path, role) if groups in arrays else None
    taken = take_columns(arrays, columns, inputs, path, role)
    _check_names(arrays, inputs, label, path, role, has_labels=labels is not None)
    is_text = holds_text_alone(path)
    for spec in inputs:
        if spec.dtype == "str":
            arrays[spec.name] = _as_text(arrays[spec.name])
        elif is_text or (taken and spec.name == columns):
            arrays[spec.name] = typed_columns(arrays[spec.name], spec, taken, path, role)
        # A column of a table, such as skl2onnx makes an input of each.
        if arrays[spec.name].ndim == 1 and spec.shape[1:] == (1,):
            arrays[spec.name] = arrays[spec.name][:, np.newaxis]
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
    digest = digest or digest_data(path)
    digest = digest_values(digest, feeds.key) if feeds else digest
    digest = digest_values(digest, columns, taken) if taken else digest
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
                fix="find out where the values come from, and write those samples again as production sends them",
            )
    if samples.labels is not None:
        check_labels(samples.labels, spec, data=name, label=label, metric=metric)
    elif spec.required:
        raise DataError(
            found=f"evaluation data {name} has no array {label!r}",
            expected=f"labels, which the metric {metric!r} needs",
            fix="add the labels, set `data.label`, or use the metric `agreement` or `sqnr`, which need no labels",
        )


def check_calibration_labels(samples: Samples, spec: LabelSpec, label: str) -> None:
    """Check that labels of calibration data, if there are any, are class indices where those of the evaluation data are.

    Labels of another type would be compared with none, and the check of their coverage skipped.

    Raises:
        DataError: they have another type or shape.
    """
    if samples.labels is not None and spec.kind == "classes":
        check_class_type(samples.labels, f"calibration data {samples.file.path.name}: {label!r}", label)


def _count_not_finite(array: NDArray[Any]) -> int:
    """Count the samples with NaN or Inf, one at a time, because a mask of a large array is large too."""
    return sum(not np.isfinite(sample).all() for sample in array) if array.dtype.kind == "f" else 0


def _filled_label(array: NDArray[Any]) -> NDArray[Any]:
    """Return labels with the padding of lists of differing length as -100, or NaN for floats."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    fill: Any = np.nan if array.dtype.kind == "f" else PADDED_LABEL
    return np.asarray(np.ma.filled(array.astype(np.int64 if array.dtype.kind == "u" else array.dtype), fill))


def _check_lengths(arrays: Arrays, inputs: tuple[TensorSpec, ...], path: Path, role: str) -> None:
    """Refuse lists of differing length for an axis of fixed size, unless the model can tell padding from values."""
    if any(spec.name == MASK for spec in inputs):
        return
    for spec in inputs:
        array = arrays.get(spec.name)
        if not isinstance(array, np.ma.MaskedArray) or len(spec.shape) < 2 or not isinstance(spec.shape[1], int):
            continue
        held = ~np.ma.getmaskarray(array).reshape(len(array), array.shape[1], -1).all(axis=2)
        lengths = held.sum(axis=1)
        raise DataError(
            found=f"{role} data {path.name}: {spec.name} has lists of {lengths.min()} to {lengths.max()} values",
            expected=f"{spec}",
            fix="write each sample in the length of the input as production does; this model takes padding for values",
        )


def _add_mask(arrays: Arrays, inputs: tuple[TensorSpec, ...]) -> None:
    """Fill the padding of lists of differing length with zeros, and make the `attention_mask` that the model asks for."""
    ragged = {name: array for name, array in arrays.items() if isinstance(array, np.ma.MaskedArray)}
    wanted = next((spec for spec in inputs if spec.name == MASK and spec.name not in arrays), None)
    if wanted and (rows := next((array for array in ragged.values() if array.ndim == 2), None)) is not None:
        arrays[MASK] = (~np.ma.getmaskarray(rows)).astype(wanted.dtype)
    arrays |= {name: np.asarray(np.ma.filled(array, 0)) for name, array in ragged.items()}


def _check_names(
    arrays: Arrays, inputs: tuple[TensorSpec, ...], label: str, path: Path, role: str, *, has_labels: bool
) -> None:
    """Refuse arrays that are no inputs, and inputs that are missing."""
    missing = [spec for spec in inputs if spec.name not in arrays]
    extra = sorted(set(arrays) - {spec.name for spec in inputs})
    if not missing and not extra:
        return
    numbers = [name for name, array in arrays.items() if name in extra and is_numbers(array)]
    wide = next((spec for spec in missing if len(spec.shape) == 2 and isinstance(spec.shape[1], int)), None)
    advice = ""
    named = ""
    if wide and wide.shape[1] != 1 and len(numbers) > 1:
        named = f"; in a table, the columns '{wide.name}.0', '{wide.name}.1', ... are the input {wide.name!r}"
        if not any(name.startswith(f"{wide.name}.") for name in numbers):
            advice = columns_advice(wide.name, int(wide.shape[1] or 0), numbers)
    raise DataError(
        found=f"{role} data {path.name} has arrays {listed(sorted(arrays))}"
        + (f", missing {[spec.name for spec in missing]}" if missing else "")
        + (f", not inputs of the model: {listed(extra)}" if extra else ""),
        expected=f"one array for each input ({'; '.join(map(str, inputs))}) and {label!r}{named}",
        fix=advice or name_advice([spec.name for spec in missing], extra, None if has_labels else label),
    )


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
    if not fits_axes(array.shape, spec.shape):
        raise DataError(
            found=f"{role} data {path.name}: {spec.name} has shape {array.shape}",
            expected=f"{spec}, with samples along axis 0",
            fix=shape_advice(array.shape, spec.shape),
        )

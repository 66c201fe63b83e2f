"""The job's data: paths of the samples, bounds on the calibration data, and libraries that the source needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from validators.errors import JobError
from validators.job.settings_base import FunctionName, Settings
from validators.untrusted.s3_uris import SCHEME, S3Uri, parse_s3_uri

# Limits of Linux; a longer path raises OSError wherever it is used.
PATH_BYTES, NAME_BYTES = 4095, 255


def read_place(value: object) -> Path | S3Uri:
    """Return a value as a local path or an S3 URI; a `Path` of `s3://...` would lose a slash.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, Path | S3Uri):
        return value
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("expected a path or s3://bucket/key")
    if len(value.encode()) > PATH_BYTES or any(len(name.encode()) > NAME_BYTES for name in value.split("/")):
        raise ValueError(f"expected a path of at most {PATH_BYTES} bytes, with names of at most {NAME_BYTES}")
    try:
        return parse_s3_uri(value) if value.startswith(SCHEME) else Path(value)
    except JobError as error:
        raise ValueError(f"{error.found}; expected {error.expected}") from error


# A single string type in the form and the schema, not a union of two.
DataPlace = Annotated[
    Path | S3Uri,
    PlainValidator(read_place, json_schema_input_type=str),
    PlainSerializer(str, return_type=str),
]


class OperatorLibrary(Settings):
    """A library of custom operators that the source needs. Every session of the run and every consumer executes its code."""

    file: Path | None = None
    """A shared library, relative to the job file; a promoted variant includes a copy of it."""
    package: str | None = None
    """An installed Python package whose `get_library_path()` returns the library's path; consumers must install it too."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> OperatorLibrary:
        if (self.file is None) == (self.package is None):
            raise ValueError("give either `file` or `package`")
        return self


def _left_out(schema: dict[str, Any]) -> None:
    """Describe a key that may be left out as if it could not be null: a form shows one field, not a choice."""
    del schema["default"]
    kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
    schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


class Data(Settings):
    """The samples: `.npz`, `.parquet`, `.csv` or `.arrow` files, or folders of them, relative to the job file or at
    `s3://bucket/key`. With `read`, also folders of other files.

    A file holds one array (or column) for each input of the model, with the input's name and samples along axis 0, and one
    for the label.
    """

    calibration: Annotated[DataPlace | None, Field(json_schema_extra=_left_out)] = None
    """Samples that determine quantization ranges, such as `/data/fraud/calibration.npz`. Labels are optional and used to judge
    coverage. May be left out where every candidate is a file of another tool."""
    evaluation: DataPlace
    """Samples on which accuracy is measured, such as `/data/fraud/evaluation.npz`; never used for anything else."""
    label: str = "label"
    """Name of the array or column that holds the label: a class index; for `mse`, `mae` and `r2` target values; for `cosine` an
    embedding; for `spearman` a number; for `wer` and `cer` the text or its token ids; for `perplexity` and `greedy_match`
    the token ids of the window itself, with -100 for tokens that do not count."""
    slices: tuple[str, ...] = ()
    """Names of arrays or columns that divide samples into slices, such as language or customer: integers or text. Calibration
    data must cover each slice of the reference."""
    groups: str | None = None
    """Name of the array or column of sample groups, such as patient, video or document: integers or text. Samples of one group
    resemble each other. So gates count groups (clusters) in place of samples, a group is never split between the samples that
    choose and those that confirm, and no group may be in both calibration and evaluation data. Samples with equal inputs are
    one group without being named; see docs/verdicts.md."""
    traffic: DataPlace | None = None
    """A sample of recent traffic, the reference for the calibration data, such as `/data/fraud/traffic.npz`. Without one, the
    evaluation inputs are used."""
    ignore: tuple[str, ...] = ()
    """Names of arrays or columns to ignore because they are neither inputs, label nor slices, such as `row_id`."""
    columns: str | None = None
    """Name of an input `[samples, numbers]`, such as `x`, that the remaining columns of numbers make, in the order of the table
    and in the type of the input. Without it, the columns `x.0`, `x.1`, ... make the input `x`."""
    read: FunctionName | None = None
    """`module:function`, such as `prepare:picture`, that reads the files of folders of pictures or sounds: it gets the path of
    one file and returns a dictionary with an array for each input, without the axis of samples. Labels are further entries or
    columns of `metadata.csv` in the folder, which has a column `file_name`. See `code`."""

    @model_validator(mode="after")
    def _names_differ(self) -> Data:
        inputs = () if self.columns is None else (self.columns,)
        names = (self.label, *self.slices, *self.group_names, *self.ignore, *inputs)
        if len(set(names)) < len(names):
            raise ValueError("the label, the groups, `columns`, each slice and each ignored array need different names")
        return self

    @property
    def group_names(self) -> tuple[str, ...]:
        """Name of the array of groups, as a tuple that is empty without one."""
        return () if self.groups is None else (self.groups,)


class InputSettings(Settings):
    """An input of the model that is no array with the samples along axis 0. A constant has no other key."""

    constant: bool | int | float | str | tuple[bool | int | float | str, ...] | None = None
    """Value of the input in every request, such as a sample rate or a flag: one for all its entries, or a list of all."""
    batch_axis: Annotated[int, Field(ge=1)] | None = None
    """Axis of the samples, such as 1 for a recurrent state `[layers, batch, size]`. Data files have them along axis 0:
    `[samples, layers, size]`."""
    state_from: str | None = None
    """Output whose value is this input of the next call; the first call gets zeros. A sample is then a sequence of calls: other
    inputs have one more axis in the data files, `[samples, steps, ...]`, and labels one value a step."""

    @model_validator(mode="after")
    def _is_a_constant_or_not(self) -> InputSettings:
        if (self.constant is None) == (self.batch_axis is None and self.state_from is None):
            raise ValueError("give either `constant`, or `batch_axis`, `state_from` or both")
        return self


class TextDecoding(Settings):
    """Decoding of the judged output and the labels into text. Strings are text already; anything else is token ids."""

    decoding: Literal["greedy", "ctc"] = "greedy"
    """`greedy` takes the token with the highest score at each position. `ctc` also merges repeats and drops the blank, in
    outputs alone."""
    vocabulary: Path | None = None
    """A text file with one token per line, in the order of ids from 0, relative to the job file. Without one, each id is a
    separate word."""
    blank: Annotated[int, Field(ge=0)] = 0
    """Id of the CTC blank."""
    skip: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Ids to skip, such as padding, begin and end; -100 is always skipped."""
    separator: str = " "
    """Text between tokens: a space between words, nothing between characters or subwords."""
    space: str = ""
    """Character that represents a space inside tokens, such as `|` or `\u2581`; empty if there is none."""


class CalibrationBounds(Settings):
    """Bounds that calibration data must satisfy to be used as evidence, and settings of the calibration."""

    draws: Annotated[int, Field(ge=0, le=100)] = 0
    """Make the winner again from so many other draws of the calibration samples, with as many samples each, and report how far
    metric and ranges move; 0 to skip it, else at least 3. See docs/calibration-draws.md."""

    min_samples: Annotated[int, Field(ge=1)] = 64
    """Fewest distinct samples."""
    max_duplicates: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of samples that repeat an earlier one."""
    min_leak_p_value: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """Near-duplicates of evaluation samples are a leak if the p-value of their number is below this, given how many the
    evaluation samples have among themselves."""
    max_psi: Annotated[float, Field(gt=0)] = 0.5
    """Largest population stability index of a per-sample statistic against the reference (0.25 is read as a shift)."""
    min_drift_p_value: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """Smallest p-value of a test for drift: Kolmogorov-Smirnov of each statistic after Benjamini-Hochberg correction, and
    maximum mean discrepancy of the representation."""
    max_mmd: Annotated[float, Field(gt=0)] = 0.02
    """Largest squared maximum mean discrepancy between calibration and reference in the model's representation."""
    min_label_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Smallest ratio of the share of a label, or slice, in calibration samples to its share in the reference."""
    min_embedding_coverage: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Smallest share of reference samples that have a calibration sample nearby in the model's representation."""
    max_saturation: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Largest share of a tensor's values on the reference that lie outside the range of the calibration samples."""
    max_clipped_samples: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Largest share of reference samples with such a value in one tensor; a larger share is a warning."""
    model_samples: Annotated[int, Field(ge=0)] = 384
    """Most samples to run through the model for the checks of its tensors, from the calibration data and from the reference
    each; 0 skips those checks."""
    representation: str | None = None
    """Tensor that represents a sample in those checks; null for the input of the last layer with weights."""
    max_memory_mb: Annotated[float, Field(gt=0)] = 2000.0
    """Most memory for activations while ranges are calibrated, beyond the loaded model. Calibration takes several passes if
    they do not fit."""

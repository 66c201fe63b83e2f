"""The job's data: where samples are, what calibration data must satisfy, and which libraries the source needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from validators.errors import JobError
from validators.job.settings_base import Settings
from validators.untrusted.s3_uris import SCHEME, S3Uri, parse_s3_uri


def read_place(value: object) -> Path | S3Uri:
    """A file here or an object on S3; a `Path` of `s3://...` would lose a slash.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Path | S3Uri):
        return value
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a path or s3://bucket/key")
    try:
        return parse_s3_uri(value) if value.startswith(SCHEME) else Path(value)
    except JobError as error:
        raise ValueError(f"{error.found}; expected {error.expected}") from error


# One string in the form and the schema, not a choice of two.
Place = Annotated[
    Path | S3Uri,
    PlainValidator(read_place, json_schema_input_type=str),
    PlainSerializer(str, return_type=str),
]


class OperatorLibrary(Settings):
    """A library of custom operators that the source needs: code, which every session of the run and each consumer runs."""

    file: Path | None = None
    """A shared library, relative to the job file; a promoted variant has a copy of it."""
    package: str | None = None
    """An installed Python package whose `get_library_path()` says where its library is; consumers need it installed too."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> OperatorLibrary:
        if (self.file is None) == (self.package is None):
            raise ValueError("either `file` or `package`")
        return self


class Data(Settings):
    """Where the samples are: `.npz` or `.parquet` files, relative to the job file or at `s3://bucket/key`.

    A file holds one array (or column) for each input of the model, named like it, with samples along axis 0, and one
    for the label.
    """

    calibration: Place
    """Samples from which quantization ranges are read; labels are optional and used to judge coverage."""
    evaluation: Place
    """Samples on which accuracy is measured; never used for anything else."""
    traffic: Place | None = None
    """A sample of recent traffic; calibration data is held against it. Without one, the evaluation inputs stand in."""
    label: str = "label"
    """Name of the array or column that holds the label: a class index; for `mse`, `mae` and `r2` target values; for `cosine` an
    embedding; for `spearman` a number; for `wer` and `cer` the text or its token ids; for `perplexity` the token ids of the
    window itself; -100 where a token does not count."""
    slices: tuple[str, ...] = ()
    """Names of arrays or columns that sort samples into groups, such as language or customer: integers or text. Calibration
    data must cover each group of the reference."""
    ignore: tuple[str, ...] = ()
    """Names of arrays or columns that are neither inputs, label nor slices and are left alone, such as ids."""

    groups: str | None = None
    """Name of the array or column that says which samples belong together, such as patient, video or document: integers or
    text. Samples of one group resemble each other, so gates count groups (clusters) in place of samples, a group is never split
    between the samples that choose and those that confirm, and none may be in both calibration and evaluation data."""

    @model_validator(mode="after")
    def _names_differ(self) -> Data:
        names = (self.label, *self.slices, *self.group_names, *self.ignore)
        if len(set(names)) < len(names):
            raise ValueError("the label, the groups, each slice and each ignored array have names of their own")
        return self

    @property
    def group_names(self) -> tuple[str, ...]:
        """The name of the array of groups, if there is one."""
        return () if self.groups is None else (self.groups,)


class TextDecoding(Settings):
    """How the judged output and the labels become text: strings are taken as they are, the rest is token ids."""

    decoding: Literal["greedy", "ctc"] = "greedy"
    """`greedy` takes the best token at each place of scores; `ctc` takes runs of one token as one, then leaves out the blank,
    in outputs alone."""
    vocabulary: Path | None = None
    """A text file with one token a line, in the order of ids from 0, relative to the job file. Without one, each id is a word
    of its own."""
    blank: Annotated[int, Field(ge=0)] = 0
    """Id of the CTC blank."""
    skip: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Ids that make no text, such as padding, begin and end; -100 never does."""
    separator: str = " "
    """What is put between tokens: a space between words, nothing between characters or pieces of words."""
    space: str = ""
    """What stands for a space inside tokens, such as `|` or `\u2581`; empty where nothing does."""


class CalibrationBounds(Settings):
    """What calibration data must satisfy to be used as evidence."""

    min_samples: Annotated[int, Field(ge=1)] = 64
    """Fewest distinct samples."""
    max_duplicates: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of samples that repeat an earlier one."""
    min_leak_p_value: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """Near-duplicates of evaluation samples are a leak when this many have a smaller chance than this, going by how many the
    evaluation samples have among themselves."""
    max_psi: Annotated[float, Field(gt=0)] = 0.5
    """Largest population stability index of a per-sample statistic against the reference (0.25 is read as a shift)."""
    min_drift_p_value: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """Smallest p-value of a test for drift: Kolmogorov-Smirnov of each statistic after Benjamini-Hochberg correction, and
    maximum mean discrepancy of the representation."""
    max_mmd: Annotated[float, Field(gt=0)] = 0.02
    """Largest squared maximum mean discrepancy between calibration and reference in the model's representation."""
    min_label_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """A label's share of calibration samples must be at least this fraction of its share of the reference; slices too."""
    min_embedding_coverage: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Smallest share of reference samples that have a calibration sample near them in the model's representation."""
    max_saturation: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Largest share of a tensor's values on the reference that lie outside the range of the calibration samples."""
    max_clipped_samples: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of reference samples with such a value in one tensor, beyond which there is a warning."""
    model_samples: Annotated[int, Field(ge=0)] = 384
    """Most samples, of calibration data and of the reference each, that are run through the model for the checks that look at
    its tensors; 0 leaves those checks out."""
    representation: str | None = None
    """The tensor that stands for a sample in them; what the last layer with weights reads when null."""
    max_memory_mb: Annotated[float, Field(gt=0)] = 2000.0
    """Most memory that activations may take while ranges are calibrated, beyond the loaded model; what does not fit is looked
    at in several passes."""

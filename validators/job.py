"""The job: one YAML file, read once into frozen settings that every step receives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from validators.errors import JobError
from validators.recipe import DEFAULT_CANDIDATES, Target, decode

MetricName = Literal["accuracy", "top5", "mse", "mae", "agreement", "perplexity"]


class Settings(BaseModel):
    """A frozen part of the job that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


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
    """Where the samples are: `.npz` or `.parquet` files, relative to the job file.

    A file holds one array (or column) for each input of the model, named like it, with samples along axis 0, and one
    for the label.
    """

    calibration: Path
    """Samples from which quantization ranges are read; labels are optional and used to judge coverage."""
    evaluation: Path
    """Samples on which accuracy is measured; never used for anything else."""
    traffic: Path | None = None
    """A sample of recent traffic; calibration data is held against it. Without one, the evaluation inputs stand in."""
    label: str = "label"
    """Name of the array or column that holds the label: a class index, for `mse` and `mae` the target value, for `perplexity`
    the token ids of the window itself, -100 where one does not count."""
    slices: tuple[str, ...] = ()
    """Names of arrays or columns that sort samples into groups, such as language or customer: integers or text. Calibration
    data must cover each group of the reference."""

    @model_validator(mode="after")
    def _names_differ(self) -> Data:
        names = (self.label, *self.slices)
        if len(set(names)) < len(names):
            raise ValueError("the label and each slice have names of their own")
        return self


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


class Gates(Settings):
    """What a variant must satisfy to be promoted. A gate that is null is not applied."""

    max_drop: Annotated[float, Field(ge=0)] = 0.02
    """Largest drop of the metric against the baseline, in the metric's own units (0.02 of accuracy is 2 points). For perplexity
    it is a rise of the loss in nats a token: 0.02 allows exp(0.02), 2 % more perplexity."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """One-sided confidence of every gate that rests on samples."""
    min_speedup: Annotated[float, Field(gt=0)] | None = 1.05
    """Smallest ratio of the baseline's p50 latency to the variant's, at the first batch size."""
    min_coverage: Annotated[float, Field(ge=0, le=1)] | None = 0.5
    """Smallest share of multiply-accumulates in low-precision kernels, for candidates below 16-bit."""
    max_size_ratio: Annotated[float, Field(gt=0)] | None = 1.05
    """Largest ratio of the variant's bytes to the baseline's."""


class Measurement(Settings):
    """How latency is measured: baseline and variant in turn, each alone in its process."""

    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1,)
    """Batch sizes; gates and objective look at the first."""
    dims: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Sizes of the model's other dynamic axes by name, such as `sequence: 16`; an axis not named keeps the data's size."""
    launches: Annotated[int, Field(ge=1, le=20)] = 2
    """How many times both processes are started afresh."""
    blocks: Annotated[int, Field(ge=1, le=100)] = 4
    """Pairs of blocks in each launch; `launches * blocks` pairs give the ratio and its interval."""
    block_seconds: Annotated[float, Field(gt=0, le=60)] = 0.25
    """Shortest duration of a block, in seconds."""
    block_count: Annotated[int, Field(ge=1)] = 20
    """Fewest requests in a block."""
    warmup_seconds: Annotated[float, Field(ge=0, le=60)] = 0.3
    """Requests before the first block of a launch, in seconds, not counted."""
    max_other_load: Annotated[float, Field(gt=0)] | None = 0.15
    """Share of the usable cores that other processes may keep busy during a block; beyond it the block is measured again,
    and after three tries the candidate's latency is refused. null measures whatever else runs."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads inside an operator; 0 takes the cores that the process may use."""

    @model_validator(mode="after")
    def _enough_pairs_for_an_interval(self) -> Measurement:
        if self.launches * self.blocks < 3:
            raise ValueError("launches * blocks must be at least 3: fewer pairs give no interval")
        return self


class Budgets(Settings):
    """What a run may use."""

    seconds: Annotated[float, Field(gt=0)] = 3600.0
    """After this long no further candidate is started; those left are refused as `infrastructure`."""
    recovery: Annotated[int, Field(ge=0)] = 12
    """How many variants of a candidate that fails on accuracy alone are made and evaluated, with some of it left in float; 0
    for none."""


class Job(Settings):
    """The frozen description of a run."""

    source: str
    """`models:/name/version`, `models:/name@alias`, or a path to an ONNX file (then nothing is promoted)."""
    operator_libraries: tuple[OperatorLibrary, ...] = ()
    """Libraries of the custom operators in the source, which are left in float; without one, such a source is refused."""
    target: Target = "ort-cpu"
    """Where the variants will run."""
    data: Data
    """The samples."""
    metric: MetricName = "accuracy"
    """`accuracy` and `top5` for class indices, `mse` and `mae` for values, `agreement` with the baseline's top-1 class,
    `perplexity` of the next token for a language model."""
    output: str | None = None
    """The output that the metric reads; the model's first when null."""
    candidates: Literal["default"] | Annotated[tuple[str, ...], Field(min_length=1)] = "default"
    """`default` for the target's list, or candidate names."""
    gates: Gates = Gates()
    """What must hold for a promotion."""
    calibration: CalibrationBounds = CalibrationBounds()
    """What must hold for the calibration data."""
    measurement: Measurement = Measurement()
    """How latency is measured."""
    objective: Literal["latency", "size"] = "latency"
    """What the best of the passing candidates is best at."""
    budgets: Budgets = Budgets()
    """Limits of the run."""
    seed: Annotated[int, Field(ge=0)] = 7
    """Seed of everything random."""

    @field_validator("candidates")
    @classmethod
    def _names_decode(cls, value: object) -> object:
        if isinstance(value, tuple):
            for name in value:
                try:
                    decode(name)
                except JobError as error:
                    raise ValueError(f"{error.found} does not decode; expected {error.expected}") from error
            if len(set(value)) != len(value):
                raise ValueError("a candidate is named twice")
        return value

    @field_validator("operator_libraries")
    @classmethod
    def _names_of_files_differ(cls, value: tuple[OperatorLibrary, ...]) -> tuple[OperatorLibrary, ...]:
        names = [library.file.name if library.file else library.package for library in value]
        if len(set(names)) < len(names):
            raise ValueError("a library is named twice, or two files have one name: they are kept in one folder")
        return value

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """The candidates to try, in order, `default` resolved."""
        return DEFAULT_CANDIDATES[self.target] if self.candidates == "default" else self.candidates

    @property
    def source_is_file(self) -> bool:
        """Whether the source is a path rather than a registry URI."""
        return not self.source.startswith("models:/")


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key which is there twice: PyYAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_job(path: Path) -> Job:
    """Read a job file; relative paths in it are resolved against its folder.

    Raises:
        JobError: the file is missing, unreadable, not YAML, or not a job.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(
            found=f"job file {path}: {error.strerror if isinstance(error, OSError) else 'not UTF-8 text'}",
            expected="a readable YAML file",
            fix="check the path; examples/text.yaml is a job to start from",
        ) from error
    try:
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
    # PyYAML raises ValueError, KeyError and AttributeError for a scalar that its tag does not fit, and runs out of stack.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise JobError(
            found=f"job file {path}: {' '.join(str(error).split())}",
            expected="YAML",
            fix="mend the syntax at that place",
        ) from error
    return parse_job(raw, base=path.resolve().parent, origin=str(path))


def parse_job(raw: Any, *, base: Path, origin: str = "the job") -> Job:
    """Check the content of a job file and resolve its paths against `base`.

    Raises:
        JobError: an unknown key, a missing one, or a value out of bounds; every fault is named.
    """
    if not isinstance(raw, dict):
        raise JobError(
            found=f"{origin} holds {type(raw).__name__}",
            expected="a mapping with `source` and `data`",
            fix="see examples/text.yaml",
        )
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        raise JobError(
            found=f"{origin}: " + "; ".join(_describe(fault) for fault in error.errors()),
            expected="the keys and bounds of docs/job.schema.json",
            fix="correct " + ", ".join(f"`{_place(fault['loc'])}`" for fault in error.errors()),
        ) from error
    files = {name: getattr(job.data, name) for name in ("calibration", "evaluation", "traffic")}
    data = job.data.model_copy(update={name: base / path for name, path in files.items() if path is not None})
    source = str(base / job.source) if job.source_is_file else job.source
    libraries = tuple(
        library.model_copy(update={"file": base / library.file}) if library.file else library
        for library in job.operator_libraries
    )
    return job.model_copy(update={"data": data, "source": source, "operator_libraries": libraries})


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "job"


def _describe(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return f"unknown key `{_place(fault['loc'])}`"
    if fault["type"] == "missing":
        return f"no key `{_place(fault['loc'])}`"
    given = f" (given {fault['input']!r})" if not isinstance(fault["input"], dict) else ""
    return f"`{_place(fault['loc'])}`: {fault['msg']}{given}"

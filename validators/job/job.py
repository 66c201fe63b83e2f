"""The job: frozen settings that every step receives; `read_job` makes one of a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from validators.errors import JobError
from validators.job.candidate_name import TargetName, decode
from validators.job.job_approval import ApprovalRule
from validators.job.job_data import CalibrationBounds, Data, OperatorLibrary, TextDecoding
from validators.job.job_engines import Engines
from validators.job.job_gates import Gates
from validators.job.job_measurement import Measurement
from validators.job.job_watch import Watch
from validators.job.settings_base import FunctionName, Settings
from validators.redact import holds_credentials
from validators.targets import facts_of

MetricName = Literal[
    "accuracy",
    "top5",
    "agreement",
    "f1_macro",
    "f1_binary",
    "auroc",
    "mse",
    "mae",
    "r2",
    "cosine",
    "spearman",
    "sqnr",
    "perplexity",
    "wer",
    "cer",
]


class Budgets(Settings):
    """What a run may use."""

    seconds: Annotated[float, Field(gt=0)] = 3600.0
    """How long the run may take once it has its turn. After 80 % of it candidates that are not done are refused as
    `infrastructure`, between two batches, layers or blocks of requests; the rest is for confirmation and the report."""
    recovery: Annotated[int, Field(ge=0)] = 12
    """How many variants of a candidate that fails on accuracy alone are made and evaluated, with some of it left in float; 0
    for none."""
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    """Peak resident memory of the run with the processes that it starts; null for what the machine has. A candidate that is
    started or measured beyond it is refused."""
    disk_mb: Annotated[float, Field(gt=0)] | None = None
    """Space that the run may take in the state folder; null for what is free. A candidate that needs more is refused."""


class Confirmation(Settings):
    """How the winner is confirmed on evaluation samples that had no say in choosing it."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the evaluation samples that is kept for it, picked by their digests; 0 promotes on the samples that chose."""
    candidates: Annotated[int, Field(ge=1, le=20)] = 3
    """How many candidates, best first, may be held against those samples until one passes; the error that `gates.confidence`
    allows is shared among them."""


class Job(Settings):
    """The frozen description of a run."""

    source: str
    """`models:/name/version`, `models:/name@alias`, or a path to an ONNX file (then nothing is promoted)."""
    target: TargetName = "ort-cpu"
    """Where the variants will run."""
    data: Data
    """The samples."""
    # The function first: the form of Prefect's UI shows a text that it is given in the first of several kinds of text.
    metric: (
        Annotated[FunctionName, Field(title="typed: a name, or module:function")]
        | Annotated[MetricName, Field(title="a name from the list")]
    ) = "accuracy"
    """Of class scores: `accuracy`, `top5`, `f1_macro`, `auroc` (of several classes the mean over one against the rest),
    `f1_binary` (class 1 is positive), and without labels `agreement` with the baseline's top-1 class. Of values: `mse`, `mae`,
    `r2`, and `spearman`, the rank correlation with the label. Of embeddings: `cosine` with the label's embedding, or without
    labels the baseline's, and `spearman` of the cosine of samples 2i and 2i + 1 with the label of both. Of text: `wer`, `cer`,
    see `text`; `perplexity` of the next token. Of any output, without labels: `sqnr`, the signal-to-quantization-noise ratio in
    dB, which needs `gates.min_sqnr_db` and has no drop. Or `module:function`, a function of your own of outputs and labels that
    gives one score a sample or one number for all; see `code` and `metric_direction`."""
    metric_direction: Literal["higher", "lower"] | None = None
    """Which values of a function of your own are better."""
    metric_threshold: float | None = None
    """For `f1_binary` on one value a sample: above it the answer is class 1; 0 for a logit, 0.5 for a probability."""
    output: str | None = None
    """The output that the metric reads; the model's first when null."""
    candidates: (
        Annotated[Literal["default"], Field(title="the target's list")]
        | Annotated[tuple[str, ...], Field(min_length=1, title="names")]
    ) = "default"
    """`default` for the target's list, or candidate names."""
    gates: Gates = Gates()
    """What must hold for a promotion."""
    objective: Literal["latency", "size"] = "latency"
    """What the best of the passing candidates is best at."""
    confirmation: Confirmation = Confirmation()
    """How the winner is confirmed."""
    approval: ApprovalRule = ApprovalRule()
    """Whether a person approves the winner."""
    watch: Watch | None = None
    """How the champion is watched once it is promoted; null for not at all."""
    calibration: CalibrationBounds = CalibrationBounds()
    """What must hold for the calibration data."""
    measurement: Measurement = Measurement()
    """How latency is measured."""
    budgets: Budgets = Budgets()
    """Limits of the run."""
    seed: Annotated[int, Field(ge=0)] = 7
    """Seed of everything random."""
    text: TextDecoding = TextDecoding()
    """How outputs and labels become text, for `wer` and `cer`."""
    engines: Engines = Engines()
    """How TensorRT builds engines, for the target `tensorrt`."""
    provider_options: dict[str, str] = Field(default_factory=dict)
    """Options of ONNX Runtime's provider on a GPU, by its names, for the targets `ort-cuda` and `ort-tensorrt`."""
    operator_libraries: tuple[OperatorLibrary, ...] = ()
    """Libraries of the custom operators in the source, which are left in float; without one, such a source is refused."""
    code: Path = Path()
    """Folder of Python files that the job names functions of, relative to the job file; a function is looked for there first,
    then among the modules that can be imported where quantgate runs."""
    step: FunctionName | None = None
    """`module:function`, a step of your own that is called with each variant that passed so far, inside its run in MLflow:
    what it logs there, `gates.logged` may bound. See docs/verdicts.md."""

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

    @field_validator("output", mode="before")
    @classmethod
    def _is_one_output(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            raise ValueError("several judged outputs are not supported: name one")
        return value

    @field_validator("operator_libraries")
    @classmethod
    def _names_of_files_differ(cls, value: tuple[OperatorLibrary, ...]) -> tuple[OperatorLibrary, ...]:
        names = [library.file.name if library.file else library.package for library in value]
        if len(set(names)) < len(names):
            raise ValueError("a library is named twice, or two files have one name: they are kept in one folder")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Job:
        if self.metric_is_function != (self.metric_direction is not None):
            raise ValueError("`metric_direction`: higher or lower for a metric `module:function`, and for no other")
        if self.metric_threshold is not None and self.metric != "f1_binary":
            raise ValueError("`metric_threshold` is for the metric f1_binary alone")
        if self.gates.logged and self.step is None:
            raise ValueError("`gates.logged` bounds what a `step` of the job logs, and there is none")
        if self.metric == "sqnr" and self.gates.min_sqnr_db is None:
            raise ValueError("the metric sqnr has no drop that a gate could judge: set `gates.min_sqnr_db`")
        return self

    @model_validator(mode="after")
    def _holds_no_credentials(self) -> Job:
        # Jobs become parameters, artifacts and tags, which many may read.
        if holds_credentials(self.model_dump_json()):
            raise ValueError(
                "credentials in it: they belong into the environment, since what a job says is kept and shown"
            )
        return self

    @property
    def metric_is_function(self) -> bool:
        """Whether the metric is a function of the user's own."""
        return ":" in self.metric

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """The candidates to try, in order, `default` resolved."""
        return facts_of(self.target).default_candidates if self.candidates == "default" else self.candidates

    @property
    def source_is_file(self) -> bool:
        """Whether the source is a path rather than a registry URI."""
        return not self.source.startswith("models:/")

    @property
    def source_name(self) -> str | None:
        """The registered model that the source is a version of; None for a file."""
        return None if self.source_is_file else re.split("[/@]", self.source.removeprefix("models:/"), maxsplit=1)[0]

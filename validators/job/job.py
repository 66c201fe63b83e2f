"""The job: frozen settings that every step receives. `read_job` reads one from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from validators.errors import JobError
from validators.job.candidate_name import TargetName, decode
from validators.job.given_file import GivenFile
from validators.job.job_data import CalibrationBounds, Data, InputSettings, OperatorLibrary, TextDecoding
from validators.job.job_engines import Engines
from validators.job.job_gates import Gates
from validators.job.job_measurement import Measurement
from validators.job.job_watch import Watch
from validators.job.metric_facts import ABOUT, METRICS, metric_facts, metrics_that, our_metric
from validators.job.settings_base import FunctionName, Settings
from validators.job.wide_candidates import wide_candidates
from validators.processors import PORTABLE, Processor
from validators.records.run import AbsentEngine, Inventory
from validators.redact import holds_credentials
from validators.targets import DEFAULT_TARGET, baselines_of, engines_of, facts_of, is_on_gpu


class Budgets(Settings):
    """Limits on the time, memory and disk of a run."""

    seconds: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds that the run may take; waiting for another run of the model does not count. After 80 % of them, unfinished
    candidates are refused as `infrastructure`, between two batches, layers or blocks of requests. The rest is for confirmation
    and the report."""
    recovery: Annotated[int, Field(ge=0)] = 6
    """Most variants to make and evaluate, with other forms of some parts, of a candidate that fails on accuracy alone; 0 turns
    recovery off."""
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    """Peak resident memory of the run and the processes that it starts; null allows what the machine has. A candidate that is
    started or measured above this limit is refused."""
    disk_mb: Annotated[float, Field(gt=0)] | None = None
    """Space that the run may take in the state folder; null allows what is free. A candidate that needs more is refused."""


class Confirmation(Settings):
    """Confirmation of the winner on evaluation samples that did not choose it."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the evaluation samples reserved for confirmation, picked by their digests; 0 promotes without confirmation."""
    candidates: Annotated[int, Field(ge=1, le=20)] = 3
    """Most candidates to judge on those samples, best first, until one passes. They share the error that `gates.confidence`
    allows."""


class ApprovalRule(Settings):
    """Rule for approval of the winner by a person before promotion."""

    required: bool = False
    """Suspend the run before promotion until a person approves or rejects the winner, in the Prefect UI or by `quantgate
    approve` and `quantgate reject`. Needs a run of a deployment. See docs/approval.md."""
    expires_hours: Annotated[float, Field(gt=0, le=720)] = 72.0
    """Hours to wait for an answer. Then the run ends and promotes nothing."""


# Draws of the calibration samples with which a spread can be judged.
MIN_DRAWS = 3
# Words that stand for several candidates of a target.
LISTS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "default": lambda target: facts_of(target).default_candidates,
    "wide": wide_candidates,
}


class Job(Settings):
    """The frozen description of a run."""

    source: str
    """`models:/name/version`, such as `models:/fraud/3`; `models:/name@alias`; or a path to an ONNX file (then nothing is
    promoted)."""
    data: Data
    """The calibration, evaluation and traffic samples."""
    target: TargetName = DEFAULT_TARGET
    """Engine, or class of devices, that will run the variants."""
    # The function comes first: the form of Prefect's UI shows a given string as the first string type of a union.
    metric: Annotated[
        Annotated[FunctionName, Field(title="typed: a name, or module:function")]
        | Annotated[Literal[tuple(METRICS)], Field(title="a name from the list")],  # type: ignore[valid-type]  # at run time
        Field(description=ABOUT),
    ] = "accuracy"
    candidates: (
        Annotated[Literal["default", "wide"], Field(title="the target's list")]
        | Annotated[tuple[str, ...], Field(title="names")]
    ) = "default"
    """`default` for the target's list, `wide` for all sensible recipes (30 and more, see docs/candidates.md), or a list of
    these words and of names, such as `int8-static-minmax-pc@ort-cpu`. Files may stand in it, too, as in `given`."""
    given: tuple[GivenFile, ...] = ()
    """Files that other tools made, which are judged beside the candidates; see docs/given-files.md."""
    objective: Literal["latency", "size"] = "latency"
    """Measure by which the best of the passing candidates is chosen."""
    approval: ApprovalRule = ApprovalRule()
    """Approval of the winner by a person."""
    gates: Gates = Gates()
    """Gates that a variant must pass to be promoted."""
    baseline: TargetName | None = None
    """Engine that runs the source as you run it today; speedups are relative to it. It is an engine of the target, or on a
    processor `ort-cpu`. Null for `ort-cpu` on a processor, and for the target's first engine on a GPU."""
    inputs: dict[str, InputSettings] = Field(default_factory=dict)
    """Inputs of the model that are no arrays with the samples along axis 0, by name, such as `{"sr": {"constant": 16000}}`."""
    metric_direction: Literal["higher", "lower"] | None = None
    """Better direction of your own metric function: higher or lower values."""
    metric_threshold: float | None = None
    """Threshold above which a value means yes: 0 for a logit, 0.5 for a probability. `f1_binary`, `precision_binary` and
    `recall_binary` need it for one value per sample, `pixel_accuracy`, `iou` and `dice` for one per cell (class 1),
    `f1_multilabel` and `f1_multilabel_micro` always."""
    metric_scores: Literal["logits", "probabilities"] | None = None
    """What the class scores are that `log_loss` and `ece` read; both need it."""
    metric_k: Annotated[int, Field(ge=1)] | None = None
    """Length of a ranking that `recall_at_k`, which needs it, `ndcg` and `mrr` look at; null for all of it."""
    output: (
        Annotated[str, Field(title="a name")]
        | Annotated[tuple[str, ...], Field(min_length=1, title="names, for map and map50")]
        | None
    ) = None
    """Name of the output that the metric reads, such as `logits`; null for the first. For `map` and `map50` also a list, in
    one of these orders: boxes `(n, m, 4)` of x1, y1, x2, y2, scores `(n, m)`, labels `(n, m)`; boxes, scores `(n, m, classes)`;
    boxes, scores `(n, classes, m)`, indices `(k, 3)` of NonMaxSuppression; or with a fixed batch of 1 boxes `(k, 4)`, scores
    `(k)`, labels `(k)`. One output may hold all: `(n, m, 6)` of x1, y1, x2, y2, score, class, or `(k, 7)` of sample, x1, y1,
    x2, y2, class, score."""
    portable: bool = False
    """True for variants that give the same answers on every processor: INT8 weights of 7 bits, whose sums saturate nowhere,
    nothing in bfloat16, and no code for one processor. False for variants for processors like that of the run."""
    search: Literal["race", "all"] = "race"
    """`race` stops candidates that cannot pass or cannot win, see docs/race.md. `all` measures every candidate in full."""
    confirmation: Confirmation = Confirmation()
    """Confirmation of the winner."""
    watch: Watch | None = None
    """Checks of the champion's traffic and answers after promotion; null for none."""
    calibration: CalibrationBounds = CalibrationBounds()
    """Bounds on the calibration data."""
    measurement: Measurement = Measurement()
    """Settings of the latency measurement."""
    budgets: Budgets = Budgets()
    """Limits on the time, memory and disk of the run."""
    seed: Annotated[int, Field(ge=0)] = 7
    """Seed of all random numbers."""
    text: TextDecoding = TextDecoding()
    """Decoding of outputs and labels into text, for `wer` and `cer`."""
    engines: Engines = Engines()
    """Settings of TensorRT's engine builder, for the target `tensorrt`."""
    provider_options: dict[str, str] = Field(default_factory=dict)
    """Options of the runtime by their own names: of ONNX Runtime's CUDA provider for `ort-cuda`, of OpenVINO for `openvino`,
    such as `{"PERFORMANCE_HINT": "LATENCY"}`."""
    operator_libraries: tuple[OperatorLibrary, ...] = ()
    """Libraries of the source's custom operators, which stay in float. A source with custom operators needs at least one."""
    code: Path = Path()
    """Folder of Python files with the functions that the job names, relative to the job file. A function is looked up there
    first, then among the modules that quantgate can import."""
    step: FunctionName | None = None
    """`module:function`, such as `checks:fairness`: a step of your own, called with each variant that has passed so far, inside
    its run in MLflow. `gates.logged` can bound the metrics that it logs there. See docs/verdicts.md."""

    @field_validator("metric", mode="before")
    @classmethod
    def _metric_is_ours(cls, value: object) -> object:
        return our_metric(value) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _files_may_be_candidates(cls, raw: Any) -> Any:
        listed = raw.get("candidates") if isinstance(raw, dict) else None
        if not isinstance(listed, list | tuple) or not any(isinstance(one, dict) for one in listed):
            return raw
        files = [one for one in listed if isinstance(one, dict)]
        names = [one for one in listed if not isinstance(one, dict)]
        return {**raw, "candidates": names, "given": [*(raw.get("given") or ()), *files]}

    @field_validator("candidates")
    @classmethod
    def _names_decode(cls, value: object) -> object:
        if isinstance(value, tuple):
            for name in value:
                if name in LISTS:
                    continue
                try:
                    is_given = decode(name).given
                except JobError as error:
                    raise ValueError(f"{error.found} does not decode; expected {error.expected}") from error
                if is_given:
                    raise ValueError(f"{name} is a file: give its `name`, `file` and `engine` in `given`")
            if len(set(value)) != len(value):
                raise ValueError("a candidate is named twice")
        return value

    @field_validator("operator_libraries")
    @classmethod
    def _names_of_files_differ(cls, value: tuple[OperatorLibrary, ...]) -> tuple[OperatorLibrary, ...]:
        names = [library.file.name if library.file else library.package for library in value]
        if len(set(names)) < len(names):
            raise ValueError("a library is listed twice, or two files share a name: all are copied into one folder")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Job:
        if self.metric_is_function != (self.metric_direction is not None):
            raise ValueError("`metric_direction` must be set for a metric `module:function`, and for no other metric")
        facts = metric_facts(self.metric)
        if self.metric_threshold is not None and not facts.has_threshold:
            names = ", ".join(sorted(metrics_that(lambda one: one.has_threshold)))
            raise ValueError(f"`metric_threshold` applies to the metrics {names} alone")
        if (self.metric_scores is not None) != facts.has_scores:
            names = " and ".join(metrics_that(lambda one: one.has_scores))
            raise ValueError(f"`metric_scores` must be set for the metrics {names}, and for no other metric")
        if self.metric_k is not None and facts.kind != "rankings":
            *others, last = metrics_that(lambda one: one.kind == "rankings")
            raise ValueError(f"`metric_k` applies to the metrics {', '.join(others)} and {last} alone")
        if facts.needs_k and self.metric_k is None:
            raise ValueError(f"the metric {self.metric} needs `metric_k`, the length of the ranking")
        if len(self.output_names) > 1 and facts.kind != "boxes":
            names = " and ".join(metrics_that(lambda one: one.kind == "boxes"))
            raise ValueError(f"the metric {self.metric} reads one output: name one ({names} read several)")
        if self.gates.logged and self.step is None:
            raise ValueError("`gates.logged` bounds metrics that the job's `step` logs, but the job has no `step`")
        if not facts.has_drop and self.gates.min_sqnr_db is None:
            raise ValueError(f"the metric {self.metric} has no drop that a gate could judge: set `gates.min_sqnr_db`")
        if not self.candidate_names or len(self.given_files) != len(self.given):
            raise ValueError(
                "two files in `given` have one name" if self.given else "no candidate: name one in `candidates`"
            )
        if self.data.calibration is None and self.candidates != ():
            raise ValueError("`data.calibration` may be left out only where every candidate is a file of another tool")
        if 0 < self.calibration.draws < MIN_DRAWS:
            raise ValueError(
                f"`calibration.draws` must be 0 or at least {MIN_DRAWS}: fewer have no spread worth the name"
            )
        if self.calibration.draws and not facts.has_drop:
            raise ValueError(f"`calibration.draws` compares drops, which the metric {self.metric} does not have")
        if self.gates.max_draw_spread is not None and not self.calibration.draws:
            raise ValueError("`gates.max_draw_spread` needs `calibration.draws`, such as 5")
        if self.gates.max_cost_per_million is not None and self.measurement.price_per_hour is None:
            raise ValueError("`gates.max_cost_per_million` needs `measurement.price_per_hour`")
        return self

    @model_validator(mode="after")
    def _fits_the_target(self) -> Job:
        possible = baselines_of(self.target)
        if self.baseline not in (None, *possible):
            raise ValueError(f"`baseline` must be one of {', '.join(possible)} for the target {self.target}")
        if self.portable and is_on_gpu(self.target):
            raise ValueError(f"`portable` is about processors, and {self.target} runs on a GPU")
        asked = [(f"the file {one.name}", one.engine) for one in self.given]
        asked += [(f"the candidate {name}", decode(name).target) for name in self.candidate_names]
        for what, engine in asked:
            if engine not in engines_of(self.target):
                told = f"{what} is for {engine}, which the target {self.target} does not cover"
                raise ValueError(f"{told}; set `target: {engine}`")
        return self

    @model_validator(mode="after")
    def _holds_no_credentials(self) -> Job:
        # Jobs become parameters, artifacts and tags, which many people can read.
        if holds_credentials(self.model_dump_json()):
            raise ValueError(
                "it holds credentials; put them into environment variables, since jobs are stored and shown"
            )
        return self

    @property
    def metric_is_function(self) -> bool:
        """True if the metric is the user's own function."""
        return ":" in self.metric

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs that the metric reads; empty for the model's first output."""
        return () if self.output is None else (self.output,) if isinstance(self.output, str) else self.output

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """Names of the candidates to try, in order, with `default` and `wide` resolved."""
        return self.candidates_without(())

    @property
    def given_files(self) -> dict[str, GivenFile]:
        """Files of other tools, by the name of the candidate."""
        return {one.candidate: one for one in self.given}

    def is_calibrated(self, name: str) -> bool:
        """Return True if calibration samples influence what a candidate becomes; they may influence what a script makes."""
        given = self.given_files.get(name)
        return given.make is not None if given else decode(name).is_calibrated

    def processor_of(self, inventory: Inventory) -> Processor:
        """Return the processor that variants are made for: that of the inventory, or with `portable` the least of all."""
        return PORTABLE if self.portable else inventory.processor

    def candidates_without(self, absent: Iterable[AbsentEngine]) -> tuple[str, ...]:
        """Return `candidate_names` without those of the absent engines of a class; those that the job names itself stay."""
        engines = {one.engine for one in absent}
        names: list[str] = []
        for one in [self.candidates] if isinstance(self.candidates, str) else self.candidates:
            if one in LISTS:
                names += [name for name in LISTS[one](self.target) if decode(name).target not in engines]
            else:
                names.append(one)
        return tuple(dict.fromkeys([*names, *self.given_files]))

    def as_run(self, name: str, version: str | None, absent: Iterable[AbsentEngine]) -> dict[str, Any]:
        """Return the job as a document that reproduces a run: candidates by name, and the source `name` by its version.

        An alias, or the list `default`, may change later and give another run.
        """
        names = [name for name in self.candidates_without(absent) if name not in self.given_files]
        document = self.model_dump(mode="json") | {"candidates": names}
        if not self.source_is_file and version is not None:
            document["source"] = f"models:/{name}/{version}"
        return document

    def baseline_on(self, inventory: Inventory) -> str:
        """Return the engine that runs the baseline on this machine: `ort-cpu` in place of one for a GPU that is not here."""
        engine = self.baseline or baselines_of(self.target)[0]
        return DEFAULT_TARGET if is_on_gpu(engine) and inventory.gpu is None else engine

    @property
    def source_is_file(self) -> bool:
        """True if the source is a path rather than a registry URI."""
        return not self.source.startswith("models:/")

    @property
    def source_name(self) -> str | None:
        """Name of the source's registered model; None for a file."""
        return None if self.source_is_file else re.split("[/@]", self.source.removeprefix("models:/"), maxsplit=1)[0]

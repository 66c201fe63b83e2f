"""Frozen records that stages pass to each other. Change one with `dataclasses.replace`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from validators.digests import digest_values
from validators.errors import RefusalKind
from validators.processors import Processor
from validators.records.engines import BuiltEngine
from validators.records.generation import DecoderBytes
from validators.records.latencies import Latency
from validators.records.libraries import Libraries
from validators.records.measurements import (
    Accuracy,
    Agreement,
    Coverage,
    Draws,
    Estimate,
    Flips,
    Sanity,
    Saturation,
    SliceDrop,
)
from validators.records.verdicts import Verdict
from validators.targets import DEFAULT_TARGET, facts_of, facts_of_provider

CandidateOutcome = Literal["passed", "failed", "inconclusive", "refused"]
# Parses `Inventory.device_key`: processor and instruction sets, cores, GPU with compute capability, driver; runtimes follow.
_DEVICE_KEY = re.compile(r"(?P<processor>.* \[[^\]]*\]) x\d+; (?:(?P<gpu>.* cc\S+) driver [^;]*; )?")
# MLflow flavor of the source, or that it is a file.
Flavor = Literal["onnx", "pytorch", "transformers", "sentence_transformers", "keras", "sklearn", "file"]
# Session option of ONNX Runtime with optimizers to leave out, and the one that rounds weights which a file leaves in float, to
# INT8 with one scale, where a Conv or Gemm reads and makes integers (observed with ONNX Runtime 1.32).
LEFT_OUT, ROUNDS_FLOATS = "optimization.disable_specified_optimizers", "WeightBiasQuantization"
# Run on its target; simulated by a runtime without kernels for it; built ahead of time and inspected, never run.
Proof = Literal["measured", "simulated", "aot-checked"]


@dataclass(frozen=True)
class SourceResult:
    """The source; `version` is null for a file, `digest` is the sha256 of the ONNX file."""

    uri: str
    name: str
    version: str | None
    digest: str


@dataclass(frozen=True)
class Source(SourceResult):
    """The registered model version or file from which a run starts, as one checked ONNX file.

    `program` is the exported program of a PyTorch model, which compilers of such programs take. `companions` are the files
    beside the graph of a decoder: its configuration and tokenizer. `decoder` holds the bytes of a decoder.
    """

    onnx_path: Path
    flavor: Flavor
    run_id: str | None = None
    parity_max_abs: float | None = None
    program: Path | None = None
    companions: tuple[Path, ...] = ()
    decoder: DecoderBytes | None = None


@dataclass(frozen=True)
class DataFile:
    """One data file of the job: its path, the digest of its content, and its number of samples.

    For a fetched file, `uri` is its origin, and `version` its version or ETag there.
    """

    path: Path
    digest: str
    rows: int
    uri: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU with its driver; engines and latency depend on both. `compute_capability` has the form "9.0"."""

    name: str
    uuid: str
    compute_capability: str
    driver: str
    memory_bytes: int


@dataclass(frozen=True)
class AbsentEngine:
    """An engine of a class of devices that is left out: the reason, and the fix, a command where one exists.

    `for_source`: it runs here, but takes no source of this kind.
    """

    engine: str
    reason: str
    fix: str
    for_source: bool = False

    def __str__(self) -> str:
        """Return the engine with the reason and the fix.

        >>> str(AbsentEngine("openvino", "openvino is not installed", "pip install openvino"))
        'openvino is left out: openvino is not installed; to add it: pip install openvino'
        """
        return f"{self.engine} is left out: {self.reason}; to add it: {self.fix}"


@dataclass(frozen=True)
class Inventory:
    """Hardware and software of a target. Latencies are comparable, and approvals valid, only for an equal `device_key`.

    `cores` is the number of cores that the run uses, `cpu_quota` the CPU quota of its control group in cores, if any. `absent`
    lists the engines of a class of devices that are left out here.
    """

    target: str
    cpu: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    platform: str
    python: str
    runtimes: dict[str, str]
    providers: tuple[str, ...]
    load_average: float
    gpu: Gpu | None = None
    cpu_quota: float | None = None
    absent: tuple[AbsentEngine, ...] = ()

    @property
    def processor(self) -> Processor:
        """The processor, for what depends on its instruction sets."""
        return Processor(self.isa)

    @property
    def device_key(self) -> str:
        """Parts of the inventory to which an approval is tied: processor, instruction sets, cores, GPU, driver, runtimes."""
        runtime = ",".join(f"{name} {version}" for name, version in sorted(self.runtimes.items()))
        gpu = f"{self.gpu.name} cc{self.gpu.compute_capability} driver {self.gpu.driver}; " if self.gpu else ""
        return f"{self.cpu} [{' '.join(self.isa)}] x{self.cores}; {gpu}{runtime}"


def device_class(device_key: str) -> str:
    """Return the parts of a device key that decide which kernels run: processor, instruction sets and GPU.

    Cores, driver and runtimes are omitted: they change with a quota or an update of the same machine. A key in another format
    is its own class.

    >>> device_class("Xeon Gold [avx2 avx512f] x16; onnxruntime 1.27.0")
    'Xeon Gold [avx2 avx512f]'
    >>> device_class("Xeon Gold [avx2] x16; NVIDIA H200 cc9.0 driver 580.10; onnxruntime-gpu 1.27.0")
    'Xeon Gold [avx2], NVIDIA H200 cc9.0'
    """
    found = _DEVICE_KEY.match(device_key)
    if found is None:
        return device_key
    return ", ".join(part for part in found.group("processor", "gpu") if part)


@dataclass(frozen=True)
class SessionSettings:
    """Settings with which a runtime must load the artifact: part of the variant, since they change speed and numbers."""

    provider: str
    threads: int
    optimization: Literal["basic", "all"] = "all"
    entries: dict[str, str] = field(default_factory=dict)
    libraries: Libraries = ()
    provider_options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def reference(
        cls,
        threads: int,
        optimization: Literal["basic", "all"] = "all",
        entries: Mapping[str, str] | None = None,
        libraries: Libraries = (),
    ) -> SessionSettings:
        """Return settings of ONNX Runtime on the processor, in which sources are calibrated and computed for comparison.

        What a file leaves in float is computed in float.
        """
        entries = {LEFT_OUT: ROUNDS_FLOATS, **(entries or {})}
        return cls(facts_of(DEFAULT_TARGET).provider, threads, optimization, entries, libraries)

    @property
    def on_gpu(self) -> bool:
        """True if the session computes on an NVIDIA GPU."""
        return facts_of_provider(self.provider).on_gpu

    @property
    def described(self) -> dict[str, Any]:
        """The settings as a manifest states them, which describes libraries under a key of their own."""
        return {key: value for key, value in asdict(self).items() if key != "libraries"}

    def without_spinning(self) -> SessionSettings:
        """Return the same settings with threads that sleep while waiting, for untimed work that must not occupy cores."""
        return replace(self, entries=self.entries | {"session.intra_op.allow_spinning": "0"})


def identity_of(digest: str, session: SessionSettings) -> str:
    """Return the identity of a variant: the sha256 of its artifact's digest with its engine and session settings.

    `session.provider` names the engine; `digest` covers the libraries of the session. Two engines, or two thread counts, of
    one file are two variants.

    >>> one = identity_of("file", SessionSettings("OpenVINO", 4))
    >>> one == identity_of("file", SessionSettings("OpenVINO", 4)), one == identity_of("file", SessionSettings("OpenVINO", 2))
    (True, False)
    """
    return digest_values(digest, session.described)


@dataclass(frozen=True)
class Variant:
    """The artifact that a candidate made from a source.

    `path` is the portable ONNX file, or a package that was compiled in `compile_seconds`; `engine`, if TensorRT runs the
    variant, was built from the ONNX file for one device. `proof` says how its numbers were obtained. `changes` counts the edits
    of the graph pass, by description; `notes` holds remarks for readers. `decoder` holds the bytes of a decoder.
    `saturates_without`: sums of its INT8 products saturate on x86 processors that have none of these instruction sets.
    """

    candidate: str
    path: Path
    digest: str
    size_bytes: int
    session: SessionSettings
    proof: Proof = "measured"
    changes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    engine: BuiltEngine | None = None
    compile_seconds: float | None = None
    decoder: DecoderBytes | None = None
    saturates_without: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Identity of what consumers load, by which versions of one registered model are compared (`identity_of`)."""
        return identity_of(self.digest, self.session)

    @property
    def measured_as(self) -> tuple[Any, ...]:
        """Everything that its measurements depend on: the artifact, its engine if any, the proof and the session settings.

        Two candidates with equal values are copies of each other.
        """
        engine = self.engine.manifest.engine_digest if self.engine else None
        return self.digest, engine, self.proof, asdict(self.session)

    @property
    def loaded(self) -> Path:
        """The file to load: the engine if it runs here, else the ONNX file, which simulates an engine that does not."""
        return self.engine.path if self.engine and self.proof == "measured" else self.path


@dataclass(frozen=True)
class RefusalResult:
    """Why a candidate made no variant or was not measured; a `copy` made the same variant as the candidate that it names."""

    kind: RefusalKind
    reason: str


@dataclass(frozen=True)
class Refusal(RefusalResult):
    """The recorded reason of a refusal; `log` is the builder's log, if any.

    A `copy` made the same variant as an earlier candidate of the job; that one is measured and judged for both.
    """

    log: Path | None = None


@dataclass(frozen=True)
class CheckResult:
    """A check of the calibration data; `fix` is empty for one that passed."""

    name: str
    severity: Literal["critical", "warning"]
    found: str
    expected: str
    fix: str


@dataclass(frozen=True)
class Check(CheckResult):
    """A check with its outcome."""

    passed: bool


@dataclass(frozen=True)
class CalibrationFacts:
    """The calibration verdict with its checks and figures, without its page."""

    outcome: str
    checks: tuple[Check, ...]
    figures: dict[str, float]


@dataclass(frozen=True)
class CalibrationVerdict(CalibrationFacts):
    """The outcome of the calibration checks; `page` is the Data Docs page of the checkpoint.

    `figures` holds the figures behind the checks to track from run to run.
    """

    outcome: Literal["accepted", "accepted_with_warnings", "refused"]
    page: Path

    @property
    def failed(self) -> tuple[Check, ...]:
        """Failed checks, critical ones first."""
        return tuple(sorted((c for c in self.checks if not c.passed), key=lambda check: check.severity))


@dataclass(frozen=True)
class Confirmed:
    """Results of a candidate on the confirmation samples: the metric on `n` rows, and a second latency measurement.

    `latency` is None if the candidate does not pass on these samples, since nothing depends on its speed then. `beside_fp16`
    compares with the float16 model, as in `Trial`. `agreement` is that of a decoder's answers to kept prompts, if a gate is on
    it.
    `confidence` is the one-sided confidence of each bound: higher than the gates', since several candidates may be confirmed.
    """

    n: int
    confidence: float
    baseline_value: float
    value: float
    drop: Estimate | None
    slices: tuple[SliceDrop, ...]
    latency: Latency | None
    beside_fp16: Latency | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True)
class ChampionFigures:
    """The champion as it was measured beside a winner; in `latency` it is the baseline."""

    version: str
    source_digest: str
    size_bytes: int
    accuracy: Accuracy
    latency: Latency


@dataclass(frozen=True)
class Trial:
    """All results of one candidate: refused, or made, measured and judged.

    `latencies` compares with the baseline, one entry per operating point. `beside_fp16` compares with the float16 model, on a
    GPU and at the first point, `beside_champion` with the champion. `copies` names later candidates that made the same variant.
    """

    candidate: str
    outcome: CandidateOutcome | None = None
    refusal: Refusal | None = None
    variant: Variant | None = None
    accuracy: Accuracy | None = None
    drop: Estimate | None = None
    flips: Flips | None = None
    slices: tuple[SliceDrop, ...] = ()
    coverage: Coverage | None = None
    sanity: Sanity | None = None
    agreement: Agreement | None = None
    saturation: Saturation | None = None
    latencies: tuple[Latency, ...] = ()
    beside_fp16: Latency | None = None
    beside_champion: ChampionFigures | None = None
    verdicts: tuple[Verdict, ...] = ()
    confirmed: Confirmed | None = None
    draws: Draws | None = None
    mlflow_run_id: str | None = None
    copies: tuple[str, ...] = ()
    cached: bool = False
    seconds: float = 0.0

    @property
    def is_copy(self) -> bool:
        """True if an earlier candidate of the job made the same variant."""
        return self.refusal is not None and self.refusal.kind == "copy"

    @property
    def is_stopped(self) -> bool:
        """True if the race stopped the candidate before it was measured in full."""
        return self.refusal is not None and self.refusal.kind == "stopped"

    @property
    def against(self) -> tuple[Verdict, ...]:
        """Verdicts other than a pass."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome != "pass")

    @property
    def latency(self) -> Latency | None:
        """Latency at the first operating point, which gates and objective read."""
        return self.latencies[0] if self.latencies else None

    @property
    def final_latency(self) -> Latency | None:
        """Latency of the confirmation if it was measured there, else `latency`."""
        return (self.confirmed and self.confirmed.latency) or self.latency


@dataclass(frozen=True)
class ChampionResult:
    """The champion after the run; `previous` is the version that the alias pointed to before it."""

    name: str
    version: str
    alias: str
    previous: str | None = field(kw_only=True)


@dataclass(frozen=True)
class Champion(ChampionResult):
    """The promoted variant of a model for one target, as recorded in the registry.

    `device` is the device key of its approval, and `identity` that of its variant; both are empty, as are its digests and its
    candidate, for a version that quantgate did not promote.
    """

    previous: str | None = field(default=None, kw_only=True)
    digest: str
    source_digest: str
    candidate: str
    device: str = ""
    identity: str = ""

    def __str__(self) -> str:
        """Return the version with its candidate.

        >>> str(Champion("fraud-quantized", "3", "champion-ort-cpu", "", "", ""))
        'version 3, which quantgate did not promote'
        """
        return f"version {self.version}, {self.candidate or 'which quantgate did not promote'}"

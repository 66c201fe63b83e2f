"""The record of an engine: its plain facts, and its behaviour."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.engines.availability import Availability
from tasks.engines.given import TakeUp
from tasks.ptq.build_variant import Materials
from tasks.ptq.eight_bit.placement import EXPLICIT, PairRules
from tasks.ptq.slow_parts import SlowParts
from tasks.runtimes.kernels import Costs
from validators.errors import Missing
from validators.graph.lint import Rule, RuntimeFacts
from validators.job.candidate_name import Candidate, Precision
from validators.records.engines import BuildSettings, BuiltEngine
from validators.records.generation import DecoderBytes
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.target_facts import TargetFacts

# Writes the candidate's artifact to the path, and returns the counts of changes.
Pass = Callable[[Candidate, Materials, Path], dict[str, int]]
# Returns the session settings of a candidate for this number of threads; the mapping is the job's `provider_options`. The
# candidate `fp32` without fusions is the source as it is: the baseline.
Session = Callable[[Candidate, int, Libraries, Mapping[str, str]], SessionSettings]

# Costs of models on a batch, with the session settings of a candidate.
ProfileCosts = Callable[[Sequence[Path], Arrays, SessionSettings], list[Costs]]


@dataclass(frozen=True)
class RefusedPrecision:
    """Reason why a target refuses a precision; `{target}` in `found` becomes the target's name."""

    found: str
    expected: str
    fix: str = "take another candidate"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A maker of engines, each built from a file before it runs; for facts with `builds_engines`.

    `as_written` are session entries with which ONNX Runtime computes the pairs that the builder reads, to simulate an engine's
    answers. `available` returns the versions of this machine's means to build, on which an engine depends. `settings` returns
    those of a job's engine, for the GPU of this machine or ahead of time for compute capabilities. `make_engine` builds one
    into the folder of an entry; `copy_log` copies its log there. `warnings` are those of a build that are worth showing.
    `least_covered` returns the engine of a file, given the batch of a request, with the smallest share of low-precision
    products. `slow_parts` returns the products that engines make slower in low precision.
    """

    as_written: Mapping[str, str]
    available: Callable[[], Any]
    settings: Callable[..., BuildSettings]
    make_engine: Callable[..., BuiltEngine]
    copy_log: Callable[[Path, Path], Path]
    warnings: Callable[[BuiltEngine], tuple[str, ...]]
    least_covered: Callable[[Path, Sequence[BuiltEngine], Callable[[], Arrays]], BuiltEngine]
    slow_parts: Callable[..., SlowParts]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine, or a class of devices with several.

    `passes` make artifacts by precision; any other precision is refused, for the reason in `refused` if it is there.
    `pairs` are its rules for Q/DQ pairs.
    `refuse_recipe` raises CandidateRefused for recipes of the other precisions that the target does not support. `check_device`
    raises CandidateRefused if no candidate can be made on this machine. `why_unmeasured` gets the providers that run here, and
    returns why a variant cannot be measured, or None. `availability` gets the providers of the installed ONNX Runtime.
    `lint_rules` are the rules of `quantgate lint`, and `observe` returns what the installed runtime does with a file, by which
    they are judged. `searches` has the precisions whose parts may get other forms (`tasks.ptq.search`); `profile_costs` returns
    what models cost by the runtime's own profile, which take turns. `artifact` is the name of the file that its passes write.
    `takes` has the endings of files of other tools that it runs, each with what takes one up. `decoder_bytes` reads the bytes
    of a candidate's decoder from its artifact, and `compile_seconds` how long its compilation took.
    """

    facts: TargetFacts
    passes: Mapping[Precision, Pass]
    session: Session
    availability: Callable[[Collection[str]], Availability]
    pairs: PairRules = EXPLICIT
    refused: Mapping[Precision, RefusedPrecision] = field(default_factory=dict)
    refuse_recipe: Callable[[Candidate], None] = lambda _candidate: None
    check_device: Callable[[], None] = lambda: None
    why_unmeasured: Callable[[Collection[str]], Missing | None] = lambda _providers: None
    lint_rules: tuple[Rule, ...] = ()
    observe: Callable[[Path], RuntimeFacts] = lambda _model: RuntimeFacts(
        "rules alone: no session is opened for this target"
    )
    searches: frozenset[Precision] = frozenset()
    profile_costs: ProfileCosts | None = None
    artifact: str = "model.onnx"
    takes: Mapping[str, TakeUp] = field(default_factory=dict)
    builder: Builder | None = None
    decoder_bytes: Callable[[Candidate, Path], DecoderBytes] | None = None
    compile_seconds: Callable[[Path], float | None] = lambda _artifact: None

    def __post_init__(self) -> None:
        """Check that the fields are consistent.

        Raises:
            ValueError: a precision is both made and refused, or INT8 is searched without a profile.
        """
        if "int8" in self.searches and self.profile_costs is None:
            raise ValueError(f"{self.name}: `searches` has int8, whose forms cost what `profile_costs` returns")
        wrong = sorted(self.passes.keys() & self.refused.keys())
        if wrong:
            raise ValueError(f"{self.name}: {', '.join(wrong)} in both `passes` and `refused`")

    @property
    def name(self) -> str:
        """Name in jobs and candidate names."""
        return self.facts.name

"""The target `cpu`: every engine for processors that is installed here, of which the fastest variant wins."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.runtimes.providers import provider_of
from tasks.targets import openvino, ort_cpu
from tasks.targets.availability import Availability
from tasks.targets.target import Target
from validators.job.candidate_name import Candidate
from validators.providers import CPU_PROVIDER
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.targets import facts_of

ENGINES = (ort_cpu.TARGET, openvino.TARGET)


def _session(
    candidate: Candidate, threads: int, libraries: Libraries, provider_options: Mapping[str, str]
) -> SessionSettings:
    return ort_cpu.TARGET.session(candidate, threads, libraries, provider_options)


def _availability(providers: Collection[str]) -> Availability:
    """Return the engines that run here, and the command that installs the first of the others."""
    found = {engine.name: engine.availability(providers) for engine in ENGINES}
    missing = [one.mend for one in found.values() if not one.is_here]
    why = "; ".join(one.why if one.is_here else f"without {name}: {one.why}" for name, one in found.items())
    return Availability(True, why, missing[0] if missing else "")


TARGET = Target(
    facts=facts_of("cpu"),
    runtime=provider_of(CPU_PROVIDER),
    passes={},
    session=_session,
    availability=_availability,
    loads_anywhere=True,
)

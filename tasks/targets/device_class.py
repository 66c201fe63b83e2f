"""Targets that are classes of devices: their jobs hold candidates of several engines, of which the fastest variant wins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tasks.targets.availability import Availability
from tasks.targets.target import Target
from validators.records.run import AbsentEngine
from validators.targets import TargetFacts


def class_of(facts: TargetFacts, targets: Mapping[str, Target]) -> Target:
    """Return the target of a class; `targets` holds its engines by name, and the first one represents the device."""
    engines = [targets[name] for name in facts.engines]

    def availability(providers: Collection[str]) -> Availability:
        found = {engine.name: engine.availability(providers) for engine in engines}
        missing = [one.mend for one in found.values() if not one.is_here]
        why = "; ".join(one.why if one.is_here else f"without {name}: {one.why}" for name, one in found.items())
        return Availability(len(missing) < len(engines), why, missing[0] if missing else "")

    return Target(
        facts=facts,
        runtime=engines[0].runtime,
        passes={},
        session=engines[0].session,
        availability=availability,
    )


def find_absent(engines: Sequence[Target], providers: Collection[str]) -> tuple[AbsentEngine, ...]:
    """Return the engines of a class that do not run here, given ONNX Runtime's providers.

    The result is empty if none runs here: then nothing is measured, and all engines make or inspect what they can.
    """
    found = {engine.name: engine.availability(providers) for engine in engines}
    if not any(one.is_here for one in found.values()):
        return ()
    return tuple(AbsentEngine(name, one.why, one.mend) for name, one in found.items() if not one.is_here)

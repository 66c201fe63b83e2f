"""Catalogue of targets: the built-in engines, classes of devices made of them, and the targets of installed packages.

An engine is a room here, and a line of `validators.targets.ENGINES`. A class of devices is what its engines' facts say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tasks.engines.availability import Availability
from tasks.engines.engine import Engine
from tasks.measure.inventory import this_processor
from tasks.storage.product import code_of_module
from validators.errors import JobError
from validators.graph.lint import Finding, explain
from validators.graph.source_graph import lint_file
from validators.records.run import AbsentEngine, Inventory
from validators.target_facts import TargetFacts
from validators.targets import BUILT_IN, ENGINES, GROUP, engines_of, facts_of, installed_targets, load_target

_NO_PROGRAM = "it compiles PyTorch programs, and the source has none"
_WITH_PROGRAM = "register the model with a flavor of PyTorch"


def _room_of(name: str) -> str:
    return ENGINES[name].removesuffix(".facts")


def _engine(name: str) -> Engine:
    found: Engine = next(one for one in import_module(f"{_room_of(name)}.engine").ENGINES if one.name == name)
    return found


def _class_of(facts: TargetFacts, by_name: Mapping[str, Engine]) -> Engine:
    """Return the target of a class of devices, which its first engine represents."""
    engines = [by_name[name] for name in facts.engines]

    def availability(providers: Collection[str]) -> Availability:
        found = {engine.name: engine.availability(providers) for engine in engines}
        missing = [one.mend for one in found.values() if not one.is_here]
        why = "; ".join(one.why if one.is_here else f"without {name}: {one.why}" for name, one in found.items())
        return Availability(len(missing) < len(engines), why, missing[0] if missing else "")

    return Engine(facts=facts, passes={}, session=engines[0].session, availability=availability)


_ENGINES = {name: _engine(name) for name in ENGINES}
_BY_NAME = {name: _class_of(facts, _ENGINES) if facts.engines else _ENGINES[name] for name, facts in BUILT_IN.items()}
TARGETS: tuple[Engine, ...] = tuple(_BY_NAME.values())


def code_of_engine(name: str) -> str:
    """Return the digest of an engine's code, which what it makes depends on; empty for one of an installed package."""
    return code_of_module(f"{_room_of(name)}.engine") if name in ENGINES else ""


def find_target(name: str) -> Engine:
    """Return a target by its name.

    Raises:
        JobError: no installed package provides a target with this name, or it fails to load.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    loaded = load_target(name)
    if not isinstance(loaded, Engine):
        raise JobError(
            found=f"the entry point {name} of the group {GROUP} loads {type(loaded).__name__}",
            expected="a `tasks.engines.engine.Engine`",
            fix="correct the package that provides it",
        )
    return loaded


def absent_engines(inventory: Inventory) -> tuple[AbsentEngine, ...]:
    """Return the engines of the inventory's target that its candidates are not tried with here; empty if it is no class."""
    engines = engines_of(inventory.target)
    if engines == (inventory.target,):
        return ()
    return _absent([find_target(engine) for engine in engines], inventory.providers)


def _absent(engines: Sequence[Engine], providers: Collection[str]) -> tuple[AbsentEngine, ...]:
    """Return the engines of a class that do not run here, given ONNX Runtime's providers.

    The result is empty if none runs here: then nothing is measured, and all engines make or inspect what they can.
    """
    found = {engine.name: engine.availability(providers) for engine in engines}
    if not any(one.is_here for one in found.values()):
        return ()
    return tuple(AbsentEngine(name, one.why, one.mend) for name, one in found.items() if not one.is_here)


def without_unsuited_engines(inventory: Inventory, *, has_program: bool) -> Inventory:
    """Return the inventory of a class with the engines left out that take PyTorch programs alone, if the source has none.

    Nothing else is said of these: installing one would not help.
    """
    engines = engines_of(inventory.target)
    if has_program or engines == (inventory.target,):
        return inventory
    unsuited = tuple(
        AbsentEngine(engine, _NO_PROGRAM, _WITH_PROGRAM, for_source=True)
        for engine in engines
        if not facts_of(engine).runs_sources
    )
    names = {one.engine for one in unsuited}
    return replace(inventory, absent=(*(one for one in inventory.absent if one.engine not in names), *unsuited))


def check_takes_source(inventory: Inventory, *, has_program: bool) -> None:
    """Refuse an engine that takes PyTorch programs alone, if the source has none.

    Raises:
        JobError: no candidate of the target can be made of the source.
    """
    target = inventory.target
    if not (has_program or facts_of(target).runs_sources):
        raise JobError(
            found=f"the target {target}: {_NO_PROGRAM}",
            expected="a source of a flavor of PyTorch, or a target that takes ONNX files",
            fix=f"{_WITH_PROGRAM}, or choose another target; `quantgate doctor` lists them",
        )


def all_targets() -> tuple[Engine, ...]:
    """Return all targets, built-in ones first.

    Raises:
        JobError: an installed package's target does not load.
    """
    return *TARGETS, *(find_target(name) for name in installed_targets())


def lint(path: Path, target: str) -> tuple[Finding, ...]:
    """Apply a target's rules to an ONNX file, those that hold on this processor; see `lint_file`.

    Raises:
        SourceError: the file is no ONNX file, or external scales are missing.
        JobError: the target has no rules.
    """
    rules = find_target(target).lint_rules
    if not rules:
        raise JobError(
            found=f"target {target} has no linter rules",
            expected=f"a target with rules: {', '.join(one.name for one in all_targets() if one.lint_rules)}",
            fix="run the model on the target; the coverage in its result names the layers that ran in float",
        )
    saturates = this_processor().adds_pairs_in_16_bits
    return lint_file(path, [rule for rule in rules if saturates or not rule.without_vnni])


def lint_here(path: Path, target: str) -> tuple[tuple[Finding, ...], str]:
    """Return the findings of `lint` beside the behaviour of the installed runtime, and one line on what they rest on.

    Raises:
        SourceError, JobError: as `lint`.
    """
    findings = lint(path, target)
    seen = find_target(target).observe(path)
    return explain(findings, seen), seen.basis

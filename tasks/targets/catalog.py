"""Catalogue of targets: one line per built-in target, plus the targets of installed packages.

To add a target, write a module of this room, add its plain facts to `validators/targets.py`, and add a line here. A class of
devices needs its facts alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tasks.measure.inventory import this_processor
from tasks.targets import (
    openvino,
    openvino_decoder,
    ort_cpu,
    ort_cuda,
    ort_genai,
    tensorrt,
    torch_cuda,
    torch_inductor,
)
from tasks.targets.device_class import class_of, find_absent
from tasks.targets.target import Target
from validators.errors import JobError
from validators.graph.lint import Finding, explain
from validators.graph.source_graph import lint_file
from validators.records.run import AbsentEngine, Inventory
from validators.targets import BUILT_IN, GROUP, engines_of, facts_of, installed_targets, load_target

ENGINES: tuple[Target, ...] = (
    ort_cpu.TARGET,
    openvino.TARGET,
    torch_inductor.TARGET,
    ort_genai.TARGET,
    openvino_decoder.TARGET,
    ort_cuda.TARGET,
    tensorrt.TARGET,
    torch_cuda.TARGET,
)
_ENGINES = {engine.name: engine for engine in ENGINES}
_BY_NAME = {name: class_of(facts, _ENGINES) if facts.engines else _ENGINES[name] for name, facts in BUILT_IN.items()}
TARGETS: tuple[Target, ...] = tuple(_BY_NAME.values())


def find_target(name: str) -> Target:
    """Return a target by its name.

    Raises:
        JobError: no installed package provides a target with this name, or it fails to load.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    loaded = load_target(name)
    if not isinstance(loaded, Target):
        raise JobError(
            found=f"the entry point {name} of the group {GROUP} loads {type(loaded).__name__}",
            expected="a `tasks.targets.target.Target`",
            fix="correct the package that provides it",
        )
    return loaded


def absent_engines(inventory: Inventory) -> tuple[AbsentEngine, ...]:
    """Return the engines of the inventory's target that its candidates are not tried with here; empty if it is no class."""
    engines = engines_of(inventory.target)
    if engines == (inventory.target,):
        return ()
    return find_absent([find_target(engine) for engine in engines], inventory.providers)


def without_unsuited_engines(inventory: Inventory, *, has_program: bool) -> Inventory:
    """Return the inventory of a class with the engines left out that take PyTorch programs alone, if the source has none.

    Nothing else is said of these: installing one would not help.
    """
    engines = engines_of(inventory.target)
    if has_program or engines == (inventory.target,):
        return inventory
    unsuited = tuple(
        AbsentEngine(
            engine,
            "it compiles PyTorch programs, and the source has none",
            "register the model with a flavor of PyTorch",
            for_source=True,
        )
        for engine in engines
        if not facts_of(engine).runs_sources
    )
    names = {one.engine for one in unsuited}
    return replace(inventory, absent=(*(one for one in inventory.absent if one.engine not in names), *unsuited))


def all_targets() -> tuple[Target, ...]:
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

"""The targets: ours, one line each, and those of installed packages.

A new target is a module of this room, its plain facts in `validators/targets.py`, and a line here.
"""

from __future__ import annotations

from pathlib import Path

from tasks.targets import ort_cpu, ort_cuda, ort_openvino, ort_tensorrt, tensorrt
from tasks.targets.target import Target
from validators.errors import JobError
from validators.graph.lint import Finding
from validators.graph.source_graph import lint_file
from validators.targets import GROUP, installed_targets, load_target

TARGETS: tuple[Target, ...] = (
    ort_cpu.TARGET,
    ort_openvino.TARGET,
    ort_cuda.TARGET,
    ort_tensorrt.TARGET,
    tensorrt.TARGET,
)
_BY_NAME = {target.name: target for target in TARGETS}


def find_target(name: str) -> Target:
    """Return a target by its name.

    Raises:
        JobError: no package here brings a target of this name, or the one that does fails.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    loaded = load_target(name)
    if not isinstance(loaded, Target):
        raise JobError(
            found=f"the entry point {name} of the group {GROUP} gives {type(loaded).__name__}",
            expected="a `tasks.targets.target.Target`",
            fix="correct the package that brings it",
        )
    return loaded


def all_targets() -> tuple[Target, ...]:
    """Return all targets, ours first.

    Raises:
        JobError: an installed package's target does not load.
    """
    return *TARGETS, *(find_target(name) for name in installed_targets())


def lint(path: Path, target: str) -> tuple[Finding, ...]:
    """Apply a target's rules to an ONNX file; see `lint_file`.

    Raises:
        SourceError: it is no ONNX file, or scales in files beside it are missing.
        JobError: there are no rules for this target.
    """
    rules = find_target(target).lint_rules
    if not rules:
        raise JobError(
            found=f"target {target}",
            expected=f"a target with rules: {', '.join(one.name for one in all_targets() if one.lint_rules)}",
            fix="run the model there, and see in the coverage of the result what ran in float",
        )
    return lint_file(path, rules)

"""Catalogue of targets: one line per built-in target, plus the targets of installed packages.

To add a target, write a module of this room, add its plain facts to `validators/targets.py`, and add a line here.
"""

from __future__ import annotations

from pathlib import Path

from tasks.targets import cpu, openvino, ort_cpu, ort_cuda, ort_tensorrt, tensorrt, torch_inductor
from tasks.targets.target import Target
from validators.errors import JobError
from validators.graph.lint import Finding
from validators.graph.source_graph import lint_file
from validators.targets import GROUP, installed_targets, load_target

TARGETS: tuple[Target, ...] = (
    ort_cpu.TARGET,
    cpu.TARGET,
    openvino.TARGET,
    torch_inductor.TARGET,
    ort_cuda.TARGET,
    ort_tensorrt.TARGET,
    tensorrt.TARGET,
)
_BY_NAME = {target.name: target for target in TARGETS}


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


def all_targets() -> tuple[Target, ...]:
    """Return all targets, built-in ones first.

    Raises:
        JobError: an installed package's target does not load.
    """
    return *TARGETS, *(find_target(name) for name in installed_targets())


def lint(path: Path, target: str) -> tuple[Finding, ...]:
    """Apply a target's rules to an ONNX file; see `lint_file`.

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
    return lint_file(path, rules)

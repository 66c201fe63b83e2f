"""Linter of ONNX models: rules and their findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from validators.graph.quantized_graph import QuantizedGraph

Consequence = Literal["fails", "wrong", "float", "slow"]
CONSEQUENCES: tuple[Consequence, ...] = get_args(Consequence)
# Consequences with no engine, or with one that differs from the file. A slow variant may still be the best available.
SEVERE: frozenset[Consequence] = frozenset({"fails", "wrong", "float"})
MEANING: dict[Consequence, str] = {
    "fails": "the runtime refuses the file",
    "wrong": "the file is taken, and the numbers are not those that it says",
    "float": "the file is taken, and what is quantized is multiplied in float",
    "slow": "it runs as meant, with a step that could be spared",
}


@dataclass(frozen=True)
class Finding:
    """One fault of a file: the rule (as in `TRT001 zero-point`), the node's name, the consequence, what was found, the fix."""

    rule: str
    node: str
    consequence: Consequence
    found: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """A rule. `check` yields the name of each node that breaks it and what was found there; its docstring is the claim."""

    identifier: str
    name: str
    consequence: Consequence
    check: Callable[[QuantizedGraph], Iterable[tuple[str, str]]]
    fix: str

    @property
    def title(self) -> str:
        """Identifier and name of the rule."""
        return f"{self.identifier} {self.name}"

    @property
    def claim(self) -> str:
        """Claim of the rule in one sentence: the first line of the check's docstring."""
        return (inspect.getdoc(self.check) or "").splitlines()[0]

    def apply(self, graph: QuantizedGraph) -> list[Finding]:
        """Return the findings of this rule, in the order of the graph."""
        return [Finding(self.title, node, self.consequence, found, self.fix) for node, found in self.check(graph)]


def apply_rules(rules: Iterable[Rule], graph: QuantizedGraph) -> tuple[Finding, ...]:
    """Return the findings of all rules, the most severe consequence first."""
    found = [finding for rule in rules for finding in rule.apply(graph)]
    return tuple(sorted(found, key=lambda finding: CONSEQUENCES.index(finding.consequence)))

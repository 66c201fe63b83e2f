"""What a linter says of a model: findings, and the rules that make them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from validators.graph.quantized_graph import QuantizedGraph

Consequence = Literal["fails", "wrong", "float", "slow"]
CONSEQUENCES: tuple[Consequence, ...] = get_args(Consequence)
# Those that leave no engine, or one that is not what the file says. What is merely slow may still be the best there is.
SEVERE: frozenset[Consequence] = frozenset({"fails", "wrong", "float"})
MEANING: dict[Consequence, str] = {
    "fails": "the runtime refuses the file",
    "wrong": "the file is taken, and the numbers are not those that it says",
    "float": "the file is taken, and what is quantized is multiplied in float",
    "slow": "it runs as meant, with a step that could be spared",
}


@dataclass(frozen=True)
class Finding:
    """One fault of a file: the rule as `TRT001 zero-point`, the node's name, what comes of it, what was there, what to do."""

    rule: str
    node: str
    consequence: Consequence
    found: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """A rule: `check` gives the name of each node that breaks it, and what was found there; its docstring is the claim."""

    identifier: str
    name: str
    consequence: Consequence
    check: Callable[[QuantizedGraph], Iterable[tuple[str, str]]]
    fix: str

    @property
    def title(self) -> str:
        """Identifier and name."""
        return f"{self.identifier} {self.name}"

    @property
    def claim(self) -> str:
        """What the rule says, in one sentence: the first line of the check's docstring."""
        return (inspect.getdoc(self.check) or "").splitlines()[0]

    def apply(self, graph: QuantizedGraph) -> list[Finding]:
        """The findings of this rule, in the order of the graph."""
        return [Finding(self.title, node, self.consequence, found, self.fix) for node, found in self.check(graph)]


def apply_rules(rules: Iterable[Rule], graph: QuantizedGraph) -> tuple[Finding, ...]:
    """The findings of all rules, the gravest consequence first."""
    found = [finding for rule in rules for finding in rule.apply(graph)]
    return tuple(sorted(found, key=lambda finding: CONSEQUENCES.index(finding.consequence)))

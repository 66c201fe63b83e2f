"""Linter of ONNX models: rules and their findings, held beside what an installed runtime does with the file.

A rule is a model of a runtime, and lags behind it. Where the runtime is installed, its behaviour is the finding and the rule is
the explanation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
# Stands for the node of a fact about all of a file.
WHOLE = "the model"
# The name of each node that breaks a rule, and what was found there.
Findings = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Finding:
    """One fault of a file: the rule (as in `TRT001 zero-point`), the node's name, the consequence, what was found, the fix.

    `seen` is what the installed runtime did there; empty if the finding rests on the rule alone.
    """

    rule: str
    node: str
    consequence: Consequence
    found: str
    fix: str
    seen: str = ""


@dataclass(frozen=True)
class RuntimeFacts:
    """Behaviour of an installed runtime with a file.

    `basis` is one line about what was observed and with which runtime, or why nothing was. `facts` are findings that no rule
    explains yet. Of consequences in `decided` the runtime showed all there are, so that rules add none.
    """

    basis: str
    facts: tuple[Finding, ...] = ()
    decided: frozenset[Consequence] = frozenset()


@dataclass(frozen=True)
class Rule:
    """A rule. `check` yields the name of each node that breaks it and what was found there; its docstring is the claim, and
    its name that of the rule.

    `without_vnni`: it holds only on x86 processors without VNNI.
    """

    identifier: str
    consequence: Consequence
    check: Callable[[QuantizedGraph], Findings]
    fix: str
    without_vnni: bool = False

    @property
    def name(self) -> str:
        """Name of the rule: that of the check, with hyphens."""
        return self.check.__name__.replace("_", "-")

    @property
    def title(self) -> str:
        """Identifier and name of the rule."""
        return f"{self.identifier} {self.name}"

    @property
    def claim(self) -> str:
        """Claim of the rule in one sentence: the first line of the check's docstring."""
        return (inspect.getdoc(self.check) or "").splitlines()[0]


def apply_rules(rules: Iterable[Rule], graph: QuantizedGraph) -> tuple[Finding, ...]:
    """Return the findings of all rules, the most severe consequence first."""
    return _by_severity(
        Finding(rule.title, node, rule.consequence, found, rule.fix)
        for rule in rules
        for node, found in rule.check(graph)
    )


def explain(findings: Iterable[Finding], facts: RuntimeFacts) -> tuple[Finding, ...]:
    """Return the observed facts, each as the findings of rules that explain it, then the findings that the runtime left open.

    A fact about a node settles it: rules claim no other severe consequence there.
    """
    findings = tuple(findings)
    settled: dict[tuple[str, str], Finding] = {}
    for fact in facts.facts:
        for cause in _causes(fact, findings) or [fact]:
            seen = replace(cause, consequence=fact.consequence, seen=fact.found)
            settled.setdefault((cause.rule, cause.node), seen)
    nodes = {fact.node for fact in facts.facts}
    rest = [
        one
        for one in findings
        if (one.rule, one.node) not in settled
        and one.consequence not in facts.decided
        and not (one.node in nodes and one.consequence in SEVERE)
    ]
    return _by_severity([*settled.values(), *rest])


def _causes(fact: Finding, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that explain a fact: those of its consequence or, failing that, other severe ones.

    Of a fact about the whole file, a rule about floats is no explanation.
    """
    near = [one for one in findings if fact.node in (one.node, WHOLE) and one.consequence in SEVERE]
    others = [one for one in near if fact.node == one.node or one.consequence != "float"]
    return [one for one in near if one.consequence == fact.consequence] or others


def _by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: CONSEQUENCES.index(finding.consequence)))

"""Result of a run as JUnit XML, which CI systems show as tests: one suite per candidate, one case per gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from tasks.reporting import formats
from tasks.reporting.rows import metric_of
from validators.plain_text import plain
from validators.records.result import CandidateResult, Result
from validators.records.verdicts import Outcome, Verdict

# Element of a case that did not pass; "" for one that did.
CaseElement = Literal["", "failure", "skipped", "error"]
# An inconclusive gate is not broken: it could not be decided, as a skipped test.
_ELEMENTS: dict[Outcome, CaseElement] = {"pass": "", "fail": "failure", "inconclusive": "skipped"}


@dataclass(frozen=True)
class JunitCase:
    """One case of a suite: its name, the element that tells its outcome, the reason, and further evidence."""

    name: str
    element: CaseElement
    reason: str = ""
    evidence: str = ""


def junit_xml(result: Result) -> str:
    """Render a run as JUnit XML.

    A gate that fails is a failure; an inconclusive one, and the refusal of a candidate, is skipped. The checks of the
    calibration data are a suite of their own, and so is the error that ended a run.
    """
    root = ElementTree.Element("testsuites", name="quantgate")
    for name, cases in _suites(result):
        counts = Counter(case.element for case in cases)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=plain(name),
            tests=str(len(cases)),
            failures=str(counts["failure"]),
            errors=str(counts["error"]),
            skipped=str(counts["skipped"]),
        )
        for case in cases:
            found = ElementTree.SubElement(suite, "testcase", classname=plain(name), name=plain(case.name))
            if case.element:
                ElementTree.SubElement(found, case.element, message=plain(case.reason)).text = plain(case.evidence)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suites(result: Result) -> Iterator[tuple[str, list[JunitCase]]]:
    if result.error is not None:
        error = result.error
        yield "run", [JunitCase(error.kind, "error", error.found, f"expected: {error.expected}\nfix: {error.fix}")]
    if result.calibration is not None:
        failed = [
            JunitCase(
                check.name,
                "failure" if check.severity == "critical" else "skipped",
                check.found,
                f"expected: {check.expected}\nfix: {check.fix}",
            )
            for check in result.calibration.failed_checks
        ]
        yield "calibration", failed + [JunitCase(check.name, "") for check in result.calibration.passed_checks]
    for candidate in result.candidates:
        yield candidate.name, _cases(candidate, metric_of(result))


def _cases(candidate: CandidateResult, metric: str) -> list[JunitCase]:
    refusal = candidate.refusal
    refused = [JunitCase("refusal", "skipped", f"{refusal.kind}: {refusal.reason}")] if refusal else []
    return refused + [_case(verdict, metric) for verdict in candidate.verdicts]


def _case(verdict: Verdict, metric: str) -> JunitCase:
    value = formats.gate_value(verdict, verdict.value, metric)
    evidence = f"{value}, required {formats.gate_bound(verdict, metric)}; method: {verdict.method}"
    return JunitCase(verdict.gate, _ELEMENTS[verdict.outcome], verdict.reason, evidence)

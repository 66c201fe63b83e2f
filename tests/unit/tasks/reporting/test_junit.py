"""JUnit XML of a run: what CI counts as passed, failed and skipped."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from report_data import CHOSEN, ERROR, EVIL, FAULT, NAMES, RESULT

from tasks.reporting.junit import junit_xml
from validators.records.result import Result
from validators.records.run import RefusalResult
from validators.records.verdicts import Verdict

VERDICTS = [
    Verdict("drop", "fail", 0.05, 0.02, "at_most", 0.03, 0.07, 0.95, 900, "m", "beyond the bound"),
    Verdict(
        "p99_ms", "inconclusive", 9.0, 10.0, "at_most", 8.0, 11.0, 0.95, 6, "m", "about 12 launches would settle it"
    ),
    Verdict("speedup", "pass", 1.5, 1.05, "at_least", 1.4, 1.6, 0.95, 18, "m"),
]


def suites(result: Result) -> dict[str, ElementTree.Element]:
    return {suite.get("name", ""): suite for suite in ElementTree.fromstring(junit_xml(result))}


def elements(suite: ElementTree.Element) -> list[tuple[str | None, list[tuple[str, str | None]]]]:
    """Each case of a suite with the elements in it and their messages."""
    return [(case.get("name"), [(found.tag, found.get("message")) for found in case]) for case in suite]


def with_first(**changes: object) -> Result:
    """The result whose first candidate is changed."""
    first, *others = RESULT.candidates
    return RESULT.model_copy(update={"candidates": [first.model_copy(update=changes), *others]})


def test_each_gate_of_a_candidate_is_a_case() -> None:
    suite = suites(with_first(verdicts=VERDICTS))[NAMES[0]]
    assert elements(suite) == [
        ("drop", [("failure", "beyond the bound")]),
        ("p99_ms", [("skipped", "about 12 launches would settle it")]),
        ("speedup", []),
    ]
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3", "failures": "1", "skipped": "1", "errors": "0",
    }  # fmt: skip
    assert suite[0][0].text == "+5.00 pp, required ≤ +2.00 pp; method: m"
    assert all(case.get("classname") == NAMES[0] for case in suite)


def test_every_candidate_and_the_calibration_are_suites() -> None:
    found = suites(RESULT)
    assert list(found) == ["calibration", *(candidate.name for candidate in RESULT.candidates)]
    chosen = next(candidate for candidate in RESULT.candidates if candidate.name == CHOSEN)
    assert [case.get("name") for case in found[CHOSEN]] == [verdict.gate for verdict in chosen.verdicts]
    assert RESULT.calibration is not None
    warned = [check.name for check in RESULT.calibration.failed_checks if check.severity == "warning"]
    assert warned == [name for name, inside in elements(found["calibration"]) if inside and inside[0][0] == "skipped"]


def test_refused_candidate_is_skipped_with_its_reason() -> None:
    refused = with_first(refusal=RefusalResult(kind="unsupported", reason="no kernels"), verdicts=[])
    assert elements(suites(refused)[NAMES[0]]) == [("refusal", [("skipped", "unsupported: no kernels")])]


def test_refused_calibration_is_a_failure() -> None:
    assert RESULT.calibration is not None
    check = replace(RESULT.calibration.failed_checks[0], severity="critical")
    calibration = RESULT.calibration.model_copy(update={"failed_checks": [check]})
    found = suites(RESULT.model_copy(update={"calibration": calibration}))["calibration"]
    assert found.get("failures") == "1" and elements(found)[0] == (check.name, [("failure", check.found)])


def test_error_of_a_run_is_an_error() -> None:
    (suite,) = suites(ERROR).values()
    assert elements(suite) == [(FAULT.kind, [("error", FAULT.found)])] and suite.get("errors") == "1"


def test_hostile_text_stays_text() -> None:
    """Markup is escaped, and control characters, which XML forbids, are written out."""
    refused = with_first(name=EVIL, refusal=RefusalResult(kind="invalid", reason="\x1b[2J & <b>"), verdicts=[])
    assert elements(suites(refused)[EVIL]) == [("refusal", [("skipped", "invalid: \\x1b[2J & <b>")])]

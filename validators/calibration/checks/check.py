"""A calibration check: what it measures, what it expects, and how it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from validators.calibration.evidence import CalibrationEvidence
from validators.samples.datasets import Samples

Severity = Literal["critical", "warning"]
# Found, expected, fix.
Texts = tuple[str, str, str]


@dataclass(frozen=True)
class Expected:
    """One expectation of a check, for Great Expectations to evaluate on the table of the evidence.

    `expectation` is the class name, from Great Expectations or from this package. `subject` is the input or column that the
    check's text names, empty for all samples. `text` is shown on the page. `column` is empty for an expectation on the table.
    """

    expectation: str
    subject: str
    severity: Severity
    text: str
    column: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectationResult:
    """Result of one expectation: its check, its subject (an input, a statistic), its severity and the observed values."""

    check: str
    subject: str
    passed: bool
    severity: Severity
    values: dict[str, Any]


@dataclass(frozen=True)
class CalibrationCheck:
    """A check of calibration data.

    `expect` yields its expectations. `describe` turns their results into the texts of the verdict. `columns` computes columns
    of the evidence's table, shape `(n,)` each, from the `n` calibration samples. An optional check is left out of the verdict
    if it has no expectations.
    """

    name: str
    expect: Callable[[CalibrationEvidence], Iterator[Expected]]
    describe: Callable[[CalibrationEvidence, Sequence[ExpectationResult]], Texts]
    columns: Callable[[Samples], Mapping[str, NDArray[Any]]] = lambda _samples: {}
    is_optional: bool = False

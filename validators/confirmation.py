"""How the error of a run is shared among the candidates that may be held against the confirmation samples."""

from __future__ import annotations


def confidence_of_each(confidence: float, candidates: int) -> float:
    """The one-sided confidence of each of so many tests, of which all hold together with `confidence` (Bonferroni).

    Candidates are tried best first until one passes: each try is a chance to promote what should not be.

    >>> round(confidence_of_each(0.95, 2), 6), confidence_of_each(0.95, 1)
    (0.975, 0.95)
    """
    return 1 - (1 - confidence) / candidates if candidates > 1 else confidence

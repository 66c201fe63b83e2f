"""Test that the calibration labels cover the reference labels, with an allowance for chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy import stats

Label = int | str
# Rule of thumb for the smallest testable expected count (W. G. Cochran, "Some methods for strengthening the common chi-square
# tests", Biometrics 10, 1954).
MIN_EXPECTED_COUNT = 5.0
# Upper limit on the probability that a random draw of calibration samples is refused for any of its labels.
MAX_FALSE_ALARM = 0.05


@dataclass(frozen=True)
class ShortLabel:
    """A label with too few calibration samples: count found, count needed, and share of the reference."""

    label: Label
    count: int
    needed: int
    reference_share: float


def count_required_labels(reference: Mapping[Label, int], n: int) -> int:
    """Count the reference labels that `n` calibration samples must hold: those with at least 5 expected samples.

    `reference` maps each label to its number of samples.
    """
    return sum(1 for count in reference.values() if n * count / sum(reference.values()) >= MIN_EXPECTED_COUNT)


def find_short_labels(
    counts: Mapping[Label, int], reference: Mapping[Label, int], min_share: float
) -> tuple[ShortLabel, ...]:
    """Return the reference labels that occur too rarely in the calibration samples.

    `counts` and `reference` map each label to its number of samples. A label must occur with at least `min_share` times its
    share of the reference. Two rules discount chance. A label with fewer than 5 expected samples in a random draw is not
    required: it may well be missing. And a label is short only if a random draw would hold so few with a probability of at
    most 5 % divided by the number of required labels (one-sided Fisher exact test with Bonferroni's correction): among many
    labels, one is always rare by chance. A random draw is therefore refused for its labels in at most 1 of 20 cases, a
    stratified draw never.

    >>> find_short_labels({0: 64, 1: 0}, {0: 500, 1: 500}, min_share=0.25)
    (ShortLabel(label=1, count=0, needed=8, reference_share=0.5),)
    >>> find_short_labels({0: 64, 1: 0}, {0: 950, 1: 50}, min_share=0.25)  # 3.2 expected: missing by chance, perhaps
    ()
    """
    n, m = sum(counts.values()), sum(reference.values())
    required = count_required_labels(reference, n)
    short = []
    for label, reference_count in sorted(reference.items()):
        share, count = reference_count / m, counts.get(label, 0)
        needed = max(1, math.ceil(min_share * share * n))
        if n * share < MIN_EXPECTED_COUNT or count >= needed:
            continue
        # Given the number of all n + m samples with the label, the number among the n is hypergeometric.
        by_chance = float(stats.hypergeom.cdf(count, n + m, count + reference_count, n))
        if by_chance * required <= MAX_FALSE_ALARM:
            short.append(ShortLabel(label, count, needed, share))
    return tuple(short)

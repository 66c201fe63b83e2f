"""Labels of calibration samples: what is missing is found, what chance left out is forgiven."""

from __future__ import annotations

import numpy as np
import pytest

from validators.calibration.label_coverage import ShortLabel, find_short_labels


@pytest.mark.parametrize(("classes", "n"), [(10, 64), (10, 128), (100, 1000)])
def test_random_draws_are_seldom_refused_for_a_label(classes: int, n: int) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(classes, 5.0))
    refused = 0
    for _ in range(300):
        counts, reference = (dict(enumerate(rng.multinomial(size, shares).tolist())) for size in (n, 2000))
        refused += bool(find_short_labels(counts, reference, min_share=0.25))
    assert refused <= 15  # 5 %, as promised


def test_a_label_is_short_below_its_share_and_beyond_chance() -> None:
    reference = {0: 1000, 1: 900, 2: 100}
    assert find_short_labels({0: 600, 1: 400}, reference, 0.25) == (ShortLabel(2, 0, 13, 0.05),)
    assert find_short_labels({0: 600, 1: 388, 2: 12}, reference, 0.25) == (ShortLabel(2, 12, 13, 0.05),)
    assert find_short_labels({0: 600, 1: 387, 2: 13}, reference, 0.25) == ()
    # Of 90 samples 4.5 are expected of label 2: too few to require any.
    assert find_short_labels({0: 60, 1: 30}, reference, 0.25) == ()
    # Five are expected and none is there, but in one of a hundred labels: by chance (0.7 % for each).
    many = dict.fromkeys(range(100), 20)
    assert find_short_labels(dict.fromkeys(range(1, 100), 5) | {1: 10}, many, 0.25) == ()
    # Without a bound on the share a label must still occur.
    assert find_short_labels({0: 600, 1: 400}, reference, 0.0) == (ShortLabel(2, 0, 1, 0.05),)


def test_groups_may_be_text() -> None:
    assert find_short_labels({"en": 128}, {"en": 500, "de": 500}, 0.25) == (ShortLabel("de", 0, 16, 0.5),)

"""The wide list: names that decode, the target's own list first, and as many as the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest

from validators.job.candidate_name import decode
from validators.job.wide_candidates import wide_candidates
from validators.targets import BUILT_IN, facts_of


@pytest.mark.parametrize("target", BUILT_IN)
def test_list_holds_each_recipe_once_with_the_targets_own_first(target: str) -> None:
    names = wide_candidates(target)
    assert len(set(names)) == len(names) and all(decode(name).name == name for name in names)
    own = [name for name in facts_of(target).default_candidates if not decode(name).is_simulated]
    assert list(names[: len(own)]) == own
    kinds = {(one.precision, one.dynamic, one.target) for one in map(decode, own)}
    assert {(one.precision, one.dynamic, one.target) for one in map(decode, names)} == kinds


def test_candidates_cheap_enough_for_a_race_are_not_few() -> None:
    counts = [len(wide_candidates(target)) for target in ("ort-cpu", "openvino", "cpu", "torch-inductor")]
    assert all(30 <= count <= 62 for count in counts[:-1])
    page = (Path(__file__).parents[4] / "docs/candidates.md").read_text(encoding="utf-8")
    assert "{} on `ort-cpu`, {} on `openvino`, {} on `cpu`, {} on `torch-inductor`".format(*counts) in page

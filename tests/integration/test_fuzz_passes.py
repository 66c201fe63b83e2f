"""Random models through every candidate of the processor engines: right within the precision, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import check_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(30))
def test_every_candidate_of_a_random_model_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    _, findings = check_model(seed, tmp_path / "model")
    assert [found for found in findings if found.broken] == []
    assert sum(not found.refused for found in findings) >= 6

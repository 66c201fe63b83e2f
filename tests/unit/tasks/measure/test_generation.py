"""Speed of a decoder from two operating points: a whole answer, and its first token alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from validators.records.latencies import Generation, Latency, generation_of
from validators.records.measurements import Estimate


def latency(ms: float, baseline_ms: float, new_tokens: int, prompt: int = 16) -> Latency:
    return Latency(
        *(1, ms, None, None, 10, baseline_ms, None, None, Estimate(baseline_ms / ms), 3, 1.0, 1.0, 1.0, 1.0, Path()),
        dims={"sequence_length": prompt, "new_tokens": new_tokens},
    )


def test_each_further_token_takes_its_share_of_the_rest() -> None:
    found = generation_of([latency(100.0, 400.0, 11), latency(50.0, 100.0, 1, prompt=8), latency(20.0, 90.0, 1)])
    assert found == Generation(11, (20.0, 90.0), (8.0, 31.0))
    assert str(found).startswith("first token after 20 ms (baseline 90), then 125 tokens a second (baseline 32.3)")


@pytest.mark.parametrize(
    "latencies",
    [
        [],
        [latency(100.0, 400.0, 11)],
        # Of another prompt; without tokens; shorter than its first token, which noise can make of it.
        [latency(100.0, 400.0, 11), latency(20.0, 90.0, 1, prompt=8)],
        [latency(20.0, 90.0, 1)],
        [latency(19.0, 400.0, 2), latency(20.0, 90.0, 1)],
    ],
)
def test_without_its_first_token_nothing_is_said(latencies: list[Latency]) -> None:
    assert generation_of(latencies) is None

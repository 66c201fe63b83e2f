"""Speed of a decoder from two operating points: a whole answer, and its first token alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from validators.records.generation import DecoderBytes, Generation, generations_of
from validators.records.latencies import Latency
from validators.records.measurements import Estimate


def latency(ms: float, baseline_ms: float, new_tokens: int, prompt: int = 16) -> Latency:
    return Latency(
        *(1, ms, None, None, 10, baseline_ms, None, None, Estimate(baseline_ms / ms), 3, 1.0, 1.0, 1.0, 1.0, Path()),
        dims={"sequence_length": prompt, "new_tokens": new_tokens},
    )


def test_each_further_token_takes_its_share_of_the_rest() -> None:
    (found,) = generations_of([latency(100.0, 400.0, 11), latency(50.0, 100.0, 1, prompt=8), latency(20.0, 90.0, 1)])
    assert found == Generation(16, 11, (20.0, 90.0), (8.0, 31.0))
    assert str(found).startswith(
        "prompt of 16: first token after 20 ms (baseline 90), then 125 tokens a second (baseline 32.3)"
    )


def test_each_prompt_length_has_its_own_speed() -> None:
    """In the order of the job's points, whose product has both answers at each length."""
    points = [
        latency(100.0, 400.0, 11),
        latency(20.0, 90.0, 1),
        latency(130.0, 500.0, 11, 64),
        latency(50.0, 200.0, 1, 64),
    ]
    assert generations_of(points) == (
        Generation(16, 11, (20.0, 90.0), (8.0, 31.0)),
        Generation(64, 11, (50.0, 200.0), (8.0, 30.0)),
    )
    # A length whose first token was not measured is left out, and no other.
    assert generations_of(points[:3]) == generations_of(points)[:1]


def test_sequences_share_the_reading_of_weights() -> None:
    of = DecoderBytes(weights=1200, read_weights=1000, cache=10, context=128)
    one = Generation(16, 8, (20.0, 90.0), (10.0, 31.0))
    assert one.read_per_token(of) == 1000 + 10 * 20
    assert one.bandwidth(of, 0) == pytest.approx(1200 * 100)
    four = replace(one, batch_size=4)
    assert four.read_per_token(of) == 250 + 10 * 20
    assert four.bandwidth(of, 0) == pytest.approx(450 * 400)
    assert replace(one, prompt=None).bandwidth(of, 0) is None


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
    assert generations_of(latencies) == ()

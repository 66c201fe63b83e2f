"""The observer of a drop: it ends a measurement for a drop beyond the tolerance, and hardly ever for one within it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_judge import BASELINE_BYTES, Bench, make_job

from tasks.measure.metrics.texts import error_rate, make_decoder
from tasks.trials.judge_on_samples import DropWatch, JudgedData
from validators.errors import CandidateRefused
from validators.job.job_data import TextDecoding

N, SIZE = 2000, 32


def judged_data_of(folder: Path, scores: Any, **changes: Any) -> JudgedData:
    """Every second sample is kept for confirmation."""
    confirmation = np.arange(N) % 2 == 1
    return JudgedData(make_job(**changes), Bench(folder).accuracy(scores), BASELINE_BYTES, confirmation, {})


def looked_at(judged_data: JudgedData, rows: Any) -> tuple[int, str]:
    """The number of samples seen, and why it ended there; empty if it did not."""
    watch = DropWatch(judged_data, SIZE)
    seen = 0
    for start in range(0, len(watch.samples), SIZE):
        samples = watch.samples[start : start + SIZE]
        seen += len(samples)
        try:
            watch.look(rows[samples])
        except CandidateRefused as error:
            return seen, f"{error.kind} {error.found}"
    return seen, ""


def test_all_batches_come_once_in_a_random_order(tmp_path: Path) -> None:
    watch = DropWatch(judged_data_of(tmp_path, np.ones(N)), SIZE)
    chosen = np.arange(0, N, 2)
    assert sorted(watch.samples) == chosen.tolist() and watch.samples.tolist() != chosen.tolist()
    first = watch.samples[0] // 2
    assert first % SIZE == 0
    np.testing.assert_array_equal(watch.samples[:SIZE], chosen[first : first + SIZE])


def test_a_large_drop_ends_at_the_first_look_and_none_never_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    before = (rng.random(N) < 0.9).astype(float)
    judged_data = judged_data_of(tmp_path, before)
    seen, why = looked_at(judged_data, (before * (rng.random(N) < 0.6))[:, None])
    assert seen <= 8 * SIZE and why.startswith(
        f"stopped after {seen} of 1000 samples, accuracy is worse by at least 0."
    )
    assert why.endswith("with 99% confidence, where 0.02 is allowed")
    assert looked_at(judged_data, before[:, None]) == (N // 2, "")


def test_a_drop_among_confirmation_samples_alone_is_not_seen(tmp_path: Path) -> None:
    judged_data = judged_data_of(tmp_path, np.ones(N))
    assert looked_at(judged_data, judged_data.selection.astype(float)[:, None]) == (N // 2, "")


def test_drops_at_the_tolerance_end_in_one_of_a_hundred_at_most(tmp_path: Path) -> None:
    """Errors of a model that is sorted by class, so that batches differ: 2 % in all, 8 % in a quarter of the file."""
    before = np.ones(N)
    judged_data = judged_data_of(tmp_path, before)
    rng = np.random.default_rng(5)
    ended = 0
    for seed in range(300):
        after = before.copy()
        after[rng.choice(N // 4, N // 50, replace=False)] = 0
        job = judged_data.job.model_copy(update={"seed": seed})
        ended += bool(looked_at(replace(judged_data, job=job), after[:, None])[1])
    assert ended <= 8, "95 % of experiments with a rate of 1 % have at most 6"


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_ratio_of_sums_is_seen_as_well(tmp_path: Path, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a text, over words of texts that differ in length."""
    rng = np.random.default_rng(6)
    words = rng.integers(1, 30, N).astype(float)
    before, after = (np.column_stack([rng.binomial(words.astype(int), share), words]) for share in (0.02, 0.02 + rate))
    judged_data = judged_data_of(tmp_path, np.ones(N))
    vars(judged_data).update(metric=error_rate("wer", make_decoder(TextDecoding())), baseline_rows=before)
    seen, why = looked_at(judged_data, after.astype(float))
    assert (seen <= 8 * SIZE and "wer is worse by at least 0.1" in why) if rate else (seen, why) == (N // 2, "")
